"""What a reconciliation costs on a host with 200 containers: one ssh session, and little time of its processor.

Everything is real but the host, which is a machine out of namespaces (lxc_machine.py): Ansible, ssh, sshd, the module.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from gpuhost.host_io import Result

from .lxc_machine import LXC_FOLDER, PATH, ROOT, Machine, free_majors, table

CONTAINERS, STALE, RUNS, LIMIT_MS = 200, 40, 5, 300
SSHD_CONFIG = """
ListenAddress 127.0.0.1
Port 2222
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/key.pub
PidFile none
StrictModes no
UsePAM no
PermitRootLogin prohibit-password
LogLevel VERBOSE
"""
# The module's interpreter: Python, and then the shell's own account of what Python has taken.
INTERPRETER = """#!/bin/sh
{python} "$@"
status=$?
times >>/run/times
exit $status
"""
# The module as Ansible runs it: Ansible's frame, the module's code, its work, each with the time that it has taken.
COST = """
import importlib.util, json, resource, sys
def used(who=resource.RUSAGE_SELF):
    found = resource.getrusage(who)
    return 1000 * (found.ru_utime + found.ru_stime)
import ansible.module_utils.basic
code, library = sys.argv[1:]
ansible.module_utils.__path__.append(code)
frame = used()
name = "gpuhost_lxc_devices"
spec = importlib.util.spec_from_file_location(name, f"{library}/{name}.py")
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
load = used() - frame
taken = []
module.run_module = lambda arguments, work, **more: taken.append((arguments, work))
module.main()
arguments, work = taken[0]
params = {key: facts.get("default") for key, facts in arguments.items()}
given = {"host_name": "gpu1.example.com", "run_id": "cost"}
begin = used()
answer = work(module.Host(), {**params, **given}, True)
work = used() - begin
programs = used(resource.RUSAGE_CHILDREN)
lines = len(answer["lines"])
print(json.dumps({"frame": frame, "load": load, "work": work, "programs": programs, "lines": lines}))
"""
# A container as a tool makes it and people go on: an include, comments, device rules of all kinds.
CONFIG = """# Template used to create this container: /usr/share/lxc/templates/lxc-download
lxc.include = /usr/share/lxc/config/common.conf
lxc.arch = linux64
lxc.apparmor.profile = generated
lxc.uts.name = {name}
lxc.rootfs.path = dir:/var/lib/lxc/{name}/rootfs
lxc.start.auto = {auto}
lxc.start.order = {order}
lxc.net.0.type = veth
lxc.net.0.link = br0
lxc.net.0.hwaddr = 02:00:00:00:{high:02x}:{low:02x}
lxc.cgroup2.memory.max = 8G
lxc.cgroup2.devices.allow = c 10:200 rwm   # tun
lxc.cgroup2.devices.allow = c 10:229 rwm
lxc.mount.entry = /dev/net/tun dev/net/tun none bind,optional,create=file
lxc.mount.entry = /srv/{name} srv none bind,optional,create=dir
"""
GPU = """
# GPU, by hand: numbers from ls -l /dev/nvidia*
lxc.cgroup2.devices.allow = c 195:* rwm
lxc.cgroup2.devices.allow = c {uvm}:* rwm
lxc.cgroup2.devices.allow = c {caps}:* rwm
#lxc.cgroup2.devices.allow = c 235:* rwm
lxc.mount.entry = /dev/nvidia0 dev/nvidia0 none bind,optional,create=file
lxc.mount.entry = /dev/nvidiactl dev/nvidiactl none bind,optional,create=file
lxc.mount.entry = /dev/nvidia-uvm dev/nvidia-uvm none bind,optional,create=file
lxc.mount.entry = /dev/nvidia-caps dev/nvidia-caps none bind,optional,create=dir
"""
pytestmark = [
    pytest.mark.play,
    pytest.mark.skipif(os.geteuid() != 0, reason="namespaces and an ssh server of their own need root"),
]


def configs(uvm: int, caps: int) -> dict[str, bytes]:
    """Every fifth container has a GPU and these numbers; every third file has Windows line ends."""
    found = {}
    for number in range(CONTAINERS):
        name = f"ct{number:03d}"
        text = CONFIG.format(name=name, auto=number % 2, order=number % 7, high=number // 256, low=number % 256)
        if number % (CONTAINERS // STALE) == 0:
            text += GPU.format(uvm=uvm, caps=caps)
        found[name] = (text.replace("\n", "\r\n") if number % 3 == 0 else text).encode()
    return found


@pytest.fixture
def numbers() -> dict[str, tuple[int, int]]:
    """(before, now) of NVIDIA's two drivers with a number that moves."""
    old_uvm, old_caps, uvm, caps = free_majors(4)
    return {"nvidia-uvm": (old_uvm, uvm), "nvidia-caps": (old_caps, caps)}


@pytest.fixture
def machine(tmp_path: Path, numbers: dict[str, tuple[int, int]]) -> Iterator[Machine]:
    """A host with 200 containers and an ssh server, after a boot into a kernel with other numbers."""
    made = Machine(
        tmp_path, table({"nvidia": 195, "nvidiactl": 195, **{name: now for name, (_, now) in numbers.items()}})
    )
    made.record({"nvidia": 195, "nvidiactl": 195, **{name: before for name, (before, _) in numbers.items()}})
    for name, data in configs(numbers["nvidia-uvm"][0], numbers["nvidia-caps"][0]).items():
        made.write(f"{LXC_FOLDER}/{name}/config", data)
    yield made
    made.close()


def serve_ssh(machine: Machine) -> None:
    """Start the machine's ssh server; it ends with the machine."""
    sshd = shutil.which("sshd", path=PATH)
    if sshd is None:  # not installed by make: its package starts a server
        pytest.skip("no sshd on this machine: apt-get install openssh-server")
    folder = machine.folder
    for name in ("key", "host_key"):
        argv = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)]
        subprocess.run(argv, check=True, timeout=30)
    (folder / "sshd_config").write_text(SSHD_CONFIG.format(folder=folder))
    # A child of process 1 takes itself for a daemon already, and would not go to the background.
    machine.must("timeout", "20", sshd, "-f", str(folder / "sshd_config"), "-E", str(folder / "sshd.log"))


def play(machine: Machine, *arguments: str) -> Result:
    """Run playbooks/reconcile.yml over ssh, from inside of the machine: nobody else can reach its loopback."""
    folder = machine.folder
    machine.write("/run/python", INTERPRETER.format(python=sys.executable).encode())
    machine.place("/run/python").chmod(0o755)
    variables = {
        "ansible_host": "127.0.0.1",
        "ansible_port": 2222,
        "ansible_user": "root",
        "ansible_python_interpreter": "/run/python",
        "ansible_ssh_private_key_file": str(folder / "key"),
        "ansible_ssh_common_args": f"-o StrictHostKeyChecking=no -o UserKnownHostsFile={folder}/known_hosts",
    }
    (folder / "hosts.yml").write_text(yaml.safe_dump({"gpu_hosts": {"hosts": {"gpu1.example.com": variables}}}))
    environment = {
        "LC_ALL": "C.UTF-8",
        "ANSIBLE_CONFIG": ROOT / "ansible.cfg",
        "ANSIBLE_HOME": folder / "ansible",
        "ANSIBLE_SSH_CONTROL_PATH_DIR": "/run/cp",  # the machine has its own /run
        "GPUHOST_RUNS_DIR": folder / "runs",
        "GPUHOST_RUN_ID": "cost",
    }
    argv = [str(Path(sys.executable).parent / "ansible-playbook"), "-i", str(folder / "hosts.yml")]
    playbook = str(ROOT / "playbooks" / "reconcile.yml")
    settings = [f"{name}={value}" for name, value in environment.items()]
    result = machine.run("env", *settings, *argv, playbook, *arguments, timeout_s=120)
    print(result.stdout[-3000:], result.stderr[-3000:])
    assert result.rc == 0
    return result


def changed(result: Result) -> bool:
    """Whether the play says that the host differs."""
    (count,) = re.findall(r"changed=(\d+)", result.stdout)
    return count != "0"


def sessions(machine: Machine) -> tuple[int, int]:
    """Connections that were let in, and commands that were run over them, by the ssh server's own log."""
    log = (machine.folder / "sshd.log").read_text()
    return log.count("Accepted publickey"), log.count("Starting session: command")


def used_ms(machine: Machine) -> list[float]:
    """User and system time of each process that the interpreter's shell has waited for."""
    pairs = [line for line in machine.place("/run/times").read_text().splitlines() if line.strip()][1::2]
    return [
        sum(60e3 * float(minutes) + 1e3 * float(seconds) for minutes, seconds in re.findall(r"(\d+)m([\d.]+)s", line))
        for line in pairs
    ]


def on_disk(machine: Machine) -> dict[str, bytes]:
    """Every container's config."""
    folder = machine.place(LXC_FOLDER)
    return {path.parent.name: path.read_bytes() for path in sorted(folder.glob("*/config"))}


def test_one_ssh_session_for_200_containers(machine: Machine, numbers: dict[str, tuple[int, int]]) -> None:
    """In check mode, for real, and once more: one connection, and each time one command."""
    serve_ssh(machine)
    before = on_disk(machine)
    assert len(before) == CONTAINERS
    assert changed(play(machine, "--check"))
    assert sessions(machine) == (1, 1)
    assert on_disk(machine) == before

    assert changed(play(machine))
    # The connection is kept for the next play.
    assert sessions(machine) == (1, 2)
    right = configs(numbers["nvidia-uvm"][1], numbers["nvidia-caps"][1])
    assert on_disk(machine) == right
    assert sum(before[name] != data for name, data in right.items()) == STALE

    assert not changed(play(machine))
    assert sessions(machine) == (1, 3)
    assert on_disk(machine) == right
    ms = [f"{item:.0f} ms" for item in used_ms(machine)]
    print(f"CPU of Python with Ansible's frame: check {ms[0]}, rewrite {ms[1]}, nothing to do {ms[2]}")


def test_the_cpu_time_of_the_module_for_200_containers(machine: Machine) -> None:
    """What the module's work takes in check mode, which can be repeated, with the programs that it runs.

    Not counted is what an empty module takes as well: Python, Ansible's frame, and the loading of code.
    """
    # As in Ansible's archive: there are no compiled files of ours.
    code = machine.folder / "code"
    shutil.copytree(ROOT / "module_utils" / "gpuhost", code / "gpuhost", ignore=shutil.ignore_patterns("__pycache__"))
    argv = [sys.executable, "-B", "-c", COST, str(code), str(ROOT / "library")]
    found = [json.loads(machine.must(*argv)) for _ in range(RUNS)]
    assert {item["lines"] for item in found} == {found[0]["lines"]}
    assert found[0]["lines"] >= 2 * STALE
    middle = {name: statistics.median(item[name] for item in found) for name in found[0]}
    total = middle["work"] + middle["programs"]
    parts = ", ".join(f"{name} {value:.0f}" for name, value in middle.items() if name != "lines")
    print(f"module CPU for {CONTAINERS} containers, median of {RUNS}: {total:.0f} ms (all parts in ms: {parts})")
    assert total < LIMIT_MS, parts
