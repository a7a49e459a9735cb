"""Which nodes are looked at, and the cause that each set of facts leads to: every one, and the first one."""

import errno
import stat
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_checks.device_nodes import (
    DRIVER_NAMES,
    NodeFacts,
    count_reason,
    majors_of,
    parse_proc_devices,
    plan_nodes,
    reason,
    reason_before_open,
)  # fmt: skip
from gpu_checks.nvidia_ioctl import Query

# An H200 machine with driver 580.159.04.
PROC_DEVICES = """Character devices:
  1 mem
195 nvidia
195 nvidiactl
238 nvidia-uvm
241 nvidia-caps
242 nvidia-caps-imex-channels

Block devices:
  7 loop
238 nvidia-uvm-lookalike
"""

GOOD = NodeFacts(
    "/dev/nvidia-uvm", is_char=True, mode=stat.S_IFCHR | 0o666, uid=0, gid=0, major=238, minor=0,
    driver_names=("nvidia-uvm",), driver_majors=(238,), opened=True, open_us=9.0, query=Query("q", True, "fine"),
)  # fmt: skip


def test_proc_devices_by_name():
    devices = parse_proc_devices(PROC_DEVICES)
    assert devices["nvidia-uvm"] == (238,)
    assert "nvidia-uvm-lookalike" not in devices
    assert majors_of("control", devices) == (DRIVER_NAMES["control"], (195,))
    assert majors_of("gpu", parse_proc_devices("Character devices:\n195 nvidia-frontend\n"))[1] == (195,)
    assert majors_of("capability", devices)[1] == (241,)


@given(st.dictionaries(st.from_regex(r"\A[a-z][a-z-]{0,9}\Z"), st.integers(1, 511), max_size=9))
def test_proc_devices_gives_back_what_was_rendered(majors):
    lines = "".join(f"{major:3d} {name}\n" for name, major in majors.items())
    text = f"Character devices:\n{lines}\nBlock devices:\n  7 loop\n"
    assert parse_proc_devices(text) == {name: (major,) for name, major in majors.items()}


@given(st.text())
def test_proc_devices_takes_any_text(text):
    parse_proc_devices(text)


def names(nodes):
    return [node.name for node in nodes]


def test_order_is_cudas_and_numbers_count_as_numbers():
    dev = ["nvidia10", "nvidia2", "nvidia-uvm-tools", "nvidia-modeset", "nvidia-uvm", "nvidiactl", "nvidia-nvswitch0"]
    nodes = plan_nodes(dev, ["nvidia-cap12", "nvidia-cap2", "README"], None)
    assert names(nodes) == [
        "nvidiactl", "nvidia2", "nvidia10", "nvidia-uvm", "nvidia-uvm-tools",
        "nvidia-caps/nvidia-cap2", "nvidia-caps/nvidia-cap12",
    ]  # fmt: skip
    assert [node.required for node in nodes] == [True] * 4 + [False] * 3


@pytest.mark.parametrize(("expected", "gpus"), [(None, ["nvidia0"]), (2, ["nvidia0"]), (0, [])])
def test_no_gpu_node_at_all_is_seen(expected, gpus):
    assert names(plan_nodes([], [], expected)) == ["nvidiactl", *gpus, "nvidia-uvm"]


CASES = [
    ("driver.not_loaded", {"driver_majors": (), "stat_errno": errno.ENOENT}, "no character device of nvidia-uvm"),
    ("driver.not_loaded", {"driver_majors": ()}, "no character device of nvidia-uvm"),
    ("device.node_missing", {"stat_errno": errno.ENOENT}, "does not exist"),
    ("device.node_missing", {"stat_errno": errno.ENOTDIR}, "does not exist"),
    ("device.denied_mode", {"stat_errno": errno.EACCES}, "folder"),
    ("device.open_failed", {"stat_errno": errno.ELOOP}, "ELOOP"),
    ("device.node_not_char", {"is_char": False, "major": None}, "not a character device"),
    ("device.node_wrong_major", {"major": 504}, "has major 504, nvidia-uvm has 238"),
    ("device.denied_cgroup", {"opened": False, "open_errno": errno.EPERM}, "no device rule allows 238:0"),
    ("device.open_failed", {"opened": False, "open_errno": errno.EPERM, "gpu_excluded": True}, "exclude list"),
    ("device.denied_mode", {"opened": False, "open_errno": errno.EACCES}, "mode 0666 of 0:0"),
    ("device.denied_mode", {"opened": False, "open_errno": errno.EACCES, "nodev": True}, "nodev"),
    ("device.open_failed", {"opened": False, "open_errno": errno.ENXIO}, "ENXIO"),
    ("device.open_failed", {"opened": False, "open_errno": errno.EIO}, "EIO"),
    ("device.query_failed", {"query": Query("q", False, "rmStatus 0x56")}, "rmStatus 0x56"),
    ("device.query_failed", {"query": Query("q", False, "bad", "ENOTTY")}, "ENOTTY"),
]


@pytest.mark.parametrize(("cause", "change", "words"), CASES)
def test_each_cause(cause, change, words):
    found = reason(replace(GOOD, **change))
    assert found is not None
    assert found.cause == cause
    assert found.message.startswith("/dev/nvidia-uvm")
    assert words in found.message


def test_a_gpu_whose_open_gives_eio_was_not_started():
    found = reason(replace(GOOD, path="/dev/nvidia3", opened=False, open_errno=errno.EIO))
    assert found.cause == "driver.gpu_not_started"


def test_a_good_node_has_no_reason():
    assert reason(GOOD) is None
    assert reason(replace(GOOD, query=None)) is None
    assert reason(replace(GOOD, query=Query("q", None, "not known"))) is None


def test_the_first_reason_wins():
    everything = replace(
        GOOD, driver_majors=(), stat_errno=errno.ENOENT, is_char=False, major=1, opened=False, open_errno=errno.EPERM
    )
    order = []
    for repair in ({"driver_majors": (238,)}, {"stat_errno": None}, {"is_char": True}, {"major": 238}, {}):
        order.append(reason(everything).cause)
        everything = replace(everything, **repair)
    assert order == [
        "driver.not_loaded", "device.node_missing", "device.node_not_char", "device.node_wrong_major",
        "device.denied_cgroup",
    ]  # fmt: skip


def test_a_good_looking_node_must_have_been_opened():
    with pytest.raises(ValueError, match="was not opened"):
        reason(replace(GOOD, opened=None))


def test_every_cause_before_the_open_forbids_the_open():
    before = [change for cause, change, _ in CASES if "opened" not in change and "query" not in change]
    assert before
    assert all(reason_before_open(replace(GOOD, opened=None, **change)) for change in before)


@pytest.mark.parametrize(("found", "expected", "wrong"), [(8, 8, 0), (7, 8, 1), (9, 8, 1), (3, None, 0), (1, 0, 1)])
def test_gpu_count(found, expected, wrong):
    why = count_reason(found, expected)
    assert bool(why) == bool(wrong)
    if why:
        assert (why.cause, why.message) == ("device.gpu_count", f"{found} GPU device nodes, expected {expected}")
