"""The domain *firmware*: what the board's firmware and the kernel's first decisions leave to GPU work.

Everything is a file of /sys or /proc, readable without root but for what a Resizable BAR could be. Sources:
Documentation/ABI/testing/{sysfs-kernel-iommu_groups,sysfs-bus-pci,sysfs-devices-system-cpu}; drivers/firmware/dmi-id.c.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from . import pcie_tree, secure_boot
from .documents import Finding, Severity
from .host_io import Host

DOMAIN = "firmware"
DMI = "/sys/class/dmi/id"
IOMMUS, GROUPS = "/sys/class/iommu", "/sys/kernel/iommu_groups"
SMT = "/sys/devices/system/cpu/smt"
NODES = "/sys/devices/system/node"
EFI = "/sys/firmware/efi"
_SECURITY = "/sys/kernel/security"
PASSTHROUGH, TRANSLATED = "identity", ("DMA", "DMA-FQ")
"""What a group's ``type`` reads. ``DMA-FQ`` is translated too, with lazy invalidation."""

_DMI_FIELDS = ("sys_vendor", "product_name", "board_name", "bios_vendor", "bios_version", "bios_date")
_IOMMU_WORDS = re.compile(r"(?:iommu|amd_iommu|intel_iommu|iommu\.\w+)(?:=\S*)?")
_MIB = 1 << 20
_REGISTERS = 6
_LARGE = 1 << 30
"""No GPU has a BAR1 of this size that was not made for its whole memory; 256 MiB is what fits below 4 GiB."""
_WHY_BAR = "Peers and RDMA cards reach GPU memory through BAR1: with 256 MiB only a window of it at a time."


@dataclass(frozen=True)
class Bar:
    """BAR1 of one GPU. ``largest_bytes``: the most that the card offers; None where the kernel does not show it."""

    address: str
    bytes: int
    largest_bytes: int | None = None


@dataclass(frozen=True)
class Facts:
    """What was read. Empty texts: the kernel does not say."""

    vendor: str = ""
    product: str = ""
    board: str = ""
    bios: str = ""
    """Vendor, version and date, as DMI has them."""
    guest: bool = False
    iommus: tuple[str, ...] = ()
    iommu_words: tuple[str, ...] = ()
    """What the kernel's command line says about it."""
    gpu_groups: tuple[tuple[str, str], ...] = ()
    """(address, type of its group) of every GPU that this host itself uses; an empty type: in no group."""
    bars: tuple[Bar, ...] = ()
    smt: str = ""
    nodes: int = 0
    sockets: int = 0
    """Of NUMA nodes that have CPUs."""
    uefi: bool = False
    secure_boot: bool | None = None
    signed_modules_only: bool = False
    lockdown: str = ""
    securityfs: bool = True
    """Whether the file system is mounted that says it."""
    root: bool = True


def read(host: Host) -> Facts:
    """Files only."""
    said = {name: host.read_line(f"{DMI}/{name}") for name in _DMI_FIELDS}
    cmdline = host.read_line("/proc/cmdline")
    gpus = [item for item in _functions(host) if item.is_gpu and not item.is_virtual]
    own = [item for item in gpus if item.driver != "vfio-pci"]
    nodes, sockets = _numa(host)
    variables = [host.read_bytes(path) for path in (secure_boot.SECURE_BOOT, secure_boot.SETUP_MODE)]
    shim = host.read_bytes(secure_boot.MOK_SB_STATE)
    lockdown, enforce = host.read_line(secure_boot.LOCKDOWN), host.read_line(secure_boot.SIG_ENFORCE)
    return Facts(
        vendor=said["sys_vendor"],
        product=said["product_name"],
        board=said["board_name"],
        bios=" ".join(said[name] for name in _DMI_FIELDS[3:] if said[name]),
        guest=is_guest(host),
        iommus=tuple(host.names(IOMMUS)),
        iommu_words=tuple(word for word in cmdline.split() if _IOMMU_WORDS.fullmatch(word)),
        gpu_groups=tuple((item.address, _group_type(host, item.address)) for item in own),
        bars=tuple(bar for item in own if (bar := _bar(host, item.address)) is not None),
        smt=_smt(host),
        nodes=nodes,
        sockets=sockets,
        uefi=host.exists(EFI),
        # Without lockdown, command line and sig_enforce the answer is Secure Boot's alone.
        secure_boot=None
        if variables[0] is None
        else secure_boot.enforces(variables[0], variables[1], "", "", "", shim),
        signed_modules_only=secure_boot.enforces(variables[0], variables[1], lockdown, cmdline, enforce, shim),
        lockdown=pcie_tree.read_lockdown(host),
        securityfs=bool(host.names(_SECURITY)),
        root=host.is_root(),
    )


def is_guest(host: Host) -> bool:
    """Whether a hypervisor says that it is there: the CPU flag, which x86 kernels show."""
    flags = re.search(r"^flags\s*:.*$", host.read("/proc/cpuinfo") or "", re.MULTILINE)
    return flags is not None and "hypervisor" in flags[0].split()


def _functions(host: Host) -> Iterator[pcie_tree.Function]:
    for name in host.names(pcie_tree.DEVICES):
        found = pcie_tree.read_function(host, name)
        if found is not None:
            yield found


def _group_type(host: Host, address: str) -> str:
    group = (host.resolved(f"{pcie_tree.DEVICES}/{address}/iommu_group") or "").rpartition("/")[2]
    return (host.read_line(f"{GROUPS}/{group}/type") or "unknown") if group else ""


def _bar(host: Host, address: str) -> Bar | None:
    """``resource``: a line ``start end flags`` for each BAR register; ``resourceN_resize``: bit n stands for 2^n MiB.

    NVIDIA's BAR1 is the second one that is in use: register 1, or 2 where BAR0 takes two (Hopper, as seen on an H200).
    """
    lines = (host.read(f"{pcie_tree.DEVICES}/{address}/resource") or "").splitlines()[:_REGISTERS]
    used = [(number, start, end) for number, line in enumerate(lines) for start, end in [_bounds(line)] if end]
    if len(used) < 2:
        return None
    number, start, end = used[1]
    offered = host.read_line(f"{pcie_tree.DEVICES}/{address}/resource{number}_resize")
    bits = int(offered, 16) if re.fullmatch(r"(0x)?[0-9a-fA-F]+", offered) else 0
    return Bar(address, end - start + 1, _MIB << (bits.bit_length() - 1) if bits else None)


def _bounds(line: str) -> tuple[int, int]:
    numbers = [int(text, 16) for text in line.split()[:2] if re.fullmatch(r"(0x)?[0-9a-fA-F]+", text)]
    return (numbers[0], numbers[1]) if len(numbers) == 2 else (0, 0)


def _smt(host: Host) -> str:
    control, active = host.read_line(f"{SMT}/control"), host.read_line(f"{SMT}/active")
    return control if control != "on" or active != "0" else "on, and no core has a second thread"


def _numa(host: Host) -> tuple[int, int]:
    """NUMA nodes with CPUs, and their sockets."""
    packages = []
    for name in host.names(NODES):
        first = re.match(r"\d+", host.read_line(f"{NODES}/{name}/cpulist")) if re.fullmatch(r"node\d+", name) else None
        if first:
            packages.append(host.read_line(f"/sys/devices/system/cpu/cpu{first[0]}/topology/physical_package_id"))
    return len(packages), len(set(packages))


def findings(facts: Facts) -> tuple[Finding, ...]:
    """All of them."""
    return (
        _version(facts),
        _iommu(facts),
        *_bars(facts),
        _finding(
            "firmware.smt", "info" if facts.smt else "unknown", facts.smt or "unknown: the kernel does not say",
            "", "Two threads of a core share it; whether that helps depends on the server. Not judged.", SMT,
        ),
        _numa_finding(facts),
        _secure_boot(facts),
        _lockdown(facts),
    )  # fmt: skip


def _finding(
    code: str, severity: Severity, observed: str, expected: str, why: str, source: str, fix: str = ""
) -> Finding:
    return Finding(code, DOMAIN, severity, observed, expected, why, fix, source)


def _version(facts: Facts) -> Finding:
    code, why = "firmware.version", "Vendors mend PCIe, IOMMU and CPPC in firmware: compare it with their latest."
    parts = [" ".join(filter(None, (facts.vendor, facts.product))), facts.board and f"board {facts.board}"]
    parts.append(facts.bios and f"firmware {facts.bios}")
    said = ", ".join(filter(None, parts))
    if said:
        return _finding(code, "info", said, "", why, DMI)
    if facts.guest:
        return _finding(code, "info", "not applicable: a virtual machine without DMI", "", why, DMI)
    return _finding(code, "unknown", "unknown: the kernel shows no DMI", "", why, DMI)


def _iommu(facts: Facts) -> Finding:
    code, expected = "firmware.iommu", "passthrough for GPUs that the host itself uses, or no IOMMU"
    why = (
        "A translated GPU's transfers go through the IOMMU's tables: peer-to-peer between GPUs gets slow, or moves "
        "nothing while the driver says OK (case cuda-02)."
    )
    types = sorted({kind for _, kind in facts.gpu_groups})
    words = f" ({' '.join(facts.iommu_words)})" if facts.iommu_words else ""
    if not facts.iommus and not any(types):
        where = "a virtual machine has none of its own" if facts.guest else "none in use"
        return _finding(code, "info", f"{where}{words}", expected, why, IOMMUS)
    named = ", ".join(dict.fromkeys(name.rstrip("0123456789") for name in facts.iommus)) or "an IOMMU"
    if not facts.gpu_groups:
        observed = f"{named} in use{words}; not applicable: no GPU that the host itself uses"
        return _finding(code, "info", observed, expected, why, IOMMUS)
    translated = [address for address, kind in facts.gpu_groups if kind in TRANSLATED]
    if translated:
        severity: Severity = "p1_reboot" if len(facts.gpu_groups) > 1 and not facts.guest else "info"
        observed = f"translated{words}: {', '.join(translated)}"
        fix = "boot_config_cmdline: {iommu: pt}, then boot; with ACS redirects off where P2P is wanted"
        return _finding(code, severity, observed, expected, why, f"{GROUPS}/*/type", fix)
    if types == [PASSTHROUGH]:
        return _finding(code, "good", f"passthrough{words}", expected, why, f"{GROUPS}/*/type")
    if types == [""]:
        return _finding(code, "good", f"{named} in use, no GPU below it{words}", expected, why, f"{GROUPS}/*/type")
    shown = ", ".join(f"{address}: {kind or 'no group'}" for address, kind in facts.gpu_groups)
    return _finding(code, "unknown", f"unknown: {shown}{words}", expected, why, f"{GROUPS}/*/type")


def size_text(size: int) -> str:
    """``256 MiB``, ``128 GiB``."""
    return f"{size // _LARGE} GiB" if size >= _LARGE else f"{size // _MIB} MiB"


def _bars(facts: Facts) -> Iterator[Finding]:
    code, source = "firmware.resizable_bar", f"{pcie_tree.DEVICES}/*/resource"
    expected = "BAR1 as large as the card offers"
    if not facts.bars:
        yield _finding(
            code, "info", "not applicable: no NVIDIA GPU that the host itself uses", expected, _WHY_BAR, source
        )
        return
    short = [bar for bar in facts.bars if (bar.largest_bytes or 0) > bar.bytes]
    right = [bar for bar in facts.bars if bar not in short and (bar.bytes >= _LARGE or bar.largest_bytes)]
    rest = [bar for bar in facts.bars if bar not in short and bar not in right]
    if short:
        fix = "In the firmware's setup: Above 4G Decoding and Resizable BAR on"
        shown = grouped(
            (f"{size_text(bar.bytes)} of {size_text(bar.largest_bytes or 0)}", bar.address) for bar in short
        )
        yield _finding(code, "p1_reboot", shown, expected, _WHY_BAR, source, fix)
    if right:
        shown = grouped((size_text(bar.bytes), bar.address) for bar in right)
        yield _finding(code, "good", shown, expected, _WHY_BAR, source)
    if rest:
        why_not = "the card shows no other size" if facts.root else "unknown: needs root to see what the card offers"
        shown = grouped((f"{size_text(bar.bytes)}; {why_not}", bar.address) for bar in rest)
        yield _finding(code, "info" if facts.root else "unknown", shown, expected, _WHY_BAR, source)


def grouped(values: Iterable[tuple[str, str]]) -> str:
    """``128 GiB: all 8`` where all are alike, else each value with its addresses."""
    groups: dict[str, list[str]] = {}
    for value, address in values:
        groups.setdefault(value, []).append(address)
    if len(groups) == 1:
        value, addresses = next(iter(groups.items()))
        return f"{value}: {addresses[0] if len(addresses) == 1 else f'all {len(addresses)}'}"
    return "; ".join(f"{value}: {', '.join(found)}" for value, found in groups.items())


def _numa_finding(facts: Facts) -> Finding:
    code, why = "firmware.numa", "More nodes a socket (NPS, SNC) make memory near a GPU's own node nearer. Not judged."
    if not facts.nodes:
        return _finding(code, "unknown", "unknown: the kernel shows no NUMA node", "", why, NODES)
    each = facts.nodes // facts.sockets if facts.sockets and facts.nodes % facts.sockets == 0 else 0
    sockets = f"{facts.sockets} socket{'s' if facts.sockets != 1 else ''}"
    nodes = f"{facts.nodes} NUMA node{'s' if facts.nodes != 1 else ''}"
    return _finding(code, "info", f"{nodes} on {sockets}" + (f", {each} each" if each > 1 else ""), "", why, NODES)


def _secure_boot(facts: Facts) -> Finding:
    code, why = "firmware.secure_boot", "With it a module that DKMS signed with a key that nobody enrolled is refused."
    source = secure_boot.SECURE_BOOT
    modules = "; the kernel takes signed modules only" if facts.signed_modules_only else ""
    if not facts.uefi:
        return _finding(code, "info", f"not applicable: no UEFI{modules}", "", why, EFI)
    if facts.secure_boot is None:
        return _finding(code, "unknown", f"unknown: the EFI variable can't be read{modules}", "", why, source)
    return _finding(code, "info", ("on" if facts.secure_boot else "off") + modules, "", why, source)


def _lockdown(facts: Facts) -> Finding:
    code, why = "firmware.lockdown", "From integrity on nobody may write PCI configuration space (pcie.locked_down)."
    if not facts.lockdown and not facts.securityfs:
        reason = "needs root" if not facts.root else f"{_SECURITY} is not mounted"
        return _finding(code, "unknown", f"unknown: {reason}", "", why, secure_boot.LOCKDOWN)
    observed = facts.lockdown or "not applicable: this kernel has no lockdown"
    return _finding(code, "info", observed, "", why, secure_boot.LOCKDOWN)
