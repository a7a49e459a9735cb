"""The roll file: what is written is read back, and nothing that is there counts as no roll."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fake_host import FakeHost
from hypothesis import given
from hypothesis import strategies as st

from gpuhost.errors import Stop
from gpuhost.host_io import Host
from gpuhost.rollfile import (
    ROLL_FILE,
    Fallback,
    Roll,
    RollStep,
    Trial,
    Workload,
    closed,
    load,
    load_open,
    open_roll,
    parse,
    render,
    save,
    with_step,
)

PLAN: dict[str, Any] = {"target": {"release": "6.12.117+deb12-amd64"}, "cmdline": {"panic": "30"}}


def roll(**changes: Any) -> Roll:
    made = open_roll("gpu-1", "run-1", PLAN, "6.1.0-57-amd64", {"nvidia-uvm": 504})
    return replace(made, **changes)


FULL = roll(
    fallback=Fallback("old.conf", "6.1.0-57-amd64", "debian-*.conf", {"/boot/efi/x": "00ff"}),
    trial=Trial(1, "2026-11-30T00:00:00Z", "boot-id"),
    workloads=(Workload("lxc", "gpu-ct", True, True, 2, "running"),),
    steps=(
        RollStep("prepare", "hold", "run-1", "2026-11-30T00:00:00Z", "2026-11-30T00:00:01Z", 1.0, True, ("a", "b")),
    ),
)


@pytest.fixture
def host(tmp_path: Path) -> FakeHost:
    return FakeHost(tmp_path)


def cause_of(data: bytes) -> str:
    with pytest.raises(Stop) as caught:
        parse(data)
    return caught.value.blocker.cause


@pytest.mark.parametrize("one", [roll(), FULL, closed(FULL, "good", None, "passed")], ids=["new", "full", "closed"])
def test_what_is_written_is_read_back(one: Roll) -> None:
    assert parse(render(one)) == one


@given(st.text(), st.dictionaries(st.text(), st.integers()), st.lists(st.text(), max_size=3))
def test_any_text_survives(sentence: str, majors: dict[str, int], lines: list[str]) -> None:
    try:
        sentence.encode()
        "".join([*majors, *lines]).encode()
    except UnicodeEncodeError:
        return  # a lone surrogate: no text that a program could have printed
    one = with_step(roll(sentence=sentence, majors_before=majors), "gate", "measure", "r", "t", 0.1, False, lines)
    assert parse(render(one)) == one


def test_no_file_is_no_roll(host: FakeHost) -> None:
    assert load(host) is None
    with pytest.raises(Stop) as caught:
        load_open(host)
    assert caught.value.blocker.cause == "roll.not_open"


def test_a_closed_roll_is_read_but_not_open(host: FakeHost) -> None:
    save(host, closed(roll(), "good", None, "passed"))
    found = load(host)
    assert found is not None
    assert not found.is_open
    assert found.closed_at is not None
    with pytest.raises(Stop) as caught:
        load_open(host)
    assert (caught.value.blocker.cause, caught.value.blocker.observed) == ("roll.not_open", "closed: good")


def test_the_file_is_for_root_alone(host: FakeHost) -> None:
    save(host, roll())
    assert host.mode(ROLL_FILE) == 0o600
    assert load_open(host) == roll(head=load_open(host).head, opened_at=load_open(host).opened_at)


BROKEN = {
    "empty": b"",
    "cut": render(FULL)[:-40],
    "not text": b"\xff\xfe\x00",
    "a list": b"[]",
    "null": b"null",
    "a number": b"7",
    "empty object": b"{}",
    "no workloads": json.dumps({k: v for k, v in json.loads(render(FULL)).items() if k != "workloads"}).encode(),
    "an unknown field": json.dumps({**json.loads(render(FULL)), "more": 1}).encode(),
    "steps of another shape": json.dumps({**json.loads(render(FULL)), "steps": [{"stage": "x"}]}).encode(),
    "fallback as text": json.dumps({**json.loads(render(FULL)), "fallback": "old.conf"}).encode(),
}


@pytest.mark.parametrize("data", BROKEN.values(), ids=BROKEN.keys())
def test_what_can_not_be_read_is_never_no_roll(data: bytes, host: FakeHost) -> None:
    assert cause_of(data) == "roll.file_unreadable"
    host.put(ROLL_FILE, data)
    with pytest.raises(Stop):
        load(host)


def test_a_newer_version_names_both_versions() -> None:
    data = json.dumps({**json.loads(render(FULL)), "schema_version": 3}).encode()
    with pytest.raises(Stop) as caught:
        parse(data)
    blocker = caught.value.blocker
    assert (blocker.cause, blocker.observed, blocker.expected) == (
        "roll.file_unreadable", "written in version 3", "version 2",
    )  # fmt: skip
    assert ROLL_FILE in blocker.next_step


def test_a_roll_of_the_version_before_is_read() -> None:
    old = json.loads(render(FULL))
    for name in ("files_changed", "kept_packages", "orders"):
        del old[name]
    old["trial"] = {name: old["trial"][name] for name in ("boots", "armed_at", "boot_id_before")}
    found = parse(json.dumps({**old, "schema_version": 1}).encode())
    assert (found.target, found.kept_packages, found.head.schema_version) == (FULL.target, (), 2)


@pytest.mark.parametrize("state", ["Open", "", "opened", None])
def test_an_unknown_state_is_unreadable(state: str | None) -> None:
    data = json.dumps({**json.loads(render(FULL)), "state": state}).encode()
    assert cause_of(data) == "roll.file_unreadable"


def test_a_document_of_another_kind_is_unreadable() -> None:
    data = json.dumps({**json.loads(render(FULL)), "schema": "gpuhost.plan"}).encode()
    assert cause_of(data) == "roll.file_unreadable"


@pytest.mark.parametrize(
    "path",
    [
        f"{ROLL_FILE}/x",
        "/var/lib/gpuhost",
    ],
    ids=["a folder", "a file above"],
)
def test_something_else_at_the_path_is_never_no_roll(host: FakeHost, path: str) -> None:
    host.put(path, "x")
    with pytest.raises(Stop):
        load(host)


def test_downtime_counts_from_the_drain_that_stopped_something() -> None:
    def done(stage: str, hour: int, changed: bool) -> RollStep:
        return RollStep(stage, "x", "r", f"2026-11-30T{hour:02d}:00:00Z", f"2026-11-30T{hour:02d}:01:00Z", 60, changed)

    one = roll(steps=(done("drain", 1, False), done("drain", 3, True), done("hand_back", 3, True)))
    assert one.downtime_s == 60
    assert roll(steps=(done("drain", 1, False), done("hand_back", 2, True))).downtime_s is None


def test_a_power_cut_while_saving_leaves_the_old_roll(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    host = Host(str(tmp_path))
    save(host, roll(sentence="old"))

    def cut(*_: object) -> None:
        raise OSError(5, "Input/output error")

    for call in ("os.replace", "os.fsync"):
        with monkeypatch.context() as patch:
            patch.setattr(f"gpuhost.host_io.{call}", cut)
            with pytest.raises(Stop) as caught:
                save(host, roll(sentence="new"))
        assert caught.value.blocker.cause == "host.module_failed"
        assert load_open(host).sentence == "old"
        assert host.names("/var/lib/gpuhost") == ["roll.json"]  # no temporary file stays
