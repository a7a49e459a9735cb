"""Why CUDA does not start: the public case cuda-01, row by row, and what else the pure decision must not do."""

import errno
import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_checks import visible
from gpu_checks.causes import CAUSES
from gpu_checks.device_nodes import CONTROL, GPU, UVM, Node, NodeFacts
from gpu_checks.nvidia_ioctl import Query
from gpu_checks.triage import Facts, blocked, diagnose
from gpu_checks.visible import shown

CASE = Path(__file__).resolve().parents[2] / "cases" / "cuda-01-init-failure-triage.in.txt"
UVM_MAJOR = 509
GOOD_QUERY = Query("q", True, "")


def node(name, kind, major=195, minor=0):
    names = ("nvidia-uvm",) if kind == UVM else ("nvidia",)
    return Node(name, kind), NodeFacts(
        f"/dev/{name}", is_char=True, mode=0o666, uid=0, gid=0, major=major, minor=minor, driver_names=names,
        driver_majors=(major,), opened=True, query=GOOD_QUERY,
    )  # fmt: skip


def nodes(gpus=8, uvm=None, control=None):
    found = [
        node("nvidiactl", CONTROL, minor=255),
        *(node(f"nvidia{minor}", GPU, minor=minor) for minor in range(gpus)),
        node("nvidia-uvm", UVM, UVM_MAJOR),
    ]
    found[0] = (found[0][0], replace(found[0][1], **(control or {})))
    found[-1] = (found[-1][0], replace(found[-1][1], **(uvm or {})))
    return tuple(found)


def uvm_of(text, others):
    """The facts of nvidia-uvm that a row's columns mean."""
    if text == "ok":
        return {}
    if "module nvidia_uvm not loaded" in others:
        return {"driver_majors": (), "stat_errno": errno.ENOENT, "is_char": None, "major": None, "opened": None}
    changed = {"opened": False, "open_errno": getattr(errno, text)}
    if match := re.search(r"node in CT has major (\d+)", others):
        return {**changed, "major": int(match.group(1)), "opened": None, "open_errno": None}
    if match := re.search(r"node mode (\d+)", others):
        return {**changed, "mode": int(match.group(1), 8)}
    return changed


def facts_of(cells):
    """A row of the case as facts."""
    _, init, _, control, uvm, others = cells
    assert control == "ok"
    number = None if init == "timeout" else int(init)
    facts = Facts(
        nodes=nodes(uvm=uvm_of(uvm, others)),
        init=number,
        hung="D (disk sleep)" if "D state" in others else None,
        count=8 if number == 0 else None,
        expected=8,
        library_path="/usr/lib/x86_64-linux-gnu/libcuda.so.580.95.05",
    )
    if match := re.search(r"CUDA_VISIBLE_DEVICES=(\S+)", others):
        facts = replace(facts, visible=match.group(1).strip('";').replace('"', ""))
    if match := re.search(r"count is (\d+), expected (\d+)", others):
        facts = replace(facts, count=int(match.group(1)), expected=int(match.group(2)))
    if match := re.search(r"module ([\d.]+), libcuda ([\d.]+)", others):
        facts = replace(facts, module_version=match.group(1), library_version=match.group(2))
    if "uvm_disable_hmm" in others or "parameter already" in others:
        value = re.search(r"uvm_disable_hmm=([YN])|already ([YN])", others)
        facts = replace(facts, open_module=True, uvm_disable_hmm=value.group(1) or value.group(2))
    if "NVSwitch" in others:
        facts = replace(facts, nvswitch="no NVSwitch" not in others, fabric_manager=False)
    if "/usr/local/cuda/compat" in others:
        facts = replace(facts, library_path="/usr/local/cuda/compat/libcuda.so.590.48.01")
    if "works as root" in others:
        facts = replace(facts, euid=1000, works_as_root=True)
    if "RmInitAdapter failed" in others:
        facts = replace(facts, kernel_log=("NVRM: GPU 0000:01:00.0: RmInitAdapter failed! (0x22:0x56:894)",))
    return facts


ROWS = {
    line[0]: line.split(maxsplit=2)[:2] + re.split(r"\s{2,}", line.split(maxsplit=2)[2].partition("->")[0].strip())
    for line in CASE.read_text().splitlines()
    if not line.startswith("#")
}
#: The row's diagnosis: our cause, and what of the facts the sentence must show.
DIAGNOSES = {
    "a": (None, ()),
    "b": ("device.denied_cgroup", ("/dev/nvidia-uvm", "EPERM", "509")),
    "c": ("driver.not_loaded", ("nvidia-uvm",)),
    "d": ("device.node_wrong_major", ("504", "509")),
    "e": ("device.denied_mode", ("EACCES", "0660")),
    "f": ("cuda.hmm_failed", ("uvm_disable_hmm is N",)),
    "g": ("cuda.init_failed", ("it is not that",)),
    "h": ("driver.gpu_not_started", ("RmInitAdapter failed",)),
    "i": ("cuda.device_hidden", ("CUDA_VISIBLE_DEVICES", "empty")),
    "j": ("cuda.fabric_manager", ("does not run",)),
    "k": ("cuda.system_not_ready", ("no NVSwitch",)),
    "l": ("cuda.version_mismatch", ("590.48.01", "580.95.05")),
    "m": ("cuda.compat_library", ("/usr/local/cuda/compat",)),
    "n": ("cuda.permission", ("uid 1000", "as root")),
    "o": ("cuda.device_hidden", ("'8'", "8 GPUs")),
    "p": ("cuda.driver_hang", ("D (disk sleep)",)),
    "q": ("cuda.device_hidden", ("twice",)),
    "r": ("cuda.device_hidden", ("'9'", "6", "expected 8")),
}


def test_the_case_has_the_rows_that_are_tested():
    assert list(ROWS) == list(DIAGNOSES) == list("abcdefghijklmnopqr")


@pytest.mark.parametrize("row", ROWS)
def test_case_cuda_01(row):
    expected, words = DIAGNOSES[row]
    found = diagnose(facts_of(ROWS[row]))
    assert (found and found.cause) == expected
    for word in words:
        assert word in found.message
    if found is not None:
        # CUDA's number alone is nobody's diagnosis.
        assert found.cause in CAUSES
        assert not re.fullmatch(r"cuInit gave \d+\.?", found.message)


def good(**changes):
    return Facts(**{"nodes": nodes(), "init": 0, "count": 8, "expected": 8, **changes})


def cause(**changes):
    found = diagnose(good(**changes))
    return found and found.cause


def test_nodes_are_opened_only_where_needed_and_unopened_ones_block_nothing():
    unopened = tuple((each, replace(facts, opened=None, query=None)) for each, facts in nodes())
    assert blocked(good(nodes=unopened)) is None


def test_one_gpu_that_works_is_enough_to_start():
    some = list(nodes(gpus=2))
    some[1] = (some[1][0], replace(some[1][1], opened=False, open_errno=errno.EPERM))
    assert blocked(good(nodes=tuple(some))) is None
    assert cause(nodes=tuple(some), count=1, expected=None) is None
    assert cause(nodes=tuple(some), count=1, expected=2) == "device.denied_cgroup"
    some[2] = (some[2][0], replace(some[2][1], opened=False, open_errno=errno.EIO))
    assert blocked(good(nodes=tuple(some))).cause == "device.denied_cgroup"


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"init": 999}, "cuda.init_failed"),
        ({"init": 999, "euid": 1000}, "cuda.init_failed"),
        ({"init": 999, "euid": 1000, "works_as_root": False}, "cuda.init_failed"),
        ({"init": 999, "euid": 0, "works_as_root": True}, "cuda.init_failed"),
        ({"init": 100}, "cuda.no_device"),
        ({"init": 100, "visible": "0,1"}, "cuda.no_device"),
        ({"init": 100, "visible": "GPU-01020304"}, "cuda.no_device"),
        ({"init": 100, "visible": ""}, "cuda.device_hidden"),
        ({"init": 999, "visible": "", "nvml": 18}, "cuda.version_mismatch"),
        ({"init": 3, "uvm_disable_hmm": "N", "open_module": False}, "cuda.init_failed"),
        ({"init": 3, "uvm_disable_hmm": "N", "open_module": None}, "cuda.hmm_failed"),
        ({"init": 3}, "cuda.init_failed"),
        ({"init": 802, "nvswitch": None}, "cuda.system_not_ready"),
        ({"init": 802, "nvswitch": True, "fabric_manager": None}, "cuda.fabric_manager"),
        ({"init": 802, "nvswitch": True, "fabric_manager": True}, "cuda.fabric_manager"),
        ({"init": 803}, "cuda.version_mismatch"),
        ({"init": 999, "module_version": "590.48.01", "library_version": "580.95.05"}, "cuda.version_mismatch"),
        ({"init": 999, "module_version": "590.48.01", "library_version": "590.48.01"}, "cuda.init_failed"),
        ({"init": 999, "module_version": None, "library_version": "590.48.01"}, "cuda.init_failed"),
        ({"init": None, "load_error": "cannot open shared object file"}, "cuda.library_missing"),
        ({"init": None}, "cuda.init_failed"),
        ({"count": 7}, "cuda.gpu_count"),
        ({"count": 9}, "cuda.gpu_count"),
        ({"count": 2, "visible": "0,1"}, "cuda.device_hidden"),
        ({"count": 3, "visible": "0,1"}, "cuda.gpu_count"),
        ({"count": 9, "visible": "0,1,2,3,4,5,6,7,8"}, "cuda.gpu_count"),
        ({"count": 2, "expected": 2, "visible": "0,1"}, None),
        ({"count": 8, "expected": None}, None),
        ({"count": 0, "expected": None}, "cuda.gpu_count"),
    ],
)
def test_other_ways(changes, expected):
    assert cause(**changes) == expected


def test_what_was_not_tried_is_said():
    assert "whether root can was not tried" in diagnose(good(init=999, euid=1000)).message


def test_nodes_come_before_everything_that_cuda_says():
    blocking = nodes(control={"opened": False, "open_errno": errno.EPERM})
    for number in (3, 100, 101, 802, 803, 804, 999):
        assert cause(nodes=blocking, init=number, uvm_disable_hmm="N", visible="") == "device.denied_cgroup"


@given(
    st.builds(
        Facts,
        nodes=st.sampled_from([(), nodes(), nodes(gpus=0), nodes(uvm={"opened": False, "open_errno": errno.EPERM})]),
        load_error=st.sampled_from([None, "no"]),
        init=st.sampled_from([None, 0, 3, 100, 101, 802, 803, 804, 999, 12345]),
        hung=st.sampled_from([None, "D (disk sleep)"]),
        count=st.sampled_from([None, 0, 1, 8]),
        expected=st.sampled_from([None, 0, 1, 8]),
        visible=st.one_of(st.none(), st.text()),
        uvm_disable_hmm=st.sampled_from([None, "N", "Y"]),
        nvswitch=st.sampled_from([None, True, False]),
        fabric_manager=st.sampled_from([None, True, False]),
        euid=st.sampled_from([0, 1000]),
        works_as_root=st.sampled_from([None, True, False]),
    )
)
def test_any_facts_give_a_registered_cause_and_a_failed_start_never_passes(facts):
    found = diagnose(facts)
    if found is None:
        assert facts.init == 0
        assert facts.hung is None
    else:
        assert found.cause in CAUSES


@pytest.mark.parametrize(
    ("value", "gpus", "count", "bad"),
    [
        ("0,1", 2, 2, False), ("1,0", 2, 2, False), (" 0 , 1 ", 2, 2, False), ("", 2, 0, True), ("2", 2, 0, True),
        ("0,2,1", 2, 1, True), ("0,0", 2, 0, True), ("-1", 2, 0, True), ("NoDevFiles", 2, 0, True),
        ("GPU-1a2b,MIG-3c4d", 2, 2, False), ("0,", 2, 1, True), ("٣", 8, 0, True),
    ],
)  # fmt: skip
def test_what_the_list_leaves(value, gpus, count, bad):
    found = shown(value, gpus)
    assert (found.count, found.bad) == (count, bad)
    assert visible.VARIABLE in found.text


def test_no_list_hides_nothing():
    assert shown(None, 8) is None
