"""Old numbers in real containers: what the kernel's device rules let through before a reconciliation, and after it.

Two real drivers of this kernel play NVIDIA's and a stranger's part: the machine's /proc/devices says that the number
of the first is nvidia-uvm's. LXC's rules and every open() are real.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gpu_checks.build_zipapp import build
from gpuhost import gate

from .lxc_machine import LXC_FOLDER, PYTHON, Driver, Machine, free_majors, real_drivers, table

FRONT = {"nvidia": 195, "nvidiactl": 195}
UVM, TOOLS, CAP = "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia-caps/nvidia-cap1"
# The gate's own call, in a process of its own; the archive comes from a file.
MEASURE = """
import json, sys
from gpuhost import check_runner, devices
from gpuhost.host_io import Host
order = check_runner.Order(open(sys.argv[1], "rb").read(), ["device_access"], sys.argv[2], 20)
print(json.dumps(check_runner.measure_all(Host(), order, ["ct"], ("/dev/nvidia0",))))
"""
MKNOD = "import os, stat, sys; os.mknod(sys.argv[1], stat.S_IFCHR | 0o666, os.makedev(int(sys.argv[2]), 0))"
Make = Callable[..., Machine]
pytestmark = [
    pytest.mark.play,
    pytest.mark.skipif(os.geteuid() != 0, reason="LXC with device rules, and mknod, need root"),
]


def rule(text: str) -> bytes:
    return f"lxc.cgroup2.devices.allow = {text}\n".encode()


def mount(path: str) -> bytes:
    return f"lxc.mount.entry = {path} {path[1:]} none bind,optional,create=file\n".encode()


def changes(work: dict[str, Any]) -> list[tuple[Any, ...]]:
    return [
        (item["driver"], item["old_major"], item["new_major"], item["leaks_to"])
        for item in work["document"]["changes"]
        if not item["held"]
    ]


@pytest.fixture(scope="module")
def drivers(tmp_path_factory: pytest.TempPathFactory) -> list[Driver]:
    found = real_drivers(tmp_path_factory.mktemp("nodes"))
    assert len(found) >= 2, f"two drivers that open at minors 0 and 1 are needed for a proof: {found}"
    return found


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    """Makes the one machine of a test: NVIDIA's numbers now, and those on record."""
    made: list[Machine] = []

    def machine(now: dict[str, int], before: dict[str, int]) -> Machine:
        made.append(Machine(tmp_path, table({**FRONT, **now})))
        made[0].record({**FRONT, **before})
        return made[0]

    yield machine
    for item in made:
        item.close()


def test_a_stale_number_blocks_until_the_rule_is_right_and_the_container_started_anew(
    make: Make, drivers: list[Driver]
) -> None:
    (old,), uvm = free_majors(1), drivers[0].major
    machine = make({"nvidia-uvm": uvm}, {"nvidia-uvm": old})
    machine.node(UVM, uvm, 0)
    path = machine.container("ct", rule("c 195:* rwm") + rule(f"c {old}:* rwm") + mount(UVM) + mount(TOOLS))
    before = machine.place(path).read_bytes()
    # LXC puts an empty file where a node does not exist yet.
    assert machine.opens("ct", UVM, TOOLS) == {UVM: "EPERM", TOOLS: "no device"}

    said = machine.reconcile("check")
    assert machine.place(path).read_bytes() == before
    assert machine.opens("ct", UVM) == {UVM: "EPERM"}
    work = machine.reconcile()
    assert work["lines"] == said["lines"]
    assert changes(work) == [("nvidia-uvm", old, uvm, None)]
    assert TOOLS in work["document"]["nodes_created"]
    assert machine.place(path).read_bytes() == before.replace(rule(f"c {old}:* rwm"), rule(f"c {uvm}:* rwm"))

    # liblxc gives the kernel the rules at the start: a running container keeps them, which is said until it ends.
    assert machine.opens("ct", UVM) == {UVM: "EPERM"}
    again = machine.reconcile()
    assert (again["changed"], again["document"]["with_old_rules"]) == (False, ["ct"])
    assert work["notes"] == again["notes"]
    assert "container ct has its new rules once it is restarted" in again["notes"][0]
    machine.restart("ct")
    assert machine.opens("ct", UVM, TOOLS) == {UVM: f"{uvm}:0", TOOLS: f"{uvm}:1"}
    last = machine.reconcile()
    assert (last["changed"], last["notes"], last["document"]["with_old_rules"]) == (False, [], [])


def test_two_nvidia_numbers_that_changed_places(make: Make, drivers: list[Driver]) -> None:
    """Each rule names the other driver's number now, with the minor of its own node: neither node opens.

    With the consent to restart it, the container has its devices when the reconciliation ends.
    """
    one, two = drivers[0].major, drivers[1].major
    machine = make({"nvidia-uvm": two, "nvidia-caps": one}, {"nvidia-uvm": one, "nvidia-caps": two})
    machine.node(UVM, two, 0)
    machine.node(CAP, one, 1)
    machine.container("ct", rule(f"c {one}:0 rwm") + rule(f"c {two}:1 rwm") + mount(UVM) + mount(CAP))
    assert machine.opens("ct", UVM, CAP) == {UVM: "EPERM", CAP: "EPERM"}
    work = machine.reconcile(restart=True)
    assert changes(work) == [("nvidia-uvm", one, two, "nvidia-caps"), ("nvidia-caps", two, one, "nvidia-uvm")]
    assert (work["document"]["restarted"], work["document"]["with_old_rules"]) == (["ct"], [])
    assert machine.opens("ct", UVM, CAP) == {UVM: f"{two}:0", CAP: f"{one}:1"}
    assert machine.reconcile()["changed"] is False


def test_a_leaked_number_opens_a_strangers_device_and_is_closed(make: Make, drivers: list[Driver]) -> None:
    """The container makes the node of the stranger's device itself: only the rule stands between."""
    uvm, stranger = drivers[:2]
    machine = make({"nvidia-uvm": uvm.major}, {"nvidia-uvm": stranger.major})
    machine.node(UVM, uvm.major, 0)
    machine.container("ct", rule(f"c {stranger.major}:* rwm") + mount(UVM))
    machine.must("lxc-attach", "-n", "ct", "--", PYTHON, "-I", "-S", "-c", MKNOD, "/leak", str(stranger.major))
    assert machine.opens("ct", "/leak", UVM) == {"/leak": f"{stranger.major}:0", UVM: "EPERM"}

    work = machine.reconcile()
    assert changes(work) == [("nvidia-uvm", stranger.major, uvm.major, stranger.name)]
    (change,) = work["document"]["changes"]
    assert change["severity"] == "security"
    machine.restart("ct")
    assert machine.opens("ct", "/leak", UVM) == {"/leak": "EPERM", UVM: f"{uvm.major}:0"}


def test_foreign_rules_windows_line_ends_and_comments_stay_and_work(make: Make, drivers: list[Driver]) -> None:
    (old,), uvm, stranger = free_majors(1), drivers[0].major, drivers[1].major
    machine = make({"nvidia-uvm": uvm}, {"nvidia-uvm": old})
    machine.node(UVM, uvm, 0)
    machine.node("/dev/foreign", stranger, 0)
    lines = (
        b"# ours, by hand\n"
        + rule(f"c {stranger}:0 rwm # the stranger's")
        + rule(f"c {old}:* rwm")
        + mount("/dev/foreign")
        + mount(UVM)
    ).replace(b"\n", b"\r\n")
    path = machine.container("ct", lines)
    before = machine.place(path).read_bytes()
    assert machine.opens("ct", UVM, "/dev/foreign") == {UVM: "EPERM", "/dev/foreign": f"{stranger}:0"}
    assert changes(machine.reconcile()) == [("nvidia-uvm", old, uvm, None)]
    assert machine.place(path).read_bytes() == before.replace(b"c %d:*" % old, b"c %d:*" % uvm)
    machine.restart("ct")
    assert machine.opens("ct", UVM, "/dev/foreign") == {UVM: f"{uvm}:0", "/dev/foreign": f"{stranger}:0"}


def test_an_old_number_in_an_included_file_is_named_and_the_node_opens(make: Make, drivers: list[Driver]) -> None:
    (old,), uvm = free_majors(1), drivers[0].major
    machine = make({"nvidia-uvm": uvm}, {"nvidia-uvm": old})
    machine.node(UVM, uvm, 0)
    shared = f"{LXC_FOLDER}/gpu.conf"
    machine.write(shared, rule(f"c {old}:* rwm"))
    machine.container("ct", f"lxc.include = {shared}\n".encode() + mount(UVM))
    assert machine.opens("ct", UVM) == {UVM: "EPERM"}
    assert shared in json.dumps(machine.reconcile()["document"])
    machine.restart("ct")
    assert machine.opens("ct", UVM) == {UVM: f"{uvm}:0"}


def test_the_gate_names_the_stale_number_and_then_the_node_opens(
    make: Make, drivers: list[Driver], tmp_path: Path
) -> None:
    """The whole way of the gate: the archive in the container's own Python, open(), the judge.

    NVIDIA's first number has moved as well here: without a driver behind 195 the check would end before nvidia-uvm.
    No driver of NVIDIA's answers its questions, so afterwards it is the open() that counts.
    """
    (old,), front, uvm = free_majors(1), drivers[0].major, drivers[1].major
    now = {"nvidia": front, "nvidiactl": front, "nvidia-uvm": uvm}
    machine = make(now, {"nvidia-uvm": old})
    for path, major, minor in (("/dev/nvidiactl", front, 255), ("/dev/nvidia0", front, 0), (UVM, uvm, 0)):
        machine.node(path, major, minor)
    nodes = mount("/dev/nvidiactl") + mount("/dev/nvidia0") + mount(UVM)
    machine.container("ct", rule("c 195:* rwm") + rule(f"c {old}:* rwm") + nodes)
    build(tmp_path / "gpu_checks.pyz")

    def measured() -> dict[str, Any]:
        answer: dict[str, Any] = machine.python(MEASURE, str(tmp_path / "gpu_checks.pyz"), PYTHON)
        return answer

    def by_name(answers: dict[str, Any]) -> dict[str, Any]:
        return {item["name"]: item for item in answers["ct"]["measurements"]}

    before = measured()
    found = by_name(before)
    assert found["device_access"]["cause"] == found["device_access.nvidia-uvm"]["cause"] == "device.denied_cgroup"
    verdict = gate.judge("gpu1.example.com", "native", "6.12", ["device_access"], before)
    assert (verdict.status, verdict.cause) == ("fail", "lxc.stale_major")
    assert f"{old} for nvidia-uvm, this kernel uses {uvm}" in verdict.sentence

    machine.reconcile()
    machine.restart("ct")
    after = measured()
    opened = {name: item["detail"]["open"] for name, item in by_name(after).items() if "open" in item["detail"]}
    assert (opened["device_access.nvidia0"], opened["device_access.nvidia-uvm"]) == ("ok", "ok")
    assert "EPERM" not in opened.values()
    assert after["ct"]["stale"] == []
    assert gate.judge("gpu1.example.com", "native", "6.12", ["device_access"], after).status != "pass"
