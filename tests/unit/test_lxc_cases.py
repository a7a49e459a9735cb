"""The public problem cases of containers: tests/cases/lxc-*.md is the authority, the companions are the data."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuhost.lxc_config import MAIN, LxcDocument, parse, vmid_of
from gpuhost.lxc_reconcile import Change, Reconciliation, declared_nodes, reconcile, stale_rules
from gpuhost.proc_devices import CharacterMajors, parse_character_majors

CASES = Path(__file__).resolve().parent.parent / "cases"
# What each case says was recorded before the upgrade; cases that are not listed say "no record".
RECORDED: dict[str, dict[str, int]] = {
    "lxc-01": {"nvidia-uvm": 502, "nvidia-caps": 505},
    "lxc-03": {"nvidia-uvm": 235},
    "lxc-04": {"nvidia-uvm": 507, "nvidia-caps": 509},
    "lxc-08": {"nvidia-uvm": 243},
    "lxc-09": {"nvidia-uvm": 501},
    "lxc-10": {"nvidia-uvm": 505},
}
DECLARED = {"lxc-02": declared_nodes([0])}
NAMES = sorted(path.name.removesuffix(".in.conf") for path in CASES.glob("lxc-*.in.conf"))
FULL = {name[:6]: name for name in NAMES}


def config(number: str) -> bytes:
    return (CASES / f"{FULL[number]}.in.conf").read_bytes()


def expected(number: str) -> bytes:
    return (CASES / f"{FULL[number]}.expected.conf").read_bytes()


def majors(number: str) -> CharacterMajors:
    return parse_character_majors((CASES / f"{FULL[number]}.proc_devices.txt").read_text())


def run(number: str, data: bytes | None = None) -> Reconciliation:
    return reconcile(
        config(number) if data is None else data,
        majors(number),
        RECORDED.get(number, {}),
        declared=DECLARED.get(number, ()),
    )


def effective(document: LxcDocument) -> set[tuple[object, ...]]:
    """Rules of the main section under the live key, as numbers and rights."""
    return {
        (rule.allow, rule.kind, rule.type, rule.major, rule.minor, rule.access)
        for rule in document.rules
        if rule.section == MAIN and rule.version == 2
    }


def ids(outcome: Reconciliation) -> list[str]:
    return [finding.id for finding in outcome.findings]


def test_every_case_is_here() -> None:
    assert len(NAMES) == 11
    assert len(list(CASES.glob("lxc-*.md"))) == 12


@pytest.mark.parametrize("number", sorted(FULL))
def test_effective_rules_are_the_expected_ones(number: str) -> None:
    assert effective(parse(run(number).content)) == effective(parse(expected(number)))


@pytest.mark.parametrize("number", sorted(FULL))
def test_bytes_are_the_expected_ones(number: str) -> None:
    outcome = run(number)
    assert outcome.content == expected(number)
    assert outcome.changed == (config(number) != expected(number))


@pytest.mark.parametrize("number", sorted(FULL))
def test_lines_without_a_change_keep_their_bytes(number: str) -> None:
    outcome = run(number)
    touched = {change.line for change in outcome.changes if change.kind in ("replace", "convert", "remove")}
    before = [line.raw for line in parse(config(number)).lines if line.number not in touched]
    after = iter(line.raw for line in parse(outcome.content).lines)
    assert all(raw in after for raw in before), "an untouched line is missing or out of order"


@pytest.mark.parametrize("number", sorted(FULL))
def test_second_run_changes_nothing(number: str) -> None:
    again = run(number, run(number).content)
    assert (again.changed, again.changes, again.held) == (False, (), ())
    assert again.content == expected(number)


def test_01_says_once_that_the_snapshot_is_old() -> None:
    outcome = run("lxc-01")
    assert ids(outcome).count("lxc.snapshot_stale") == 1
    assert "before68" in next(finding.why for finding in outcome.findings if finding.id == "lxc.snapshot_stale")
    assert [(c.line, c.driver, c.old_major, c.new_major, c.attribution) for c in outcome.changes] == [
        (13, "nvidia-uvm", 502, 508, "recorded"),
        (14, "nvidia-caps", 505, 236, "recorded"),
    ]
    assert ids(run("lxc-01", outcome.content)) == ["lxc.snapshot_stale"]


def test_02_undeclared_container_is_only_reported() -> None:
    outcome = reconcile(config("lxc-02"), majors("lxc-02"), {})
    assert not outcome.changed
    assert ids(outcome) == ["lxc.gpu_only_in_snapshot"]
    assert "[clean]" in outcome.findings[0].observed


def test_02_snapshot_stays_when_declared() -> None:
    marker = b"\n[clean]\n"
    assert run("lxc-02").content.partition(marker)[2] == config("lxc-02").partition(marker)[2]


def test_04_without_a_record_adds_the_missing_minor() -> None:
    outcome = reconcile(config("lxc-04"), majors("lxc-04"), {})
    assert "lxc.rule_missing" in ids(outcome)
    added = [change.after for change in outcome.changes if change.kind == "add"]
    assert "lxc.cgroup2.devices.allow: c 509:0 rwm" in added
    assert not [change for change in outcome.changes if change.kind != "add"]
    again = reconcile(outcome.content, majors("lxc-04"), {})
    assert not again.changed


def test_04_swapped_wildcards_are_right_as_a_set() -> None:
    data = config("lxc-04")
    for old, new in ((b"507:0", b"507:*"), (b"507:1", b"507:*"), (b"509:1 r\n", b"509:* rwm\n"),
                     (b"509:2 r\n", b"509:* rwm\n")):  # fmt: skip
        data = data.replace(old, new)
    assert not run("lxc-04", data).changed


def test_05_presumed_is_reported_as_such_and_held_in_report_mode() -> None:
    (change,) = run("lxc-05").changes
    assert (change.line, change.attribution, change.before, change.after) == (
        24,
        "presumed",
        "lxc.cgroup2.devices.allow: c 506:* rwm",
        "lxc.cgroup2.devices.allow: c 507:* rwm",
    )
    assert ids(run("lxc-05")) == ["lxc.presumed_stale", "lxc.hook_style"]
    unattended = reconcile(config("lxc-05"), majors("lxc-05"), {}, presumed="report")
    assert not unattended.changed
    assert [(held.line, held.held) for held in unattended.held] == [(24, "presumed")]


def test_06_wrong_numbers_are_warned_about_on_both_runs() -> None:
    def warned(outcome: Reconciliation) -> list[tuple[str, str]]:
        return [(f.id, f.observed) for f in outcome.findings if f.id in ("lxc.foreign_major", "lxc.unowned_major")]

    first = run("lxc-06")
    assert warned(first) == [
        ("lxc.unowned_major", "allows major 60"),
        ("lxc.foreign_major", "allows major 254, which is gpiochip's"),
        ("lxc.unowned_major", "allows major 255"),
    ]
    assert warned(run("lxc-06", first.content)) == warned(first)


def test_07_left_over_is_reported_and_goes_only_with_a_record() -> None:
    outcome = run("lxc-07")
    assert ids(outcome) == ["lxc.foreign_major"]
    assert "gdrdrv" in outcome.findings[0].observed
    assert outcome.required_paths == (
        "/dev/nvidia0",
        "/dev/nvidiactl",
        "/dev/nvidia-uvm",
        "/dev/nvidia-uvm-tools",
        "/dev/nvidia-caps/nvidia-cap1",
        "/dev/dri/renderD128",
    )
    recorded = reconcile(config("lxc-07"), majors("lxc-07"), {"nvidia-uvm": 509})
    assert recorded.content == config("lxc-07").replace(b"lxc.cgroup2.devices.allow: c 509:* rwm\n", b"")
    assert [(c.kind, c.leaks_to, c.severity) for c in recorded.changes] == [("remove", "gdrdrv", "security")]
    assert not reconcile(recorded.content, majors("lxc-07"), {"nvidia-uvm": 509}).changed


def test_08_dead_lines_are_accounted_for() -> None:
    outcome = run("lxc-08")
    assert [change.kind for change in outcome.changes] == ["convert", "convert"]
    (finding,) = [finding for finding in outcome.findings if finding.id == "lxc.dead_cgroup_key"]
    assert finding.source == "config lines 8, 9"
    assert "converted" in finding.observed


def test_08_on_a_legacy_host_the_v1_key_is_the_live_one() -> None:
    outcome = reconcile(config("lxc-08"), majors("lxc-08"), RECORDED["lxc-08"], hierarchy="legacy")
    assert outcome.content == config("lxc-08").replace(b"c 243:", b"c 508:")
    assert [change.leaks_to for change in outcome.changes] == ["rtc"]


def test_09_line_ends_and_notes_stay() -> None:
    content = run("lxc-09").content
    assert b"c 506:* rwm # uvm\r\n" in content
    assert content.count(b"\n") == content.count(b"\r\n")


@pytest.mark.parametrize("lock", [b"backup", b"snapshot", b"migrate"])
def test_10_locked_config_is_not_written(lock: bytes) -> None:
    data = config("lxc-10").replace(b"arch: amd64\ncores: 24", b"arch: amd64\nlock: " + lock + b"\ncores: 24", 1)
    outcome = run("lxc-10", data)
    assert (outcome.content, outcome.changed, outcome.changes) == (data, False, ())
    assert [held.held for held in outcome.held] == ["locked"]
    assert "lxc.locked" in ids(outcome)


def test_10_backup_section_is_said() -> None:
    assert ids(run("lxc-10")) == ["lxc.backup_section", "lxc.stale_major", "lxc.snapshot_stale"]


def test_11_only_live_files_count() -> None:
    listed = [
        "129.conf", "129.conf.bak", "129.conf.tmp", "129.conf.new", "129.conf.backup.20250301_101500", "1290.conf",
        "gpu-notes.conf", ".ansible_tmpq1w2e3130.conf",
    ]  # fmt: skip
    assert [name for name in listed if vmid_of(name) is not None] == ["129.conf", "1290.conf"]
    assert [name for name in listed if vmid_of(name) == 129] == ["129.conf"]


def test_12_allow_all_covers() -> None:
    assert ids(run("lxc-12")) == ["lxc.allow_all"]
    assert not run("lxc-12").needs_open_test


def test_12_unusual_allow_all_is_left_to_an_open_test() -> None:
    data = config("lxc-12").replace(b"allow: a\n", b"allow: a *:* rwm\n")
    outcome = run("lxc-12", data)
    assert not outcome.changed
    assert ids(outcome) == ["lxc.allow_all_unusual"]
    assert outcome.needs_open_test


def test_judge_sees_nothing_once_reconciled() -> None:
    for number in FULL:
        content = run(number).content
        assert stale_rules(content, majors(number), RECORDED.get(number, {})) == ()


def test_changes_are_plain_values() -> None:
    (change,) = run("lxc-05").changes
    assert change == Change(**vars(change))
