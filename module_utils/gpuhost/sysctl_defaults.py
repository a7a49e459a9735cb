"""The kernel settings that are wanted on a host for LLM inference, each with what it claims and where that is from.

Most claims are about steadiness, not speed: "no measured effect known" is said where nobody has shown one.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Default:
    """A setting. ``key`` is a path below /proc/sys; ``at_least``: a larger last number is left alone."""

    key: str
    value: str
    why: str
    source: str
    at_least: bool = False


_KERNEL_DOC = "Documentation/admin-guide/sysctl/kernel.rst"
_VM_DOC = "Documentation/admin-guide/sysctl/vm.rst"
_NET_DOC = "Documentation/networking/ip-sysctl.rst"

DEFAULTS = (
    Default(
        "kernel/numa_balancing", "0",
        "The kernel unmaps pages to see who touches them: page faults in the threads that feed the GPUs.",
        f"{_KERNEL_DOC}: numa_balancing",
    ),
    Default(
        "kernel/nmi_watchdog", "0",
        "It interrupts every CPU and holds a performance counter. No measured effect known; hard lockups are not seen.",
        f"{_KERNEL_DOC}: nmi_watchdog",
    ),
    Default(
        "kernel/sched_autogroup_enabled", "0",
        "It shares the CPU by terminal session, so a server started from a shell competes as one session. No measured "
        "effect known.",
        f"{_KERNEL_DOC}: sched_autogroup_enabled; sched(7)",
    ),
    Default(
        "vm/swappiness", "10",
        "A server's idle pages stay in memory while weights are read through the page cache.",
        f"{_VM_DOC}: swappiness",
    ),
    Default(
        "vm/dirty_ratio", "10",
        "At 20 % of 1 TiB a writer (a download of weights) stalls behind 200 GB. No measured effect on decoding known.",
        f"{_VM_DOC}: dirty_ratio",
    ),
    Default(
        "vm/dirty_background_ratio", "5",
        "Writing back begins at half of what makes writers wait.",
        f"{_VM_DOC}: dirty_background_ratio",
    ),
    Default(
        "vm/max_map_count", "1048576",
        "A process with more mappings than 65530 fails; many shards and threads come near. As Ubuntu 24.04 has it.",
        f"{_VM_DOC}: max_map_count; Ubuntu's /usr/lib/sysctl.d/10-map-count.conf",
        at_least=True,
    ),
    Default(
        "net/core/rmem_max", "16777216",
        "Room for one fast stream over a long way (weights, NCCL over sockets). No measured effect on one host known.",
        "Documentation/admin-guide/sysctl/net.rst: rmem_max",
        at_least=True,
    ),
    Default(
        "net/core/wmem_max", "16777216",
        "As rmem_max, for sending. No measured effect on one host known.",
        "Documentation/admin-guide/sysctl/net.rst: wmem_max",
        at_least=True,
    ),
    Default(
        "net/ipv4/tcp_rmem", "4096 131072 16777216",
        "The third number bounds what one TCP stream can have under way. No measured effect on one host known.",
        f"{_NET_DOC}: tcp_rmem",
        at_least=True,
    ),
    Default(
        "net/ipv4/tcp_wmem", "4096 16384 16777216",
        "As tcp_rmem, for sending. No measured effect on one host known.",
        f"{_NET_DOC}: tcp_wmem",
        at_least=True,
    ),
)  # fmt: skip

BY_KEY = {item.key: item for item in DEFAULTS}

CONFIG_SYMBOLS = {
    "kernel/numa_balancing": "CONFIG_NUMA_BALANCING",
    "kernel/nmi_watchdog": "CONFIG_LOCKUP_DETECTOR",
    "kernel/sched_autogroup_enabled": "CONFIG_SCHED_AUTOGROUP",
}
"""The symbol without which a kernel does not have the key (kernel/sched/core.c, kernel/watchdog.c, autogroup.c)."""
