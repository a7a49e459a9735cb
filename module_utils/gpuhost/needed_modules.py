"""Which kernel modules this host needs to boot and to be reached.

What is needed is read from what works now: the mounts and the default route, from there down through /sys to every
driver on the way to the hardware. Only a module that is loaded, or that the running kernel has built in, counts: a
table of names alone would ask for modules that nobody has.

Files only, no programs. Source of the places in /sys: Documentation/ABI/{stable,testing}/sysfs-* of the kernel.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Collection
from dataclasses import dataclass

from .host_io import Host
from .target_modules import Needed, canonical, is_foreign, provided

#: Mount points whose devices must be there for the host to come up, and what they are for.
MOUNTS = {"/": "root", "/usr": "usr", "/boot": "boot", "/boot/efi": "ESP", "/efi": "ESP"}
_FILE_SYSTEM_MODULES = {"ext2": "ext4", "ext3": "ext4", "nfs4": "nfsv4"}
#: Drivers whose module has another name, for where the running kernel has them built in.
_DRIVER_MODULES = {"sd": "sd_mod", "sr": "sr_mod", "vbd": "xen_blkfront", "vif": "xen_netfront"}
_NET_KINDS = {"bond": "bonding", "vlan": "8021q"}
_DM_KINDS = {"CRYPT": "dm_crypt", "mpath": "dm_multipath", "LVM": "dm_mod"}
ROUTE = "default route"
_UP, _REJECT = 0x1, 0x200


@dataclass(frozen=True)
class Card:
    """A network card that the default route goes through."""

    name: str
    mac: str
    driver: str


@dataclass(frozen=True)
class Ground:
    """What the host stands on: the modules that it needs, and the cards of its default route."""

    modules: tuple[Needed, ...]
    cards: tuple[Card, ...]

    def purposes(self) -> tuple[str, ...]:
        """What the modules are for, in the order in which it was found."""
        return tuple(dict.fromkeys(item.purpose for item in self.modules))


def needed(host: Host, esps: Collection[str] = ()) -> tuple[Needed, ...]:
    """The modules of :func:`ground`."""
    return ground(host, esps).modules


def ground(host: Host, esps: Collection[str] = ()) -> Ground:
    """The modules for root, /usr, /boot, the ESPs and the interfaces of the default route. Acts on nothing.

    esps  mount points or device nodes (/dev/...) of further ESPs, which Proxmox does not keep mounted
    """
    reader = _Reader(host)
    mounts = _mounts(host)
    for point, purpose in {**MOUNTS, **dict.fromkeys(esps, "ESP")}.items():
        if point.startswith("/dev/"):
            reader.disk(purpose, posixpath.basename(reader.place(point) or point))
        elif point in mounts:
            reader.mount(purpose, *mounts[point])
    for interface in default_interfaces(host):
        reader.interface(ROUTE, interface)
    return Ground(tuple(reader.found), tuple(reader.cards.values()))


def physical_cards(host: Host) -> tuple[str, ...]:
    """The interfaces that are hardware, of this host or of its hypervisor."""
    names = host.names("/sys/class/net")
    return tuple(name for name in names if host.exists(f"/sys/class/net/{name}/device"))


def _mounts(host: Host) -> dict[str, tuple[str, str, str, str]]:
    """mount point -> (major:minor, file system, source, its options); of several mounts on one point the topmost."""
    found = {}
    for line in (host.read("/proc/self/mountinfo") or "").splitlines():
        left, separator, right = line.partition(" - ")
        fields, source = left.split(), right.split()
        if separator and len(fields) > 4 and len(source) > 2:
            found[fields[4]] = (fields[2], source[0], source[1], source[2])
    return found


def default_interfaces(host: Host) -> tuple[str, ...]:
    """The interfaces of the default routes, per address family those with the lowest metric."""
    routes: dict[str, list[tuple[int, str]]] = {"4": [], "6": []}
    for line in (host.read("/proc/net/route") or "").splitlines()[1:]:
        fields = line.split()
        if len(fields) > 7 and fields[1] == fields[7] == "00000000" and int(fields[3], 16) & (_UP | _REJECT) == _UP:
            routes["4"].append((int(fields[6]), fields[0]))
    for line in (host.read("/proc/net/ipv6_route") or "").splitlines():
        fields = line.split()
        default = len(fields) > 9 and fields[0] == "0" * 32 and fields[1] == "00" and fields[9] != "lo"
        if default and int(fields[8], 16) & (_UP | _REJECT) == _UP:
            routes["6"].append((int(fields[5], 16), fields[9]))
    best = [name for found in routes.values() for metric, name in found if metric == min(found)[0]]
    return tuple(dict.fromkeys(best))


class _Reader:
    """Collects what is needed while it walks down through /sys. Links there are relative, so a test's tree works."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self.root = str(host.path("/").resolve()).rstrip("/")
        self.found: dict[Needed, None] = {}
        self.cards: dict[str, Card] = {}
        self.seen: set[tuple[str, str]] = set()
        tree = f"/lib/modules/{host.read_line('/proc/sys/kernel/osrelease')}"
        self.running = provided(host.read(f"{tree}/modules.builtin") or "", host.read(f"{tree}/modules.dep") or "")

    def place(self, path: str) -> str | None:
        """Where a path leads, as the host's own path."""
        found = self.host.resolved(path)
        return found.removeprefix(self.root) if found is not None else None

    def target_name(self, path: str) -> str:
        """The last part of where a link leads; empty where there is none."""
        return posixpath.basename(self.place(path) or "")

    def add(
        self, purpose: str, device: str, module: str, driver: str = "", modalias: str = "", guess: bool = False
    ) -> None:
        """Count a module in where the running kernel has it loaded or built in."""
        name = module.replace("-", "_")
        paths = self.running.index.get(canonical(module), ("",))
        if self.host.exists(f"/sys/module/{name}/initstate"):
            foreign = paths[0] if is_foreign(paths[0]) else ""
            self.found[Needed(purpose, device, driver or name, name, modalias, foreign, guess)] = None
        elif canonical(module) in self.running.builtin:
            self.found[Needed(purpose, device, driver or name, name, modalias, "", guess)] = None

    def mount(self, purpose: str, number: str, kind: str, source: str, options: str) -> None:
        """A file system and the devices under it."""
        self.add(purpose, source, _FILE_SYSTEM_MODULES.get(kind, kind), kind)
        if kind == "zfs":
            self.add(purpose, source, "spl")
            members = self.pool_members(source.partition("/")[0])
        else:
            place = self.place(f"/sys/dev/block/{number}") or self.place(source)
            members = [posixpath.basename(place)] if place else []
        for key, _, value in (option.partition("=") for option in options.split(",")):
            if kind == "vfat" and key in ("codepage", "iocharset"):
                self.add(purpose, source, f"nls_{'cp' if key == 'codepage' else ''}{value}")
        if kind == "btrfs":
            folders = [f"/sys/fs/btrfs/{name}/devices" for name in self.host.names("/sys/fs/btrfs")]
            mine = [names for names in map(self.host.names, folders) if set(members) & set(names)]
            members += [name for names in mine for name in names]
        for name in members:
            self.disk(purpose, name)

    def pool_members(self, pool: str) -> list[str]:
        """The devices of a ZFS pool as udev knows them; every disk where it knows none."""
        found = []
        for name in self.host.names("/run/udev/data"):
            lines = (self.host.read(f"/run/udev/data/{name}") or "").splitlines() if name.startswith("b") else []
            if "E:ID_FS_TYPE=zfs_member" in lines and f"E:ID_FS_LABEL={pool}" in lines:
                found.append(self.target_name(f"/sys/dev/block/{name[1:]}"))
        return found or self.host.names("/sys/block")

    def disk(self, purpose: str, name: str) -> None:
        """A disk or partition, down to the hardware."""
        path = self.place(f"/sys/class/block/{name}")
        if path is None or (purpose, name) in self.seen:
            return
        self.seen.add((purpose, name))
        if self.host.exists(f"{path}/partition"):
            self.disk(purpose, posixpath.basename(posixpath.dirname(path)))
            return
        for lower in self.host.names(f"{path}/slaves"):
            self.disk(purpose, lower)
        if level := self.host.read_line(f"{path}/md/level"):
            self.add(purpose, name, "md_mod", "md")
            self.add(purpose, name, "raid456" if level in ("raid4", "raid5", "raid6") else level)
        elif identity := self.host.read_line(f"{path}/dm/uuid"):
            self.device_mapper(purpose, name, identity)
        elif "/virtual/nvme-subsystem/" in path:  # the head of a multipath NVMe; the controllers lie beside it
            subsystem = posixpath.dirname(path)
            for controller in self.host.names(subsystem):
                if re.fullmatch(r"nvme\d+", controller):
                    self.hardware(purpose, name, f"{subsystem}/{controller}")
        elif "/virtual/" in path:
            self.add(purpose, name, "zfs" if name.startswith("zd") else name.rstrip("0123456789"))
        else:
            self.hardware(purpose, name, path)

    def device_mapper(self, purpose: str, name: str, identity: str) -> None:
        """/sys does not say which targets a volume has: of LVM's all that are loaded count, as a guess.

        What lies below it, such as crypt or multipath, is a device of its own and found as one.
        """
        self.add(purpose, name, "dm_mod", "device-mapper")
        kind = re.sub(r"^part\d+-", "", identity).split("-")[0]
        self.add(purpose, name, _DM_KINDS.get(kind, "dm_mod"))
        for module in self.host.names("/sys/module") if kind == "LVM" else ():
            if module.startswith("dm_") and module != "dm_mod":
                self.add(purpose, name, module, guess=True)

    def hardware(self, purpose: str, name: str, path: str) -> None:
        """The driver of a device and of each device that it hangs from."""
        place = self.place(path)
        while place and place.startswith("/sys/devices/"):
            driver = self.target_name(f"{place}/driver")
            if driver:
                module = self.target_name(f"{place}/driver/module") or _DRIVER_MODULES.get(driver, driver)
                self.add(purpose, name, module, driver, self.host.read_line(f"{place}/modalias"))
            place = posixpath.dirname(place)

    def interface(self, purpose: str, name: str, port: bool = False) -> None:
        """A network interface, through bridge, bond and vlan down to the cards. ``port``: reached through another."""
        path = f"/sys/class/net/{name}"
        if (purpose, name) in self.seen or not self.host.exists(path):
            return
        self.seen.add((purpose, name))
        if self.host.exists(f"{path}/device"):
            self.hardware(purpose, name, f"{path}/device")
            self.hardware(purpose, name, f"{path}/phydev")
            driver = self.target_name(f"{path}/device/driver")
            self.cards[name] = Card(name, self.host.read_line(f"{path}/address"), driver)
            return
        kind = re.search(r"^DEVTYPE=(\S+)", self.host.read(f"{path}/uevent") or "", re.MULTILINE)
        if kind:
            self.add(purpose, name, _NET_KINDS.get(kind[1], kind[1]))
        lower = [item.removeprefix("lower_") for item in self.host.names(path) if item.startswith("lower_")]
        if not lower and port and not kind:  # the host's end of a container or a virtual machine: no way out
            return
        if not lower:  # Open vSwitch and tunnels do not show what is below: each card that is up
            self.add(purpose, name, "openvswitch")
            lower = [
                item
                for item in physical_cards(self.host)
                if self.host.read_line(f"/sys/class/net/{item}/operstate") == "up"
            ]
        for item in lower:
            self.interface(purpose, item, port=True)
