"""The frame of tuning: compared before written, read back after, put back byte for byte."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from fake_host import FakeHost

from gpuhost import tuning
from gpuhost.errors import Stop, stop
from gpuhost.host_io import Host
from gpuhost.tuning import FILE, LIVE, Write

SWAPPINESS, DROP_IN = "/proc/sys/vm/swappiness", "/etc/sysctl.d/zzz-gpuhost.conf"
WRITES = [Write(FILE, DROP_IN, "vm.swappiness = 10\n"), Write(LIVE, SWAPPINESS, "10\n")]


@pytest.fixture
def host(tmp_path: Path) -> FakeHost:
    made = FakeHost(tmp_path)
    made.put(SWAPPINESS, "60\n")
    made.put("/var/lib/gpuhost/lock")
    return made


def test_what_differs_is_written_and_read_back(host: FakeHost) -> None:
    results = tuning.apply(host, WRITES, False)
    assert [item.status for item in results] == ["written", "written"]
    assert [item.line for item in results] == [f"{DROP_IN}: written", f"{SWAPPINESS}: 60 -> 10"]
    assert host.read(SWAPPINESS) == "10\n"
    assert host.read(DROP_IN) == "vm.swappiness = 10\n"


def test_a_second_run_writes_nothing(host: FakeHost) -> None:
    tuning.apply(host, WRITES, False)
    before = host.snapshot()
    assert [item.status for item in tuning.apply(host, WRITES, False)] == ["same", "same"]
    assert host.snapshot() == before


def test_check_mode_says_the_same_and_writes_nothing(host: FakeHost) -> None:
    before = host.snapshot()
    shown = tuning.apply(host, WRITES, True)
    assert host.snapshot() == before
    assert shown == tuning.apply(host, WRITES, False)


def test_revert_restores_what_was_there_before_the_first_tune(host: FakeHost) -> None:
    host.put(DROP_IN, "by hand\xff\n")
    before = host.snapshot()
    tuning.apply(host, WRITES, False)
    tuning.apply(host, [Write(LIVE, SWAPPINESS, "5\n"), Write(FILE, DROP_IN, None)], False)
    assert [item.status for item in tuning.revert(host, False)] == ["written", "written"]
    assert host.snapshot() == before
    assert tuning.revert(host, False) == []


def test_a_file_that_was_not_there_goes(host: FakeHost) -> None:
    tuning.apply(host, WRITES, False)
    tuning.revert(host, False)
    assert not host.exists(DROP_IN)
    assert not host.exists(tuning.RECORD)


def test_one_refused_write_keeps_none_of_the_others_back(host: FakeHost) -> None:
    missing = Write(LIVE, "/proc/sys/kernel/sched_autogroup_enabled", "0\n")
    results = tuning.apply(host, [missing, *WRITES], False)
    assert [item.status for item in results] == ["refused", "written", "written"]
    assert "No such file" in results[0].reason


def test_a_value_that_does_not_stay_is_refused(host: FakeHost, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "write_live", lambda *_: None)
    (result,) = tuning.apply(host, WRITES[1:], False)
    assert (result.status, result.reason) == ("refused", "reads 60 after it was written")


def test_what_could_not_be_put_back_stays_on_record(host: FakeHost, monkeypatch: pytest.MonkeyPatch) -> None:
    tuning.apply(host, WRITES, False)

    def refuse(path: str, value: str) -> None:
        raise stop("host.module_failed", path, "Permission denied")

    with monkeypatch.context() as patched:
        patched.setattr(host, "write_live", refuse)
        assert [item.status for item in tuning.revert(host, False)] == ["refused", "written"]
    assert [item.write.object for item in tuning.revert(host, False)] == [SWAPPINESS]
    assert host.read(SWAPPINESS) == "60\n"


@pytest.mark.parametrize(
    ("seen", "wanted", "same"),
    [
        ("always [madvise] never\n", "madvise", True),
        ("always [madvise] never\n", "never", False),
        ("4096\t87380\t6291456\n", "4096 87380 6291456", True),
        ("10\n", "10", True),
        ("10\n", "1", False),
    ],
)
def test_the_kernels_spelling_of_a_value(host: FakeHost, seen: str, wanted: str, same: bool) -> None:
    host.put(SWAPPINESS, seen)
    (result,) = tuning.apply(host, [Write(LIVE, SWAPPINESS, wanted)], True)
    assert (result.status == "same") is same


@pytest.mark.parametrize("text", ["", "[]", '{"befores": [{"kind": "live"}]}', '{"befores": [{"before": "%"}]}'])
def test_a_broken_record_is_a_stop_and_never_empty(host: FakeHost, text: str) -> None:
    host.put(tuning.RECORD, text)
    with pytest.raises(Stop) as caught:
        tuning.apply(host, WRITES, False)
    assert caught.value.blocker.object == tuning.RECORD
    assert host.read(SWAPPINESS) == "60\n"


def test_one_that_can_not_be_read_keeps_none_of_the_others_back(
    host: FakeHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    tuning.apply(host, WRITES, False)
    kind = tuning.KINDS[FILE]

    def refuse(_: Host, path: str) -> str:
        raise stop("host.module_failed", path, "Input/output error")

    with monkeypatch.context() as patched:
        patched.setitem(tuning.KINDS, FILE, replace(kind, read=refuse))
        results = tuning.revert(host, False)
    assert [(item.status, item.reason) for item in results] == [("written", ""), ("refused", "Input/output error")]
    assert host.read(SWAPPINESS) == "60\n"
    assert [item.object for item in tuning.load(host).writes()] == [DROP_IN]


def test_a_live_value_that_this_kernel_does_not_have_is_gone_already(host: FakeHost) -> None:
    tuning.apply(host, WRITES, False)
    host.remove(SWAPPINESS)
    assert [item.status for item in tuning.revert(host, False)] == ["same", "written"]
    assert not host.exists(tuning.RECORD)
