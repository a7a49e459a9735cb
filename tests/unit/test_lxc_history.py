"""A record with several numbers for a driver: a rewrite that was cut off ends right, whichever kernel comes next."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_lxc_properties import DYNAMIC_NAMES, NODES, POOL, generated
from test_lxc_reconcile import ids, table

from gpuhost.lxc_config import parse
from gpuhost.lxc_reconcile import Reconciliation, reconcile, stale_rules
from gpuhost.proc_devices import names_by_major, record_tables

Numbers = Mapping[str, int]

# The incident's numbers: 507 is nvidia-caps' on the old kernel and could be anybody's on the next.
A, B = {"nvidia-uvm": 504, "nvidia-caps": 507}, {"nvidia-uvm": 507, "nvidia-caps": 509}
BOTH = {"nvidia-uvm": (507, 504), "nvidia-caps": (509, 507)}
C = {"nvidia-uvm": 240, "nvidia-caps": 241}


def both(first: Numbers, last: Numbers) -> dict[str, Sequence[int]]:
    """The record while rules go from the first numbers to the last, as majors_record.changing() makes it."""
    return {name: tuple(dict.fromkeys((last[name], first[name]))) for name in first}


def config(numbers: Sequence[tuple[int, str]], names: Sequence[str] = ()) -> bytes:
    lines = [f"lxc.cgroup2.devices.allow: c {major}:{minor}" for major, minor in numbers]
    lines += [f"lxc.mount.entry: /dev/{node} dev/{node} none bind" for name in names for node in NODES[name]]
    return "".join(f"{line}\n" for line in lines).encode()


def numbers_of(data: bytes) -> list[int | None]:
    return [rule.major for rule in parse(data).rules]


# --- the record itself


def test_tables_of_a_record() -> None:
    assert record_tables(BOTH) == (B, A)
    assert record_tables({"nvidia-uvm": 504, "nvidia-caps": [237, 507], "gpiochip": 254, "nvidia-nvlink": ()}) == (
        {"nvidia-uvm": 504, "nvidia-caps": 237},
        {"nvidia-uvm": 504, "nvidia-caps": 507},
    )
    assert record_tables({}) == ()


def test_numbers_of_a_record_the_newest_claim_first() -> None:
    assert names_by_major(BOTH) == {504: ("nvidia-uvm",), 507: ("nvidia-uvm", "nvidia-caps"), 509: ("nvidia-caps",)}


# --- whole files, with nothing that says what they need


@pytest.mark.parametrize("written", [A, B])
@pytest.mark.parametrize("now", [A, B, C])
def test_a_file_without_mounts_is_read_by_the_table_it_was_written_for(written: Numbers, now: Numbers) -> None:
    data = config([(written["nvidia-uvm"], "0 rwm"), (written["nvidia-caps"], "1 r")])
    outcome = reconcile(data, table(now), BOTH, presumed="report")
    assert numbers_of(outcome.content) == [now["nvidia-uvm"], now["nvidia-caps"]]
    assert {change.attribution for change in outcome.changes} <= {"recorded"}
    assert not reconcile(outcome.content, table(now), BOTH).changed


def test_a_record_that_names_two_drivers_decides_nothing_alone() -> None:
    swapped = {"nvidia-uvm": (509, 507), "nvidia-caps": (507, 509)}
    data = config([(507, "0 rwm"), (509, "1 r"), (10, "200 rwm")])
    outcome = reconcile(data, table(C, {507: "gpiochip"}), swapped)
    assert (outcome.changed, ids(outcome)) == (False, ["lxc.swap_undecided"])
    assert outcome.findings[0].severity == "security"
    assert [(held.held, held.attribution, held.old_major) for held in outcome.held] == [
        ("undecided", "presumed", 507), ("undecided", "presumed", 509),
    ]  # fmt: skip
    # So nobody takes the record for settled: it is all that says whose numbers these are.
    judged = stale_rules(data, table(C, {507: "gpiochip"}), swapped)
    assert [(rule.major_allowed, rule.owner) for rule in judged] == [(507, "gpiochip"), (509, None)]
    # Where both ends are the same there is nothing to decide.
    wide = config([(507, "* rwm"), (509, "* rwm")])
    assert sorted(map(str, numbers_of(reconcile(wide, table(C), swapped).content))) == ["240", "241"]


# --- generated


@st.composite
def three_tables(draw: st.DrawFn) -> tuple[Numbers, Numbers, Numbers]:
    names = draw(st.lists(st.sampled_from(DYNAMIC_NAMES), min_size=1, max_size=4, unique=True))
    first, last, other = (dict(zip(names, draw(st.permutations(POOL)), strict=False)) for _ in range(3))
    return first, last, other


@given(three_tables(), st.integers(0, 2), st.data())
@generated
def test_a_rewrite_that_was_cut_off_ends_right(
    tables: tuple[Numbers, Numbers, Numbers], which: int, data: st.DataObject
) -> None:
    """Any of the rules may have been rewritten already, as if each stood in a file of its own."""
    first, last, now = tables[0], tables[1], tables[which]
    rewritten = data.draw(st.sets(st.sampled_from(sorted(first))))
    text = config([((last if name in rewritten else first)[name], "* rwm") for name in first], list(first))
    others = {major: f"other{major}" for major in POOL if major not in now.values()}
    current, record = table(now, others), both(first, last)

    def run(config: bytes, record: Mapping[str, int | Sequence[int]]) -> Reconciliation:
        return reconcile(config, current, record, presumed="report")

    outcome = run(text, record)
    assert set(numbers_of(outcome.content)) == set(now.values())
    assert outcome.held == ()
    assert {change.attribution for change in outcome.changes} <= {"current", "recorded"}
    assert run(outcome.content, record).content == outcome.content
    # Afterwards the record says the current numbers alone.
    assert run(outcome.content, now).content == outcome.content
    assert stale_rules(outcome.content, current, record) == ()
    # Files that are rewritten whole never need a rule more.
    if rewritten in (set(), set(first)):
        assert [change.kind for change in outcome.changes if change.kind != "replace"] == []


@given(three_tables(), st.sampled_from([0, 1]), st.integers(0, 2), st.data())
@generated
def test_without_mounts_a_file_ends_right_or_is_left_alone(
    tables: tuple[Numbers, Numbers, Numbers], written: int, which: int, data: st.DataObject
) -> None:
    names = data.draw(st.lists(st.sampled_from(sorted(tables[0])), unique=True))
    now = tables[which]
    # A minor of its own for each driver, so that a wrong number always matters.
    text = config([(tables[written][name], f"{minor} rwm") for minor, name in enumerate(names)])
    outcome = reconcile(text, table(now), both(tables[0], tables[1]), presumed="report")
    found = numbers_of(outcome.content)
    if outcome.changed:
        undecided = {rule.major for rule in parse(text).rules} if "lxc.swap_undecided" in ids(outcome) else set()
        for name, number, old in zip(names, found, numbers_of(text), strict=True):
            assert number == now[name] or (number == old and old in undecided)
    assert (
        reconcile(outcome.content, table(now), both(tables[0], tables[1]), presumed="report").content == outcome.content
    )
