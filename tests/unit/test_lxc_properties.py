"""Properties of the reconciliation over generated configs and tables of majors, and over arbitrary bytes."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st

from gpuhost.lxc_config import MAIN, Style, parse
from gpuhost.lxc_includes import main_section, read_includes
from gpuhost.lxc_plan import Presumed
from gpuhost.lxc_reconcile import Reconciliation, declared_nodes, reconcile, stale_rules
from gpuhost.proc_devices import NVIDIA_NAMES, CharacterMajors, Record

DYNAMIC_NAMES = ("nvidia-uvm", "nvidia-caps", "nvidia-caps-imex-channels", "nvidia-nvswitch", "nvidia-nvlink")
NODES = {
    "nvidia": ("nvidia0", "nvidiactl"),
    "nvidia-uvm": ("nvidia-uvm", "nvidia-uvm-tools"),
    "nvidia-caps": ("nvidia-caps/nvidia-cap1", "nvidia-caps/nvidia-cap2"),
    "nvidia-caps-imex-channels": ("nvidia-caps-imex-channels/channel0",),
    "nvidia-nvswitch": ("nvidia-nvswitch0",),
    "nvidia-nvlink": ("nvidia-nvlink",),
}
# `make test-full` sets GPUHOST_EXAMPLES=10000.
EXAMPLES = int(os.environ.get("GPUHOST_EXAMPLES", "300"))
generated = settings(max_examples=EXAMPLES, deadline=None)
# Few numbers, so that tables overlap and swap often.
POOL = [235, 236, 237, 240, 504, 507, 509]


def table(nvidia: Mapping[str, int], others: Mapping[int, str] | None = None) -> CharacterMajors:
    entries = [(1, "mem"), (10, "misc"), (195, "nvidia"), (195, "nvidiactl")]
    entries += [(major, name) for name, major in nvidia.items()]
    entries += list((others or {}).items())
    return CharacterMajors(tuple(entries))


def rules(*values: str, mounts: tuple[str, ...] = ()) -> bytes:
    lines = ["arch: amd64", *(f"lxc.cgroup2.devices.allow: {value}" for value in values)]
    lines += [f"lxc.mount.entry: /dev/{node} dev/{node} none bind,optional,create=file" for node in mounts]
    return ("\n".join(lines) + "\n").encode()


def allowed(content: bytes) -> list[tuple[int | None, int | None]]:
    return [(rule.major, rule.minor) for rule in parse(content).rules if rule.section == MAIN]


INCIDENT_BEFORE = {"nvidia-uvm": 504, "nvidia-caps": 507}


@st.composite
def majors_before_and_now(draw: st.DrawFn) -> tuple[dict[str, int], dict[str, int], dict[int, str]]:
    names = draw(st.lists(st.sampled_from(DYNAMIC_NAMES), min_size=1, max_size=4, unique=True))
    old = draw(st.permutations(POOL))
    new = draw(st.permutations(POOL))
    before, now = dict(zip(names, old, strict=False)), dict(zip(names, new, strict=False))
    free = [major for major in POOL if major not in now.values()]
    others = {major: f"other{major}" for major in draw(st.lists(st.sampled_from(free), unique=True))} if free else {}
    return before, now, others


@dataclass(frozen=True)
class Sample:
    """A container as it was right before the upgrade. owners: place of a rule -> its driver, "" for a foreign one."""

    style: Style
    config: bytes
    includes: dict[str, bytes]
    owners: dict[tuple[str, int], str]


INCLUDED = "/etc/lxc/gpu.conf"
NOISE = ["#c 504:* rwm", "", "  ", "#[gpu]", "lxc.cap.drop:", "lxc.cgroup2.devices.allow: b 7:* rwm", "[x]", "x" * 90]


@st.composite
def rule_lines(draw: st.DrawFn, before: dict[str, int], style: Style) -> tuple[str, str]:
    """A rule of an NVIDIA driver or of somebody else, in one of the ways to write it, and its driver."""
    foreign = [major for major in (226, 10, 188, *POOL) if major not in before.values()]
    name = draw(st.sampled_from(["", "nvidia", *before]))
    major = draw(st.sampled_from(foreign)) if not name else before.get(name, 195)
    minor = draw(st.sampled_from(["*", "*", "0", "1", "2"]))
    access, note = draw(st.sampled_from([("rwm", ""), ("rwm", " # note"), ("rw", ""), ("r", ""), ("mrw", "x")]))
    separators = [" = ", "=", "\t=  "] if style == "lxc" else [": ", " = ", ":", "=\t", ":   "]
    quote = draw(st.sampled_from(["", "", "", "'", '"']))
    indent = draw(st.sampled_from(["", "  "])) if style == "lxc" else ""
    key = draw(st.sampled_from(["lxc.cgroup2.devices.allow"] * 5 + ["lxc.cgroup2.devices.deny"]))
    value = f"{quote}c {major}:{minor} {access}{note}{quote}"
    return f"{indent}{key}{draw(st.sampled_from(separators))}{value}{draw(st.sampled_from(['', ' ']))}", name


@st.composite
def samples(draw: st.DrawFn, before: dict[str, int]) -> Sample:
    style: Style = draw(st.sampled_from(["pve", "lxc"]))
    owners: dict[tuple[str, int], str] = {}

    def body(file: str, style: Style) -> list[str]:
        lines: list[str] = []
        for _ in range(draw(st.integers(0, 7))):
            if draw(st.integers(0, 3)) == 0:
                noise = draw(st.sampled_from(NOISE))
                lines.append(noise.replace(":", " =") if style == "lxc" else noise)
            else:
                line, owners[file, len(lines) + 1] = draw(rule_lines(before, style))
                lines.append(line)
        return lines

    colon = ": " if style == "pve" else " = "
    own = body("", style)
    included = body(INCLUDED, "lxc") if draw(st.booleans()) else None
    own += [f"lxc.include{colon}{INCLUDED}"] if included is not None else []
    for name in draw(st.lists(st.sampled_from(["nvidia", *before]), unique=True)):
        own += [f"lxc.mount.entry{colon}/dev/{node} dev/{node} none bind" for node in NODES[name]]
    if style == "pve":
        own += ["", "[snap]", *(f"lxc.cgroup2.devices.allow: c {major}:* rwm" for major in before.values())]
    ends = ["\n", "\r\n"] + (["\r"] if style == "lxc" else [])

    def joined(lines: list[str]) -> bytes:
        end = draw(st.sampled_from(ends))
        return (end.join(lines) + draw(st.sampled_from(["", end]))).encode()

    return Sample(style, joined(own), {} if included is None else {INCLUDED: joined(included)}, owners)


def assert_only_numbers_changed(
    sample: Sample, outcome: Reconciliation, after: Mapping[str, bytes], before: Mapping[str, int]
) -> None:
    """Only numbers of NVIDIA rules change, and only on lines that a change names; order and all else stay."""
    changes = [*outcome.changes, *(change for item in outcome.included for change in item.changes)]
    replaced = {(change.file, change.line): change for change in changes if change.kind == "replace"}
    added = sum(change.kind == "add" for change in outcome.changes)
    assert {change.kind for change in changes} <= {"replace", "add"}
    for file, data in {"": sample.config, **sample.includes}.items():
        style = "lxc" if file else sample.style
        old, new = parse(data, style), parse(after[file], style)
        assert len(new.lines) == len(old.lines) + (0 if file else added)
        kept = iter(line.raw for line in new.lines)
        for line in old.lines:
            change = replaced.get((file, line.number))
            expected = line.raw
            if change is not None:
                expected = line.raw.replace(f"c {change.old_major}:".encode(), f"c {change.new_major}:".encode())
                assert sample.owners[file, line.number] in before or (change.attribution == "presumed" and not file)
            # The last line gets a line end when something is put after it.
            assert any(raw == expected or raw.rstrip(b"\r\n") == expected for raw in kept)


@given(st.data(), majors_before_and_now(), st.sampled_from(["report", "apply"]), st.booleans())
@generated
def test_generated_configs(
    data: st.DataObject,
    tables: tuple[dict[str, int], dict[str, int], dict[int, str]],
    presumed: Presumed,
    cut_off: bool,
) -> None:
    before, now, others = tables
    sample = data.draw(samples(before))
    current = table(now, others)
    # As majors_record.changing() leaves it behind when the rewrite is cut off before the first byte.
    record = {name: (now[name], old) if cut_off else old for name, old in before.items()}

    def run(config: bytes, includes: Mapping[str, bytes]) -> Reconciliation:
        return reconcile(config, current, record, style=sample.style, presumed=presumed, includes=includes)

    outcome = run(sample.config, sample.includes)
    after = {item.path: item.content for item in outcome.included}

    # Fixed point, also with the old record.
    again = run(outcome.content, after)
    assert (again.content, again.changes) == (outcome.content, ())
    assert not any(item.changed or item.changes for item in again.included)

    assert_only_numbers_changed(sample, outcome, {**after, "": outcome.content}, before)
    if presumed == "report":
        assert all(change.attribution != "presumed" for change in outcome.changes)

    # What was NVIDIA's is NVIDIA's: no such rule ends on a number of another driver or of nobody.
    result = main_section(parse(outcome.content, sample.style), after).rules
    was = main_section(parse(sample.config, sample.style), sample.includes).rules
    foreign_before = {rule.major for rule in was if not sample.owners.get(rule.place)}
    undecided = any(finding.id == "lxc.swap_undecided" for finding in outcome.findings)
    for rule in result:
        left = undecided and not outcome.needed and rule.major in before.values()
        assert rule.type == "b" or rule.major in (*now.values(), 195) or rule.major in foreign_before or left


@given(st.data(), majors_before_and_now())
@generated
def test_a_rule_per_driver_always_ends_right(
    data: st.DataObject, tables: tuple[dict[str, int], dict[str, int], dict[int, str]]
) -> None:
    before, now, others = tables
    names = data.draw(st.permutations(list(before)))
    mounts = tuple(node for name in names for node in NODES[name])
    config = rules(*(f"c {before[name]}:* rwm" for name in names), mounts=mounts)
    outcome = reconcile(config, table(now, others), before, presumed="report")
    assert {major for major, _ in allowed(outcome.content)} == set(now.values())
    assert len(allowed(outcome.content)) == len(names)
    assert stale_rules(outcome.content, table(now, others), before) == ()


@given(
    st.lists(
        st.one_of(
            st.binary(max_size=30),
            st.sampled_from([
                b"\n", b"lxc.cgroup2.devices.allow: ", b"lxc.cgroup.devices.allow = ", b"lxc.cgroup2.devices.deny: ",
                b"c 504:* rwm\n", b"c 507:0 r\n", b"a\n", b"c *:* m\n", b"/dev/nvidia0 rw\n", b"b 7:* rwm\n",
                b"[snap]\n", b"\r", b"\0", b"lxc.cgroup2.devices.allow = 'c 507:* rwm'\r", b"lxc.cgroup2 =\n",
                b"lxc.include = /i\n", b"lxc.include: /d/\n", b"lxc.mount.entry =\n",
                b"lxc.mount.entry: /dev/nvidia-uvm dev/nvidia-uvm none bind\n", b"dev0: /dev/nvidia-uvm\n",
                b"lxc.mount.entry = /dev/nvidia-caps dev/nvidia-caps none bind\n", b"lock: backup\n", b"a *:* rwm\n",
            ]),
        ),
        max_size=25,
    ).map(b"".join),
    st.sampled_from(["pve", "lxc"]),
    st.sampled_from(["report", "apply"]),
    st.sampled_from([(), declared_nodes([0])]),
    st.sampled_from(["cgroup2", "legacy"]),
)  # fmt: skip
@generated
def test_any_bytes_are_survived(
    config: bytes, style: Style, presumed: Presumed, declared: tuple[str, ...], hierarchy: str
) -> None:
    now = table({"nvidia-uvm": 509, "nvidia-caps": 504}, {507: "gpiochip"})
    several = {"nvidia-uvm": (507, 504), "nvidia-caps": (509, 507)}
    # The config includes itself, once by name and once by folder.
    files = {"/i": config, "/d/x.conf": config}
    assert read_includes(config, files.get, lambda _: ["x.conf", ".conf"], style=style).keys() <= files.keys()
    for record in ({}, INCIDENT_BEFORE, dict.fromkeys(NVIDIA_NAMES[4:], 507), several):

        def run(data: bytes, includes: Mapping[str, bytes] | None, record: Record = record) -> Reconciliation:
            return reconcile(data, now, record, style=style, presumed=presumed, declared=declared, includes=includes,
                             hierarchy="legacy" if hierarchy == "legacy" else "cgroup2")  # fmt: skip

        for includes in (None, files):
            outcome = run(config, includes)
            assert outcome.changed == (outcome.content != config)
            after = None if includes is None else {**includes, **{item.path: item.content for item in outcome.included}}
            again = run(outcome.content, after)
            assert again.content == outcome.content
            assert not any(item.changed for item in again.included)
        stale_rules(config, now, record, style=style, declared=declared, includes=files)
