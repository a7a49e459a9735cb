"""GPUs, systemd and modprobe for tests of gpu_runtime: nvidia-smi answers from a table and forgets it at a boot.

The table's first values are those of tests/fixtures/gpu/h200-x2; what the real program answers is in its query_*.csv.
"""

from __future__ import annotations

import os
from pathlib import Path

from fake_host import Answer, FakeHost

from gpuhost import gpu_query, mig, unit_state
from gpuhost.persistenced import UNIT

FIXTURES = Path(__file__).parents[1] / "fixtures/gpu"
FIRST, SECOND = "0000:00:06.0", "0000:00:07.0"
FIELDS = (*gpu_query.BASE, *gpu_query.NEW)
_LIMITS = {"power.limit": "700.00", "clocks.applications.memory": "3201", "clocks.applications.graphics": "1980"}


class Machine:
    """Two GPUs, one unit of nvidia-persistenced and what containers need, on a fake host."""

    def __init__(self, host: FakeHost) -> None:
        self.host = host
        lines = (FIXTURES / "h200-x2/query_new.csv").read_text().splitlines()
        self.gpus = [dict(zip(FIELDS, line.split(", "), strict=True)) for line in lines]
        self.instances: dict[int, list[str]] = {0: [], 1: []}
        self.locked: dict[int, str] = {}
        self.deaf: set[str] = set()
        self.unknown_fields: set[str] = set()
        self.enabled: set[str] = set()
        self.active: set[str] = set()
        self.modprobe_fails = ""
        for number, address in enumerate((FIRST, SECOND), 6):
            host.put(f"/sys/bus/pci/devices/{address}/vendor", "0x10de\n")
            host.put(f"/sys/bus/pci/devices/{address}/class", "0x030200\n")
            host.put(f"/sys/bus/pci/devices/{address}/device", f"0x233{number}\n")
        for path, text in {
            "/sys/module/nvidia/taint": "OE\n",
            "/sys/module/nvidia_uvm/parameters/uvm_disable_hmm": "N\n",
            "/proc/sys/kernel/osrelease": "6.8.12-4-pve\n",
            "/proc/sys/kernel/random/boot_id": "11111111-0000-4000-8000-000000000000\n",
            "/usr/bin/nvidia-persistenced": "",
            "/var/lib/gpuhost/lock": "",
        }.items():
            host.put(path, text)
        host.programs |= {
            ("nvidia-smi",): self.nvidia_smi,
            ("systemctl",): self.systemctl,
            ("modprobe",): self.modprobe,
            ("journalctl",): (1, "", ""),
            ("lxc-ls",): (0, "", ""),
        }

    def unit(self, which: str, *, enabled: bool = False, active: bool = False) -> None:
        """Install nvidia-persistenced as Ubuntu or Debian ship it."""
        text = (FIXTURES / f"synthetic/persistenced_{which}.service").read_text()
        self.host.put(f"/lib/systemd/system/{UNIT}", text)
        self.enabled |= {UNIT} if enabled else set()
        self.active |= {UNIT} if active else set()

    def containers(self) -> None:
        """Something that starts containers at boot."""
        self.host.put("/lib/systemd/system/lxc-net.service")

    def boot(self) -> None:
        """Power cycle: the driver starts with what it starts with."""
        for gpu in self.gpus:
            gpu.update(_LIMITS)
            gpu["persistence_mode"] = "Disabled"
        self.instances, self.locked = {0: [], 1: []}, {}
        self.host.remove("/run/gpuhost/gpu_locked_clocks.json")
        self.host.put("/proc/sys/kernel/random/boot_id", "22222222-0000-4000-8000-000000000000\n")

    def process(
        self, pid: int, name: str, cgroup: str, *, limit: str = "8388608", gpu: bool = True, init: bool = False
    ) -> None:
        """A process; ``gpu``: it has a GPU open; ``init``: it is process 1 of its container."""
        base = f"/proc/{pid}"
        self.host.put(f"{base}/comm", f"{name}\n")
        self.host.put(f"{base}/cgroup", f"0::{cgroup}\n")
        self.host.put(f"{base}/status", f"Name:\t{name}\nNSpid:\t{pid}{chr(9) + '1' if init else ''}\n")
        row = f"Max locked memory         {limit:<20} {limit:<20} bytes     \n"
        self.host.put(f"{base}/limits", f"Limit                     Soft Limit\nMax cpu time unlimited\n{row}")
        self.host.path(f"{base}/fd").mkdir(parents=True, exist_ok=True)
        os.symlink("/dev/nvidia0" if gpu else "/dev/null", self.host.path(f"{base}/fd/3"))

    # --- programs

    def _chosen(self, argv: list[str]) -> list[int]:
        if "-i" not in argv:
            return list(range(len(self.gpus)))
        names = argv[argv.index("-i") + 1].split(",")
        return [n for n, gpu in enumerate(self.gpus) if gpu_query.address_of(gpu["pci.bus_id"]) in names]

    def nvidia_smi(self, host: FakeHost, argv: list[str]) -> Answer:
        chosen = self._chosen(argv)
        query = next((word for word in argv if word.startswith("--query-gpu=")), None)
        if query:
            fields = query.partition("=")[2].split(",")
            bad = [name for name in fields if name in self.unknown_fields]
            if bad:
                return 2, f'Field "{bad[0]}" is not a valid field to query.\n\n', ""
            rows = (", ".join(self._value(self.gpus[n], name) for name in fields) for n in chosen)
            return 0, "".join(f"{row}\n" for row in rows), ""
        if argv[1] == "mig":
            return self._mig(argv, chosen)
        word, value = argv[3], argv[4] if len(argv) > 4 else ""
        for n in chosen if word not in self.deaf else ():
            self._set(n, word, value)
        return 0, "All done.\n", ""

    @staticmethod
    def _value(gpu: dict[str, str], name: str) -> str:
        return gpu["clocks_event_reasons.active" if name == gpu_query.OLD_REASONS else name]

    def _set(self, n: int, word: str, value: str) -> None:
        gpu = self.gpus[n]
        if word == "-pm":
            gpu["persistence_mode"] = "Enabled" if value == "1" else "Disabled"
        elif word == "-pl":
            gpu["power.limit"] = f"{float(value):.2f}"
        elif word == "-lgc":
            self.locked[n] = value
        elif word == "-rgc":
            self.locked.pop(n, None)
        elif word == "-ac":
            gpu["clocks.applications.memory"], gpu["clocks.applications.graphics"] = value.split(",")

    def _mig(self, argv: list[str], chosen: list[int]) -> Answer:
        on = [n for n in chosen if self.gpus[n]["mig.mode.current"] == "Enabled"]
        if "-lgip" in argv:
            return 0, (FIXTURES / "h200-x2/mig_lgip.txt").read_text(), ""
        if not on:
            return 0, "No MIG-enabled devices found.\n", ""
        rows = [(n, k, name) for n in on for k, name in enumerate(self.instances[n])]
        if "-lgi" in argv:
            return 0, "".join(f"|   {n}  MIG {name}   9   {k}   0:4     |\n" for n, k, name in rows), ""
        if "-dgi" in argv:
            self.instances[on[0]].pop(int(argv[argv.index("-gi") + 1]))
        if "-cgi" in argv:
            self.instances[on[0]] += mig.names_of(argv[argv.index("-cgi") + 1])
        return 0, "", ""

    def systemctl(self, host: FakeHost, argv: list[str]) -> Answer:
        verb, unit = argv[1], argv[2] if len(argv) > 2 else ""
        text = self._text(unit)
        if verb == "show":
            return 0, self._shown(unit, text), ""
        if verb == "is-enabled":
            state = self._enabled(unit, text)
            return (0 if state == "enabled" else 1), f"{state}\n" if text else "", ""
        if verb == "is-active":
            return (0, "active\n", "") if unit in self.active else (3, "inactive\n", "")
        if verb in ("enable", "start") and not text:
            return 1, "", f"Failed to {verb} unit: Unit file {unit} does not exist."
        if verb in ("enable", "disable"):
            link = f"/etc/systemd/system/multi-user.target.wants/{unit}"
            self.enabled ^= ({unit} & self.enabled) ^ ({unit} if verb == "enable" else set())
            if verb == "enable":
                host.link(link, f"/etc/systemd/system/{unit}")
            else:
                host.remove(link)
        elif verb in ("start", "stop"):
            self.active ^= ({unit} & self.active) ^ ({unit} if verb == "start" else set())
        return 0, "", ""

    def _text(self, unit: str) -> str:
        """The unit's file and its drop-ins."""
        own = next((t for f in unit_state.UNIT_FOLDERS if (t := self.host.read(f"{f}/{unit}")) is not None), "")
        folder = f"/etc/systemd/system/{unit}.d"
        drop_ins = "".join(self.host.read(f"{folder}/{name}") or "" for name in self.host.names(folder))
        return own + drop_ins if own else ""

    def _enabled(self, unit: str, text: str) -> str:
        return "enabled" if unit in self.enabled else "disabled" if "[Install]" in text else "static"

    def _shown(self, unit: str, text: str) -> str:
        """systemctl show, for the properties that are asked for."""
        if not text:
            return "LoadState=not-found\nUnitFileState=\nActiveState=inactive\n"
        commands = [line.partition("=")[2] for line in text.splitlines() if line.startswith("ExecStart=")]
        before = [word for line in text.splitlines() if line.startswith("Before=") for word in line[7:].split()]
        unneeded = [line for line in text.splitlines() if line.startswith("StopWhenUnneeded=")]
        argv = f"{{ path=/usr/bin/nvidia-persistenced ; argv[]={commands[-1]} ; ignore_errors=no ; pid=0 }}"
        return (
            f"LoadState=loaded\nUnitFileState={self._enabled(unit, text)}\n"
            f"ActiveState={'active' if unit in self.active else 'inactive'}\nExecStart={argv}\n"
            f"Before=shutdown.target {' '.join(before)}\nFragmentPath=/lib/systemd/system/{unit}\n"
            f"StopWhenUnneeded={'yes' if unneeded and unneeded[-1].endswith('true') else 'no'}\n"
        )

    def modprobe(self, host: FakeHost, argv: list[str]) -> Answer:
        if self.modprobe_fails:
            return 1, "", f"modprobe: ERROR: could not insert '{argv[-1]}': {self.modprobe_fails}\n"
        folder = f"/sys/module/{argv[-1].replace('-', '_')}"
        if argv[1] == "-r":
            host.remove_empty_folder(folder)
        else:
            host.path(folder).mkdir(parents=True)
        return 0, "", ""
