"""Properties of the reconciliation over generated configs and tables of majors, and over arbitrary bytes."""

from __future__ import annotations

from collections.abc import Mapping

from hypothesis import given, settings
from hypothesis import strategies as st

from gpuhost.lxc_config import MAIN, Style, parse
from gpuhost.lxc_plan import Presumed
from gpuhost.lxc_reconcile import Reconciliation, declared_nodes, reconcile, stale_rules
from gpuhost.proc_devices import NVIDIA_NAMES, CharacterMajors

DYNAMIC_NAMES = ("nvidia-uvm", "nvidia-caps", "nvidia-caps-imex-channels", "nvidia-nvswitch", "nvidia-nvlink")
NODES = {
    "nvidia": ("nvidia0", "nvidiactl"),
    "nvidia-uvm": ("nvidia-uvm", "nvidia-uvm-tools"),
    "nvidia-caps": ("nvidia-caps/nvidia-cap1", "nvidia-caps/nvidia-cap2"),
    "nvidia-caps-imex-channels": ("nvidia-caps-imex-channels/channel0",),
    "nvidia-nvswitch": ("nvidia-nvswitch0",),
    "nvidia-nvlink": ("nvidia-nvlink",),
}
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


@st.composite
def configs(draw: st.DrawFn, before: dict[str, int]) -> tuple[bytes, list[str]]:
    """A config as it was right before the upgrade, and for each rule line its driver ("" for somebody else's)."""
    owners: list[str] = []
    lines = ["arch: amd64", "#c 504:* rwm"]
    foreign = [major for major in (226, 10, 188, *POOL) if major not in before.values()]
    for _ in range(draw(st.integers(0, 7))):
        name = draw(st.sampled_from(["", "nvidia", *before]))
        major = draw(st.sampled_from(foreign)) if not name else before.get(name, 195)
        minor = draw(st.sampled_from(["*", "*", "0", "1", "2"]))
        access, note = draw(st.sampled_from([("rwm", ""), ("rwm", " # note"), ("rw", ""), ("r", "")]))
        separator = draw(st.sampled_from([": ", " = "]))
        key = draw(st.sampled_from(["lxc.cgroup2.devices.allow"] * 5 + ["lxc.cgroup2.devices.deny"]))
        lines.append(f"{key}{separator}c {major}:{minor} {access}{note}")
        owners.append(name)
    for name in draw(st.lists(st.sampled_from(["nvidia", *before]), unique=True)):
        lines += [f"lxc.mount.entry: /dev/{node} dev/{node} none bind" for node in NODES[name]]
    lines += ["", "[snap]", *(f"lxc.cgroup2.devices.allow: c {major}:* rwm" for major in before.values())]
    end = draw(st.sampled_from(["\n", "\r\n"]))
    return end.join(lines).encode() + draw(st.sampled_from([b"", end.encode()])), owners


def assert_only_numbers_changed(
    config: bytes, outcome: Reconciliation, owners: list[str], before: Mapping[str, int]
) -> None:
    """Only numbers of NVIDIA rules change, and only on lines that a change names; order and all else stay."""
    old, new = parse(config), parse(outcome.content)
    replaced = {change.line: change for change in outcome.changes if change.kind == "replace"}
    added = sum(change.kind == "add" for change in outcome.changes)
    assert len(new.lines) == len(old.lines) + added
    kept = iter(line.raw for line in new.lines)
    for line in old.lines:
        change = replaced.get(line.number)
        expected = line.raw
        if change is not None:
            expected = line.raw.replace(f"c {change.old_major}:".encode(), f"c {change.new_major}:".encode())
            assert change.attribution == "presumed" or owners[line.number - 3] in before
        # The last line gets a line end when something is put after it.
        assert any(raw == expected or raw.rstrip(b"\r\n") == expected for raw in kept)


@given(st.data(), majors_before_and_now(), st.sampled_from(["report", "apply"]))
@settings(max_examples=300, deadline=None)
def test_generated_configs(
    data: st.DataObject, tables: tuple[dict[str, int], dict[str, int], dict[int, str]], presumed: Presumed
) -> None:
    before, now, others = tables
    config, owners = data.draw(configs(before))
    current = table(now, others)
    outcome = reconcile(config, current, before, presumed=presumed)

    # Fixed point, also with the old record.
    again = reconcile(outcome.content, current, before, presumed=presumed)
    assert again.content == outcome.content
    assert again.changes == ()

    assert_only_numbers_changed(config, outcome, owners, before)
    if presumed == "report":
        assert all(change.attribution != "presumed" for change in outcome.changes)

    # What was NVIDIA's is NVIDIA's: no such rule ends on a number of another driver or of nobody.
    result = [rule for rule in parse(outcome.content).rules if rule.section == MAIN]
    foreign_before = {rule.major for rule, owner in zip(parse(config).rules, owners, strict=False) if not owner}
    for rule in result:
        assert rule.major in (*now.values(), 195) or rule.major in foreign_before


@given(st.data(), majors_before_and_now())
@settings(max_examples=200, deadline=None)
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
                b"[snap]\n",
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
@settings(max_examples=300, deadline=None)
def test_any_bytes_are_survived(
    config: bytes, style: Style, presumed: Presumed, declared: tuple[str, ...], hierarchy: str
) -> None:
    now = table({"nvidia-uvm": 509, "nvidia-caps": 504}, {507: "gpiochip"})
    for record in ({}, INCIDENT_BEFORE, dict.fromkeys(NVIDIA_NAMES[4:], 507)):

        def run(data: bytes, record: dict[str, int] = record) -> Reconciliation:
            return reconcile(data, now, record, style=style, presumed=presumed, declared=declared,
                             hierarchy="legacy" if hierarchy == "legacy" else "cgroup2")  # fmt: skip

        outcome = run(config)
        assert outcome.changed == (outcome.content != config)
        assert run(outcome.content).content == outcome.content
        stale_rules(config, now, record, style=style, declared=declared)
