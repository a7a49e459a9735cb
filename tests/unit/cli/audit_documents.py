"""Fixed audits (synthetic): a host as in the incident, the same one after tuning and a boot, one without root."""

from __future__ import annotations

from typing import Any

GPUS = "0000:01:00.0, 0000:21:00.0, 0000:41:00.0, 0000:61:00.0, 0000:81:00.0, 0000:a1:00.0, 0000:c1:00.0, 0000:e1:00.0"


def finding(code: str, domain: str, severity: str, observed: str, expected: str = "", **more: str) -> dict[str, str]:
    return {
        "id": code, "domain": domain, "severity": severity, "observed": observed, "expected": expected,
        "why": "", "fix": "", "source": "", **more,
    }  # fmt: skip


def audit(host: str, *findings: dict[str, str], **more: Any) -> dict[str, Any]:
    return {
        "schema": "gpuhost.audit", "schema_version": 1, "host": host, "run_id": "20261130T011450Z-9f3c",
        "taken_at": "2026-11-30T01:14:50Z", "kernel": "6.8.12-1-pve", "boot_id": "11111111-0000-4000-8000-000000000000",
        "as_root": True, "seconds": 1.42, "parts": [], "findings": list(findings), **more,
    }  # fmt: skip


REQUEST = {"domain": "pcie", "expected": "4096 bytes", "why": "Fewer, larger reads; gpuhost claims no effect."}
INCIDENT = (
    finding(
        "lxc.stale_major", "containers", "security",
        "141.conf allows c 504, which is now the driver of a tape | a <disk>", "c 509 (nvidia-uvm)",
        why="A stale number opens another driver's device to the container.", fix="gpuhost reconcile",
        source="/etc/pve/lxc/141.conf",
    ),
    finding(
        "sysctl.value", "kernel_runtime", "p0_runtime",
        "kernel.numa_balancing reads 1; at a boot no file sets it", "0",
        why="The kernel unmaps pages to see who touches them.", fix="gpuhost tune",
        source="/proc/sys/kernel/numa_balancing",
    ),
    finding(
        "sysctl.overridden", "kernel_runtime", "p0_runtime",
        "/etc/sysctl.d/zzzz-vendor.conf:3 sets vm.swappiness = 60 after our file", "vm.swappiness = 10",
        why="systemd-sysctl reads all files in the order of their names, and the last one wins.",
        fix="Take the line out of /etc/sysctl.d/zzzz-vendor.conf, or rename that file so that it sorts first; it is "
        "not ours to edit",
        source="/etc/sysctl.d/zzzz-vendor.conf",
    ),
    finding("pcie.max_read_request", severity="p0_runtime", observed="512 bytes: 0000:01:00.0", fix="gpuhost tune",
            source="0000:01:00.0", **REQUEST),
    finding("pcie.max_read_request", severity="p0_runtime", observed="512 bytes: 0000:21:00.0", fix="gpuhost tune",
            source="0000:21:00.0", **REQUEST),
    finding("cpu.idle_states", "kernel_runtime", "p0_runtime", "C2 with 100 us latency on 256 CPUs",
            "none above 50 us", fix="gpuhost tune", source="/sys/devices/system/cpu/cpu*/cpuidle/state*"),
    finding(
        "cpu.scaling_driver", "kernel_runtime", "p1_reboot", "acpi-cpufreq instead of amd_pstate", "amd-pstate-epp",
        why="The pstate drivers let the CPU choose among all its frequencies within microseconds. No measured effect "
        "on decoding known.",
        fix="boot_config_cmdline: {amd_pstate: active}, then boot",
        source="/sys/devices/system/cpu/cpufreq/policy*/scaling_driver",
    ),
    finding("gpu.state_lost", "gpu_state", "unknown", "unknown: no state was recorded before the last reboot",
            "as before the last reboot", fix="gpuhost tune records it", source="/var/lib/gpuhost/gpu_state.json"),
    finding("firmware.iommu", "firmware", "good", "passthrough", "passthrough", source="/sys/kernel/iommu_groups"),
    finding("pcie.link", "pcie", "good", f"32 GT/s x16: {GPUS}", "what both ends can do", source="/sys"),
    finding("interconnect.bmc", "interconnect", "info", "0000:52:00.0 is ASPEED BMC graphics, no NVSwitch",
            source="/sys/bus/pci/devices"),
)  # fmt: skip
BEFORE = audit("gpu1.example.com", *INCIDENT)

AFTER = audit(
    "gpu1.example.com",
    *(item for item in INCIDENT if item["severity"] in ("security", "good", "info")),
    finding("sysctl.value", "kernel_runtime", "good", "kernel.numa_balancing reads 0; at a boot "
            "/etc/sysctl.d/zzz-gpuhost.conf:4 sets kernel.numa_balancing = 0", "0",
            source="/proc/sys/kernel/numa_balancing"),
    INCIDENT[2],
    finding("pcie.max_read_request", severity="good", observed="4096 bytes: 0000:01:00.0, 0000:21:00.0",
            source="/sys/bus/pci/devices/*/config", **REQUEST),
    finding("cpu.idle_states", "kernel_runtime", "good", "C2 with 100 us latency on 256 CPUs, off",
            "none above 50 us", source="/sys/devices/system/cpu/cpu*/cpuidle/state*"),
    finding("cpu.scaling_driver", "kernel_runtime", "good", "amd-pstate-epp", "amd-pstate-epp",
            source="/sys/devices/system/cpu/cpufreq/policy*/scaling_driver"),
    finding("gpu.state_lost", "gpu_state", "p0_runtime", "0000:01:00.0: power limit was 500 W, is 600 W",
            "as before the last reboot", fix="Declare what is meant to stay, then gpuhost tune",
            source="/var/lib/gpuhost/gpu_state.json"),
    run_id="20261201T090000Z-0a0a", taken_at="2026-12-01T09:00:00Z", kernel="6.12.9-1-pve",
    boot_id="22222222-0000-4000-8000-000000000000",
)  # fmt: skip
NO_ROOT = audit(
    "gpu2.example.com",
    finding("sysctl.value", "kernel_runtime", "good", "vm.swappiness reads 10; at a boot no file sets it", "10"),
    finding("audit.not_read", "gpu_state", "unknown", "unknown: needs root (/var/lib/gpuhost: Permission denied)",
            "readable", fix="Run it as root", source="gpu_runtime"),
    as_root=False, kernel="6.1.0-32-amd64",
)  # fmt: skip
