"""A fake of Proxmox's ``pct`` for the fake host, after the real one's formats. No code of the real one.

Formats, refusals and exit statuses are those of pve-container 6 (PVE::CLI::pct, PVE::API2::LXC::Status), read in its
sources; Proxmox itself is not to be had here. What a task prints on the way is left out. Perl's die ends with 255, or
with the errno that was last set: only zero or not counts.
"""

from __future__ import annotations

import json
from pathlib import Path

from fake_host import Answer, FakeHost
from fake_tools import install_programs

from gpuhost import lxc_config

MEMBERS = "/etc/pve/.members"
STANDALONE = {"nodename": "node-a", "version": 0}
CLUSTER = {
    "nodename": "node-a", "version": 4,
    "cluster": {"name": "lab", "version": 2, "nodes": 2, "quorate": 1},
    "nodelist": {"node-a": {"id": 1, "online": 1, "ip": "192.0.2.1"}, "node-b": {"id": 2, "online": 1}},
}  # fmt: skip
CONFIG = """arch: amd64
hostname: llm
memory: 65536
ostype: debian
rootfs: local-zfs:subvol-{vmid}-disk-0,size=64G
unprivileged: 1
lxc.cgroup2.devices.allow: c 195:* rwm
lxc.mount.entry: /dev/nvidia0 dev/nvidia0 none bind,optional,create=file
"""
# What update_lxc_config writes at each start, shortened.
GENERATED = """lxc.cgroup.relative = 0
lxc.cgroup.dir.monitor = lxc.monitor/{vmid}
lxc.cgroup.dir.container = lxc/{vmid}
lxc.cgroup.dir.container.inner = ns
lxc.arch = amd64
lxc.include = /usr/share/lxc/config/debian.common.conf
lxc.rootfs.path = /var/lib/lxc/{vmid}/rootfs
"""


class FakePct:
    """The containers of one node. ``stubborn`` do not stop, ``broken`` do not start."""

    def __init__(self) -> None:
        self.running: set[str] = set()
        self.stubborn: set[str] = set()
        self.broken: set[str] = set()
        self.down = False
        self.started: list[str] = []
        self.stopped: list[str] = []

    def add(self, host: FakeHost, vmid: int, text: str = "", running: bool = True) -> None:
        """A container; ``text`` stands before the settings that each has."""
        host.put(f"/etc/pve/lxc/{vmid}.conf", text + CONFIG.format(vmid=vmid))
        if running:
            self.running.add(str(vmid))
            host.put(f"/var/lib/lxc/{vmid}/config", GENERATED.format(vmid=vmid))

    def __call__(self, host: FakeHost, argv: list[str]) -> Answer:
        if self.down or not host.exists(MEMBERS):
            return 255, "", "ipcc_send_rec[1] failed: Connection refused\nUnable to load access control list: ..."
        if argv[1] == "list":
            return 0, self._list(host), ""
        vmid = argv[2]
        config = host.read_bytes(f"/etc/pve/lxc/{vmid}.conf")
        if config is None:
            return 2, "", f"Configuration file 'nodes/node-a/lxc/{vmid}.conf' does not exist\n"
        if argv[1] == "status":
            return 0, f"status: {'running' if vmid in self.running else 'stopped'}\n", ""
        return self._act(host, argv, vmid, lxc_config.parse(config, "pve"))

    def _list(self, host: FakeHost) -> str:
        known = sorted(item for item in map(lxc_config.vmid_of, host.names("/etc/pve/lxc")) if item is not None)
        rows = [("VMID", "Status", "Lock", "Name")] if known else []
        for vmid in known:
            facts = lxc_config.parse(host.read_bytes(f"/etc/pve/lxc/{vmid}.conf") or b"", "pve").facts
            status = "running" if str(vmid) in self.running else "stopped"
            rows.append((str(vmid), status, facts.lock or "", facts.hostname or f"CT{vmid}"))
        return "".join(f"{row[0]:<10} {row[1]:<10} {row[2]:<12} {row[3]:<20}\n" for row in rows)

    def _act(self, host: FakeHost, argv: list[str], vmid: str, document: lxc_config.LxcDocument) -> Answer:
        members = json.loads(host.read(MEMBERS) or "{}")
        lock = document.facts.lock
        if argv[1] == "start":
            if vmid in self.running:
                return 255, "", f"CT {vmid} already running\n"
            if members.get("cluster", {}).get("quorate") == 0:
                return 255, "", "cluster not ready - no quorum?\n"
            if any(line.key == "template" and line.value == b"1" for line in document.entries()):
                return 255, "", "you can't start a CT if it's a template\n"
            if lock not in (None, "mounted"):
                return 255, "", f"CT is locked ({lock})\n"
            if vmid in self.broken:
                return 255, "", f"startup for container '{vmid}' failed\n"
            self.running.add(vmid)
            self.started.append(vmid)
            return 0, "", ""
        assert argv[1] == "shutdown"
        assert argv[3] == "--timeout"
        assert len(argv) == 5  # no --forceStop: that one kills
        if vmid not in self.running:
            return 255, "", f"CT {vmid} not running\n"
        if lock:
            return 255, "", f"CT is locked ({lock})\n"
        if vmid in self.stubborn:
            return 255, "", "container did not stop\n"
        self.running.discard(vmid)
        self.stopped.append(vmid)
        return 0, "", ""


def make_proxmox(host: FakeHost, members: dict[str, object] | None = None) -> FakePct:
    """Make a fake host one of Proxmox, in a cluster that is quorate unless ``members`` says something else."""
    host.put("/usr/bin/pmxcfs")
    host.put(MEMBERS, json.dumps(CLUSTER if members is None else members))
    host.path("/etc/pve/lxc").mkdir(parents=True, exist_ok=True)
    pct = FakePct()
    host.programs[("pct",)] = pct
    host.programs[("lxc-ls",)] = lambda there, _: (
        0, "".join(f"{name}\n" for name in sorted(there.running | pct.running)), ""
    )  # fmt: skip
    return pct


def proxmox_host(folder: Path, members: dict[str, object] | None = None) -> tuple[FakeHost, FakePct]:
    """A host with nothing but Proxmox on it."""
    host = FakeHost(folder)
    install_programs(host)
    return host, make_proxmox(host, members)
