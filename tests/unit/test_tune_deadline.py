"""Old values come back without anybody: the record, the program, the units' texts."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from fake_host import FakeHost

from gpuhost import tune_deadline
from gpuhost.errors import Stop
from gpuhost.tune_deadline import Deadline, Value
from gpuhost.tuning import LIVE

ONE, OTHER = "/proc/sys/vm/one", "/proc/sys/vm/other"
VALUES = [Value(LIVE, ONE, "0\n"), Value(LIVE, OTHER, "60\n")]


@pytest.fixture
def host(tmp_path: Path) -> FakeHost:
    made = FakeHost(tmp_path)
    made.put(ONE, "1\n")
    made.put(OTHER, "10\n")
    made.programs[("systemctl",)] = (0, "active\n", "")
    return made


def test_the_timer_counts_anew_before_each_setting(host: FakeHost) -> None:
    deadline = tune_deadline.install(host, 90)
    assert deadline.has_timer
    assert "OnActiveSec=90\n" in (host.read(tune_deadline.TIMER_FILE) or "")
    restarts = len(host.ran("systemctl", "restart"))
    tune_deadline.begin(host, deadline, VALUES)
    assert len(host.ran("systemctl", "restart")) == restarts + 1
    # The record is on disk before the timer starts, and both are before any write.
    assert host.effects.index(f"write {tune_deadline.RECORD}") < len(host.effects) - 1
    assert host.mode(tune_deadline.RECORD) == 0o600


def test_values_come_back_in_the_opposite_order(host: FakeHost) -> None:
    tune_deadline.begin(host, Deadline(1, False), VALUES)
    assert tune_deadline.put_back(host) == [
        f"{OTHER}: 10 -> 60, as before a measurement", f"{ONE}: 1 -> 0, as before a measurement",
    ]  # fmt: skip
    assert (host.read(ONE), host.read(OTHER)) == ("0\n", "60\n")
    assert not host.exists(tune_deadline.RECORD)
    assert tune_deadline.put_back(host) == []


def test_one_that_does_not_come_back_stays_on_record(host: FakeHost) -> None:
    tune_deadline.begin(host, Deadline(1, False), [Value(LIVE, "/proc/sys/vm/gone", "1\n"), *VALUES])
    with pytest.raises(Stop) as caught:
        tune_deadline.put_back(host)
    assert caught.value.blocker.cause == "tune.not_restored"
    assert caught.value.blocker.object == "/proc/sys/vm/gone"
    assert host.read(ONE) == "0\n"
    host.put("/proc/sys/vm/gone", "5\n")
    assert tune_deadline.put_back(host) == ["/proc/sys/vm/gone: 5 -> 1, as before a measurement"]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"values": [{"kind": "live"}]}'])
def test_a_record_that_can_not_be_read_is_no_silence(host: FakeHost, text: str) -> None:
    host.put(tune_deadline.RECORD, text)
    with pytest.raises(Stop) as caught:
        tune_deadline.at_deadline(host)
    assert caught.value.blocker.cause == "tune.not_restored"


def test_a_kind_of_a_newer_version_is_said(host: FakeHost) -> None:
    tune_deadline.begin(host, Deadline(1, False), [Value("quantum", "spin", "up")])
    with pytest.raises(Stop) as caught:
        tune_deadline.put_back(host)
    assert "quantum" in caught.value.blocker.observed


def test_a_timer_that_does_not_start_is_known_before_the_first_write(host: FakeHost) -> None:
    deadline = tune_deadline.install(host, 90)
    host.programs[("systemctl", "restart")] = (1, "", "Failed")
    with pytest.raises(Stop) as caught:
        tune_deadline.begin(host, deadline, VALUES)
    assert caught.value.blocker.cause == "tune.no_timer"
    assert not host.exists(tune_deadline.RECORD)


@pytest.mark.parametrize("word", ["daemon-reload", "restart", "is-active"])
def test_where_systemd_does_not_take_it_nothing_of_it_stays(host: FakeHost, word: str) -> None:
    host.programs[("systemctl", word)] = (1, "", "no")
    assert not tune_deadline.install(host, 90).has_timer
    assert not host.exists(tune_deadline.TIMER_FILE)
    assert not host.exists(tune_deadline.SERVICE_FILE)


def test_nothing_stays_behind(host: FakeHost) -> None:
    before = {key for key in host.snapshot() if "systemd" not in key and key != "run"}
    deadline = tune_deadline.install(host, 90)
    tune_deadline.begin(host, deadline, VALUES)
    tune_deadline.put_back(host)
    tune_deadline.remove(host)
    assert {key for key in host.snapshot() if "systemd" not in key and key != "run"} == before
    assert host.ran("systemctl", "stop", f"{tune_deadline.UNIT}.timer", f"{tune_deadline.UNIT}.service")
    calls = len(host.calls)
    tune_deadline.remove(host)
    assert len(host.calls) == calls


def test_the_service_restores_though_the_measuring_process_hangs_with_the_lock(host: FakeHost, tmp_path: Path) -> None:
    tune_deadline.begin(host, Deadline(1, False), VALUES)
    with host.lock("/var/lib/gpuhost/lock"):
        assert "as before a measurement" in tune_deadline.at_deadline(FakeHost(tmp_path))
    assert host.read(ONE) == "0\n"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd-analyze here")
def test_systemd_takes_the_units(tmp_path: Path) -> None:
    files = {
        f"{tune_deadline.UNIT}.service": tune_deadline.SERVICE,
        f"{tune_deadline.UNIT}.timer": tune_deadline.timer(90),
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    paths = [str(tmp_path / name) for name in files]
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *paths], capture_output=True, text=True, check=False
    )
    assert (done.returncode, [line for line in done.stderr.splitlines() if tune_deadline.UNIT in line]) == (0, [])


def test_the_service_runs_the_hosts_own_archive() -> None:
    """That this really works is seen in tests/full/test_tune_measure_native.py."""
    assert "Environment=PYTHONPATH=/var/lib/gpuhost/gpuhost.pyz\n" in tune_deadline.SERVICE
    assert "ExecStart=/usr/bin/python3 -m gpuhost.tune_deadline\n" in tune_deadline.SERVICE
