"""What the proofs look at. Each file is read once and each program runs once, and only if a proof asks for it."""

from __future__ import annotations

import re
from functools import cached_property

from . import dkms, dkms_tree, driver_facts, driver_source, loaders, needed_modules, survey, target_modules
from .apt import PackageState
from .causes import cause
from .documents import Proof
from .host_io import Host
from .rollfile import Roll

MODPROBE_FOLDERS = ("/etc/modprobe.d", "/run/modprobe.d", "/usr/local/lib/modprobe.d", "/usr/lib/modprobe.d")
_NVIDIA_FILE = re.compile(r"/nvidia[^/]*\.ko(?:\.\w+)?$")


def proof(name: str, ok: bool, code: str, observed: str, expected: str, next_step: str = "") -> Proof:
    """A proof; cause and next step only where it does not hold."""
    return Proof(name, ok, None if ok else code, observed, expected, "" if ok else next_step or cause(code).next_step)


def warning(name: str, ok: bool, code: str, observed: str, expected: str) -> Proof:
    """A proof that stops nothing where it does not hold."""
    return Proof(name, ok, None if ok else code, observed, expected, "" if ok else cause(code).next_step, blocks=False)


class Evidence:
    """One host and the kernel that it is to boot next."""

    def __init__(self, host: Host, roll: Roll) -> None:
        self.host = host
        self.roll = roll
        self.target = roll.target
        self.running = host.read_line("/proc/sys/kernel/osrelease")
        self.loader = loaders.of(host)
        self.state = self.loader.read()
        self.entry = self.state.entry(self.target)

    @property
    def command_line(self) -> str:
        """The target's, as its entry has it."""
        return self.entry.options if self.entry else ""

    @property
    def image_path(self) -> str:
        """The target's initramfs."""
        return f"/boot/initrd.img-{self.target}"

    @cached_property
    def packages(self) -> dict[str, PackageState]:
        """dpkg's view of every package. Raises Stop(apt.failed) where it can't be had."""
        return survey.read_packages(self.host)

    @cached_property
    def versions(self) -> dict[str, str]:
        """Installed package -> its version."""
        return {name: state.version for name, state in self.packages.items() if state.installed}

    # --- the target's modules

    @cached_property
    def files(self) -> list[str]:
        """All files of the target's module tree."""
        return self.host.files_below(f"/lib/modules/{self.target}")

    def index_file(self, name: str) -> str:
        """modules.dep and its like."""
        return self.host.read(f"/lib/modules/{self.target}/{name}") or ""

    @cached_property
    def dep(self) -> str:
        """The text of modules.dep."""
        return self.index_file("modules.dep")

    @cached_property
    def modules(self) -> target_modules.Target:
        """What the target's modprobe knows."""
        return target_modules.provided(self.index_file("modules.builtin"), self.dep)

    @cached_property
    def ground(self) -> needed_modules.Ground:
        """What the running system stands on."""
        return needed_modules.ground(self.host, self.state.esps)

    @cached_property
    def driver_files(self) -> dict[str, str]:
        """NVIDIA module -> its file for the target, for those that there are."""
        return dkms.find_modules((path for path in self.files if _NVIDIA_FILE.search(path)), dkms.NVIDIA_MODULES)

    @cached_property
    def information(self) -> dict[str, dict[str, str]]:
        """``modinfo`` of the driver's modules and of what else was built for the target and is needed to boot."""
        built = {target_modules.canonical(item.module) for item in self.ground.modules if item.foreign}
        others = dkms.find_modules((path for path in self.files if target_modules.is_foreign(path)), built)
        return module_information(self.host, [*self.driver_files.values(), *others.values()])

    # --- the driver

    @cached_property
    def dkms_status(self) -> list[dkms.DkmsLine]:
        """All of DKMS's modules, those for the target compared with what lies in its tree."""
        return dkms_tree.read_status(self.host, self.files, self.target)

    @cached_property
    def source(self) -> driver_source.DriverSource:
        """Where the running kernel's driver comes from."""
        return driver_facts.read_source(self.host, self.running, self.versions, self.dkms_status, self.running_files)

    @cached_property
    def running_files(self) -> list[str]:
        """The running kernel's NVIDIA modules."""
        return driver_facts.running_files(self.host, self.running)

    @cached_property
    def driver_modules(self) -> tuple[str, ...]:
        """The NVIDIA modules that this host needs."""
        loaded = driver_source.loaded_modules(self.host.read("/proc/modules") or "")
        return driver_source.needed_modules(self.running_files, loaded)

    def of_module(self, module: str, field: str) -> str:
        """A field of ``modinfo`` of one of the driver's modules; empty where it has none."""
        return self.information.get(self.driver_files.get(module, ""), {}).get(field, "")

    @cached_property
    def modprobe_files(self) -> dict[str, bytes]:
        """The host's modprobe.d, path -> bytes."""
        paths = [f"{folder}/{name}" for folder in MODPROBE_FOLDERS for name in self.host.names(folder)]
        found = {path: self.host.read_bytes(path) for path in paths if path.endswith(".conf")}
        return {path: data for path, data in found.items() if data is not None}


def module_information(host: Host, paths: list[str]) -> dict[str, dict[str, str]]:
    """``modinfo`` of several module files in one call: path -> field -> value (the first, where one repeats)."""
    if not paths:
        return {}
    found: dict[str, dict[str, str]] = {}
    current: dict[str, str] = {}
    for line in host.run(["modinfo", *paths]).stdout.splitlines():
        key, colon, value = line.partition(":")
        if key == "filename":
            current = found.setdefault(value.strip(), {})
        elif colon:
            current.setdefault(key, value.strip())
    return found
