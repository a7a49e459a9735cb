"""The domain *driver*: what is loaded, what lies on disk, what programs link, and with which parameters.

Sources: /sys/module/nvidia, /proc/driver/nvidia/{version,params}; modinfo(8) for the module on disk; ``nvidia-smi
--version``, which opens no GPU.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from . import boot, driver_facts
from .documents import Finding, Severity
from .driver_support import flavour_of
from .host_io import Host

DOMAIN = "driver"
LOADED = "/sys/module/nvidia/version"
PARAMETERS = "/proc/driver/nvidia/params"
OF_INTEREST = {
    "EnableStreamMemOPs": "0", "EnablePCIERelaxedOrderingMode": "0", "EnableResizableBar": "0",
    "NvLinkDisable": "0", "EnableMSI": "1", "UsePageAttributeTable": "4294967295", "RegistryDwords": "",
    "RegistryDwordsPerDevice": "", "PreserveVideoMemoryAllocations": "0", "GrdmaPciTopoCheckOverride": "0",
    "DmaRemapPeerMmio": "1", "EnableUserNUMAManagement": "1", "InitializeSystemMemoryAllocations": "1",
    "RmProfilingAdminOnly": "1", "ModifyDeviceFiles": "1", "ExcludedGpus": "", "GpuBlacklist": "",
    "CoherentGPUMemoryMode": "",
}  # fmt: skip
"""Parameters (as the driver's own file has them, without ``NVreg_``) that GPU work notices, and their defaults."""

_FIELD = re.compile(r"^(\w+):[ \t]*(.*)$", re.MULTILINE)
_CUDA = re.compile(r"^CUDA Version\s*:\s*(\d+\.\d+)", re.MULTILINE)
_UVM = {"uvm_disable_hmm": "N"}


@dataclass(frozen=True)
class Facts:
    """What was read; empty where there is none."""

    gpus: int = 0
    loaded: str = ""
    flavour: str = ""
    """``open`` or ``proprietary``, of the loaded module."""
    on_disk: str = ""
    on_disk_flavour: str = ""
    path: str = ""
    """The module that the running kernel would load; empty where it has none."""
    release: str = ""
    libraries: str = ""
    cuda: str = ""
    parameters: dict[str, str] = field(default_factory=dict)
    """Those of OF_INTEREST that are not at their default, and nvidia_uvm's."""
    unknown: str = ""
    """Why the module on disk is not known."""


def read(host: Host) -> Facts:
    """Files, and two programs: modinfo for one module, nvidia-smi for its version."""
    release = host.read_line("/proc/sys/kernel/osrelease")
    loaded = host.read_line(LOADED)
    path = boot.module_files(host, release).get("nvidia") or ""
    info, unknown = _modinfo(host, path) if path else ({}, "")
    smi = host.run(["nvidia-smi", "--version"], timeout_s=10) if loaded else None
    cuda = _CUDA.search(smi.stdout) if smi is not None and smi.rc == 0 else None
    return Facts(
        gpus=len(driver_facts.read_gpus(host)),
        loaded=loaded,
        flavour=flavour_of(driver_facts.loaded_license(host)),
        on_disk=info.get("version", ""),
        on_disk_flavour=flavour_of(info.get("license", "")),
        path=path,
        release=release,
        libraries=driver_facts.library_version(host) or "",
        cuda=cuda[1] if cuda else "",
        parameters=_parameters(host),
        unknown=unknown,
    )


def _modinfo(host: Host, path: str) -> tuple[dict[str, str], str]:
    result = host.run(["modinfo", path], timeout_s=10)
    if result.rc != 0:
        return {}, f"modinfo: {result.last_line}"
    # "parm:" and "alias:" come many times; version and license once.
    return dict(_FIELD.findall(result.stdout)), ""


def _parameters(host: Host) -> dict[str, str]:
    said = {name: value.strip().strip('"') for name, value in _FIELD.findall(host.read(PARAMETERS) or "")}
    changed = {name: said[name] for name, usual in OF_INTEREST.items() if said.get(name, usual) != usual}
    uvm = {name: host.read_line(f"/sys/module/nvidia_uvm/parameters/{name}") for name in _UVM}
    return {**changed, **{name: value for name, value in uvm.items() if value not in ("", _UVM[name])}}


def findings(facts: Facts) -> tuple[Finding, ...]:
    """All of them; one where there is neither GPU nor driver."""
    if not facts.loaded:
        why = "What is on disk and in user space counts only with a loaded driver."
        if not facts.gpus and not facts.path:
            return (_finding("driver.version", "info", "not applicable: no NVIDIA GPU, no driver", why, LOADED),)
        on_disk = f"{facts.on_disk} is on disk" if facts.on_disk else f"no module for {facts.release}"
        # That GPUs are without their driver is said by gpu.not_answering.
        return (_finding("driver.version", "info", f"not loaded; {on_disk}", why, LOADED),)
    return (_version(facts), _pending(facts), _parameter_finding(facts))


def _finding(
    code: str, severity: Severity, observed: str, why: str, source: str, fix: str = "", expected: str = ""
) -> Finding:
    return Finding(code, DOMAIN, severity, observed, expected, why, fix, source)


def _version(facts: Facts) -> Finding:
    cuda = f", CUDA up to {facts.cuda}" if facts.cuda else ""
    why = "Which GPUs and kernels it knows: the plan of a roll compares them."
    observed = f"{facts.loaded}, {facts.flavour or 'unknown'} modules{cuda}"
    return _finding("driver.version", "info", observed, why, LOADED)


def _pending(facts: Facts) -> Finding:
    """Loaded, on disk and in user space: one version, or nothing new can use a GPU before a reboot (or soon)."""
    code, expected = "driver.reboot_pending", "one version: loaded, on disk, in user space"
    why = "Libraries refuse a module of another version: what is stopped now can't use a GPU again before a reboot."
    texts = []
    if facts.on_disk and facts.on_disk != facts.loaded:
        texts.append(f"on disk for {facts.release}: {facts.on_disk}")
    if facts.on_disk and facts.on_disk_flavour and facts.flavour and facts.on_disk_flavour != facts.flavour:
        texts.append(f"on disk are the {facts.on_disk_flavour} modules, loaded the {facts.flavour} ones")
    if facts.libraries and facts.libraries != facts.loaded:
        texts.append(f"libraries: {facts.libraries}")
    if texts:
        fix = "Reboot; or stop every GPU user, unload the nvidia modules and load them again"
        return _finding(code, "p1_reboot", f"loaded: {facts.loaded}; {'; '.join(texts)}", why, LOADED, fix, expected)
    if not facts.path:
        observed = f"{facts.loaded} is loaded, and no file of it is there for {facts.release}"
        return _finding(code, "info", observed, f"{why} No boot of this kernel would find it.", LOADED, "", expected)
    if facts.unknown or not facts.on_disk:
        observed = f"unknown: {facts.unknown or f'{facts.path} says no version'}"
        return _finding(code, "unknown", observed, why, facts.path, "", expected)
    libraries = "in user space" if facts.libraries else "no libraries on the host itself"
    return _finding(code, "good", f"{facts.loaded}: loaded, on disk, {libraries}", why, LOADED, "", expected)


def _parameter_finding(facts: Facts) -> Finding:
    why = "Options of /etc/modprobe.d, as the loaded modules have them; the rest is at the driver's defaults."
    shown = ", ".join(f"{name}={value}" for name, value in facts.parameters.items())
    return _finding("driver.parameters", "info", shown or "all at their defaults", why, PARAMETERS)
