"""A GPU host out of namespaces: real LXC with real cgroup v2 device rules, and a /proc/devices that the test writes.

Its own are: mounts, processes, network (nothing but loopback) and a branch of cgroup v2, mounted over /sys/fs/cgroup
because a machine whose controllers are on version 1 has version 2 elsewhere. /dev, /etc, /run, /tmp and /var are its
own, the rest of the file system is read-only: nothing that happens in there is left behind. It dies with the test.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import stat
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpuhost.host_io import Host, Result

ROOT = Path(__file__).resolve().parents[2]
LXC_FOLDER = "/var/lib/lxc"
RECORD = "/var/lib/gpuhost/majors.json"
PYTHON = os.path.realpath(sys.executable)
"""The interpreter behind the virtual environment: its prefix is what the containers mount."""
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# The branch is made and removed from outside of its cgroup namespace, whatever becomes of the test.
OUTER = """
mkdir "$FOLDER/cgroup"
mount -t cgroup2 cgroup2 "$FOLDER/cgroup"
branch="$FOLDER/cgroup/gpuhost-test-$$"
mkdir "$branch"
echo $$ >"$branch/cgroup.procs"
status=0
unshare --mount --cgroup --pid --fork --kill-child sh -euc "$INNER" || status=$?
echo $$ >"$FOLDER/cgroup/cgroup.procs"
find "$branch" -depth -type d -exec rmdir {} +
exit "$status"
"""
# The old /proc still says by which number the test knows this process. What the new mounts hide and is needed here is
# held open before.
INNER = """
keep() { mkdir -p "$2"; mount --no-canonicalize --bind "/proc/self/fd/$1" "$2"; }
read -r pid rest </proc/self/stat
exec 5<"$FOLDER" 6<"$REPOSITORY" 7<"$PREFIX" 8<"$BASE_PREFIX"
for own in /dev /run /tmp /var; do mount -t tmpfs -o mode=755 tmpfs "$own"; done
keep 6 "$REPOSITORY"; keep 7 "$PREFIX"; keep 8 "$BASE_PREFIX"; keep 5 "$FOLDER"
cp -a /etc /run/etc
mount --bind /run/etc /etc
for shown in / "$REPOSITORY" "$PREFIX" "$BASE_PREFIX"; do mount -o remount,bind,ro "$shown"; done
exec 5<&- 6<&- 7<&- 8<&-
mkdir -p /dev/pts /dev/shm /run/sshd /var/lib/lxc /var/lib/gpuhost /var/log/lxc
ln -s /run /var/run
mount -t devpts -o newinstance,ptmxmode=666 devpts /dev/pts
ln -s pts/ptmx /dev/ptmx
ln -s /proc/self/fd /dev/fd
for node in null:3 zero:5 full:7 random:8 urandom:9; do mknod -m 666 "/dev/${node%:*}" c 1 "${node#*:}"; done
mknod -m 666 /dev/tty c 5 0
mount -t proc proc /proc
mount --bind "$FOLDER/devices" /proc/devices
mount -t cgroup2 cgroup2 /sys/fs/cgroup
chmod 1777 /tmp /dev/shm
ip link set lo up
exec "$PYTHON" "$SERVER" "$pid"
"""
# The containers' first process: it does nothing until it is asked to end.
INIT = """
import signal, sys
for number in (signal.SIGPWR, signal.SIGTERM):
    signal.signal(number, lambda *_: sys.exit(0))
while True:
    signal.pause()
"""
# Opens nodes as a workload would, and says for each what came of it.
PROBE = """
import errno, json, os, stat, sys
seen = {}
for path in sys.argv[1:]:
    try:
        handle = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_NOCTTY)
    except OSError as error:
        seen[path] = errno.errorcode[error.errno]
        continue
    found = os.fstat(handle)
    is_node = stat.S_ISCHR(found.st_mode)
    seen[path] = f"{os.major(found.st_rdev)}:{os.minor(found.st_rdev)}" if is_node else "no device"
    os.close(handle)
print(json.dumps(seen))
"""
# The module's own call, in a process of its own.
RECONCILE = """
import json, sys
from gpuhost import devices
from gpuhost.host_io import Host
mode, restart = sys.argv[1:]
wishes = devices.Wishes(restart=restart == "restart")
work = devices.reconcile_host(Host(), "gpu1.example.com", "native", wishes, mode == "check")
print(json.dumps({**vars(work), "changed": work.changed}))
"""
BASE = """lxc.uts.name = {name}
lxc.rootfs.path = dir:{folder}/{name}/rootfs
lxc.init.cmd = {python} -I -S /init.py
lxc.apparmor.profile = unconfined
lxc.net.0.type = empty
lxc.autodev = 1
lxc.pty.max = 4
lxc.tty.max = 0
lxc.mount.auto = proc:mixed
lxc.mount.entry = tmpfs tmp tmpfs nosuid,nodev,create=dir 0 0
lxc.mount.entry = /proc/devices proc/devices none bind 0 0
{mounts}lxc.cgroup2.devices.deny = a
lxc.cgroup2.devices.allow = c 1:3 rwm
lxc.cgroup2.devices.allow = c 1:5 rwm
lxc.cgroup2.devices.allow = c 1:8 rwm
lxc.cgroup2.devices.allow = c 1:9 rwm
"""


def table(nvidia: dict[str, int]) -> str:
    """/proc/devices of this kernel, in which these NVIDIA drivers have taken the places of whoever is there."""
    lines = Path("/proc/devices").read_text().splitlines(keepends=True)
    taken = {str(major) for major in nvidia.values()}
    kept = [line for line in lines if "nvidia" not in line]
    blocks = kept.index("Block devices:\n")
    characters = [line for line in kept[:blocks] if not line.strip() or line.split()[0] not in taken]
    ours = [f"{major:3d} {name}\n" for name, major in nvidia.items()]
    return "".join([characters[0], *ours, *characters[1:], *kept[blocks:]])


@dataclass(frozen=True)
class Driver:
    """A driver of this kernel that answers at minors 0 and 1, whoever opens them."""

    major: int
    name: str


HARMLESS = ("cpu/cpuid", "vcs", "tty", "ndctl", "cpu/msr")


def real_drivers(folder: Path) -> list[Driver]:
    """Drivers here that really open at minors 0 and 1: for the test they play the part of NVIDIA's, or of a stranger's.

    Of /proc/devices only names whose devices do nothing at an open are tried.
    """
    text = Path("/proc/devices").read_text().partition("Block devices:")[0]
    rows = [line.split(maxsplit=1) for line in text.splitlines()[1:] if line.strip()]
    found = [Driver(int(major), name) for wanted in HARMLESS for major, name in rows if name == wanted]
    return [driver for driver in found if all(_opens(folder / "node", driver.major, minor) for minor in (0, 1))]


def free_majors(count: int) -> list[int]:
    """Dynamic numbers that no driver of this kernel has."""
    text = Path("/proc/devices").read_text().partition("Block devices:")[0]
    taken = {int(line.split()[0]) for line in text.splitlines()[1:] if line.strip()}
    return [major for major in range(511, 384, -1) if major not in taken][:count]


def _opens(path: Path, major: int, minor: int) -> bool:
    os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(major, minor))
    try:
        os.close(os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_NOCTTY))
    except OSError:
        return False
    finally:
        path.unlink()
    return True


class Machine:
    """The namespaces, and what the test does in them."""

    def __init__(self, folder: Path, devices: str) -> None:
        for program, package in (("lxc-start", "lxc"), ("unshare", "util-linux"), ("ip", "iproute2")):
            assert shutil.which(program, path=PATH), f"{program} is missing: apt-get install {package}"
        self.folder = folder
        (folder / "devices").write_text(devices)
        environment = {
            "PATH": PATH,
            "FOLDER": str(folder),
            "INNER": INNER,
            "REPOSITORY": str(ROOT),
            "PREFIX": sys.prefix,
            "BASE_PREFIX": sys.base_prefix,
            "PYTHON": sys.executable,
            "SERVER": __file__,
        }
        argv = ["unshare", "--mount", "--propagation", "private", "--net", "sh", "-euc", OUTER]
        self.process = subprocess.Popen(
            argv, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd="/"
        )
        assert self.process.stdout is not None
        first = self.process.stdout.readline()
        assert first, f"no namespaces with LXC here: {argv[0]} ended with {self.process.wait(timeout=30)}"
        self.root = Path(f"/proc/{int(first)}/root")

    def close(self) -> None:
        """End it, and all that runs in it."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        assert self.process.wait(timeout=30) == 0

    def run(self, *argv: str, stdin: bytes = b"", timeout_s: float = 60) -> Result:
        """Run a program in there."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        order = {"argv": argv, "stdin": base64.b64encode(stdin).decode(), "timeout_s": timeout_s}
        self.process.stdin.write(json.dumps(order) + "\n")
        self.process.stdin.flush()
        return Result(**json.loads(self.process.stdout.readline()))

    def must(self, *argv: str) -> str:
        """Run a program that has to succeed; its output."""
        result = self.run(*argv)
        assert result.rc == 0, result
        return result.stdout

    def python(self, code: str, *arguments: str) -> Any:
        """Run Python code with gpuhost in there; the JSON that it prints."""
        return json.loads(self.must(sys.executable, "-c", code, *arguments))

    def place(self, path: str) -> Path:
        """Where a path of the machine lies for the test."""
        return self.root / path.lstrip("/")

    def write(self, path: str, data: bytes) -> None:
        """Write a file of the machine's own folders."""
        self.place(path).parent.mkdir(parents=True, exist_ok=True)
        self.place(path).write_bytes(data)

    def record(self, majors: dict[str, int]) -> None:
        """What was recorded before the change."""
        self.write(RECORD, json.dumps({"majors": majors}).encode())

    def node(self, path: str, major: int, minor: int) -> None:
        """A device node, as the driver's own tool makes it."""
        self.place(path).parent.mkdir(parents=True, exist_ok=True)
        self.place(path).unlink(missing_ok=True)
        self.must("mknod", "-m", "666", path, "c", str(major), str(minor))

    def container(self, name: str, lines: bytes) -> str:
        """A container with these lines at its config's end, started; the config's path."""
        rootfs = self.place(f"{LXC_FOLDER}/{name}/rootfs")
        for folder in ("dev", "etc", "proc", "run", "sys", "tmp", "usr"):
            (rootfs / folder).mkdir(parents=True, exist_ok=True)
        (rootfs / "init.py").write_text(INIT)
        binds = ["/usr", *([] if sys.base_prefix.startswith("/usr") else [sys.base_prefix])]
        for top in ("bin", "lib", "lib32", "lib64", "sbin"):
            if os.path.islink(f"/{top}"):
                (rootfs / top).symlink_to(os.readlink(f"/{top}"))
            elif os.path.isdir(f"/{top}"):
                binds.append(f"/{top}")
        mounts = "".join(f"lxc.mount.entry = {path} {path[1:]} none ro,bind,create=dir 0 0\n" for path in binds)
        base = BASE.format(name=name, folder=LXC_FOLDER, python=PYTHON, mounts=mounts)
        path = f"{LXC_FOLDER}/{name}/config"
        self.write(path, base.encode() + lines)
        self.start(name)
        return path

    def start(self, name: str) -> None:
        """Start a container."""
        result = self.run("lxc-start", "-n", name, "-l", "INFO", "-o", f"/var/log/lxc/{name}.log")
        log = self.place(f"/var/log/lxc/{name}.log")
        assert result.rc == 0, f"{result}\n{log.read_text()[-3000:] if log.exists() else ''}"

    def restart(self, name: str) -> None:
        """Stop and start a container: its rules are read at the start only."""
        self.must("lxc-stop", "-n", name, "-t", "10")
        self.start(name)

    def opens(self, name: str, *paths: str) -> dict[str, str]:
        """Open nodes inside a container: ``major:minor`` of each where that goes, else the errno's name."""
        return json.loads(self.must("lxc-attach", "-n", name, "--", PYTHON, "-I", "-S", "-c", PROBE, *paths))

    def reconcile(self, mode: str = "apply", *, restart: bool = False) -> dict[str, Any]:
        """What the module does, as the fields of its Work. ``mode`` check changes nothing."""
        found: dict[str, Any] = self.python(RECONCILE, mode, "restart" if restart else "")
        return found


def serve(pid: str) -> None:
    """The machine's first process: runs what the test asks for, and ends with the test."""
    print(pid, flush=True)
    host = Host()
    for line in sys.stdin:
        order = json.loads(line)
        done = host.run(order["argv"], order["timeout_s"], base64.b64decode(order["stdin"]))
        print(json.dumps(vars(done)), flush=True)


if __name__ == "__main__":
    serve(sys.argv[1])
