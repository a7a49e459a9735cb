"""The kernel command line: cases cmdline-01 to -03, the kernel's own rules, and laws by hypothesis."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuhost.cmdline import (
    REPEATABLE,
    Wanted,
    apply,
    effective_first_line,
    has_root,
    missing,
    parse,
    render_argument,
    rewrite_file,
)

CASES = Path(__file__).parent.parent / "cases"
WANTED: Wanted = {"amd_pstate": "active", "processor.max_cstate": "1", "nmi_watchdog": "0"}
ROOT = "root=ZFS=rpool/ROOT/pve-1 boot=zfs"


def _case_input(name: str) -> str:
    """The fenced block under "Input" of a case."""
    found = re.search(r"## Input\n\n```\n(.*?)```", (CASES / name).read_text(), re.DOTALL)
    assert found is not None
    return found[1]


def test_case_cmdline_01_second_line() -> None:
    a = f"{ROOT} quiet\namd_pstate=active processor.max_cstate=1 nmi_watchdog=0\n"
    first, warnings = effective_first_line(a)
    assert first == f"{ROOT} quiet"
    assert len(warnings) == 1
    assert "line 2" in warnings[0]
    assert missing(first, WANTED) == ["amd_pstate=active", "processor.max_cstate=1", "nmi_watchdog=0"]
    right = f"{ROOT} quiet amd_pstate=active processor.max_cstate=1 nmi_watchdog=0\n"
    assert rewrite_file(a, WANTED) == right
    assert rewrite_file(right, WANTED) == right


def test_case_cmdline_01_empty_first_line_and_no_line_end() -> None:
    b = f"\n{ROOT}\n"
    first, warnings = effective_first_line(b)
    assert first == ""
    assert any("no root=" in warning for warning in warnings)
    added = "amd_pstate=active processor.max_cstate=1 nmi_watchdog=0\n"
    assert rewrite_file(b, WANTED) == f"{ROOT} {added}"
    assert rewrite_file(ROOT, WANTED) == f"{ROOT} {added}"
    assert effective_first_line(ROOT) == (ROOT, [])
    assert effective_first_line(f"{ROOT}\r\n") == (ROOT, [])


def test_rewrite_puts_root_in_front_and_drops_comments() -> None:
    assert rewrite_file(f"# managed by hand\nquiet\n{ROOT}\n\n", {}) == f"{ROOT} quiet\n"


@pytest.mark.parametrize(
    "text", ["", "\n", "quiet\n", "# root=/dev/sda1\n", "init=/bin/sh -- root=/dev/sda1\n", "root=\n"]
)
def test_never_without_root(text: str) -> None:
    with pytest.raises(ValueError, match="without root="):
        rewrite_file(text, WANTED)
    with pytest.raises(ValueError, match="without root="):
        rewrite_file(f"{ROOT}\n", {"root": None})


def test_case_cmdline_02_values_replaced_in_place() -> None:
    current = _case_input("cmdline-02-conflicting-values.md")
    assert missing(current, WANTED) == ["amd_pstate=active", "processor.max_cstate=1", "nmi_watchdog=0"]
    result = apply(current, WANTED)
    assert result == (
        "root=/dev/mapper/pve-root ro quiet amd_pstate=active processor.max_cstate=1 intel_idle.max_cstate=1 "
        "nmi_watchdog=0 iommu=pt amd_iommu=on mitigations=auto\n"
    )
    assert missing(result, WANTED) == []
    assert apply(result, WANTED) == result


def test_case_cmdline_02_dash_and_underscore_are_one_key() -> None:
    assert apply("amd-pstate=passive ro", {"amd_pstate": "active"}) == "amd_pstate=active ro"
    assert apply("amd-pstate=active ro", {"amd_pstate": "active"}) == "amd-pstate=active ro"
    assert apply("amd_pstate=active ro", {"amd-pstate": None}) == "ro"
    assert missing("processor.max_cstate=10", {"processor.max_cstate": "1"}) == ["processor.max_cstate=1"]


def test_case_cmdline_03_repeated_keys() -> None:
    current = _case_input("cmdline-03-repeated-keys-keep-order.md")
    result = apply(current, WANTED)
    assert result == current.removesuffix("\n") + " amd_pstate=active\n"
    assert apply(result, WANTED) == result
    assert missing(result, WANTED) == []


def test_repeats_of_which_one_is_wrong_are_folded() -> None:
    assert apply("nmi_watchdog=1 a nmi_watchdog=0 b", {"nmi_watchdog": "0"}) == "nmi_watchdog=0 a b"
    assert missing("nmi_watchdog=1 a nmi_watchdog=0", {"nmi_watchdog": "0"}) == []  # the last one wins
    assert missing("nmi_watchdog=0 a nmi_watchdog=1", {"nmi_watchdog": "0"}) == ["nmi_watchdog=0"]


def test_keys_that_mean_something_each_time() -> None:
    both = "console=tty0 console=ttyS0,115200n8"
    assert apply(both, {"console": "tty0"}) == both
    assert missing(both, {"console": "tty0"}) == []
    for wanted in ({"console": "ttyS1"}, {"console": None}):
        with pytest.raises(ValueError, match="several times"):
            apply(both, wanted)
    assert apply("console=tty0", {"console": "ttyS0"}) == "console=ttyS0"


def test_flags() -> None:
    assert apply("ro", {"norandmaps": True}) == "ro norandmaps"
    assert apply("ro norandmaps", {"norandmaps": True}) == "ro norandmaps"
    assert apply("ro quiet splash", {"quiet": None, "splash": False}) == "ro"
    assert missing("ro quiet", {"quiet": None, "panic": "30", "ro": True}) == ["quiet (must be absent)", "panic=30"]
    assert missing("quiet=1", {"quiet": True}) == ["quiet"]


def test_quotes() -> None:
    text = 'root=/dev/sda1 dyndbg="file drivers/pci/* +p" "spaced=a b" x=""'
    keys = [(item.key, item.value) for item in parse(text).arguments]
    assert keys == [("root", "/dev/sda1"), ("dyndbg", "file drivers/pci/* +p"), ("spaced", "a b"), ("x", "")]
    assert apply(text, {"spaced": "a b", "dyndbg": "file drivers/pci/* +p"}) == text
    assert apply(text, {"spaced": "a c"}) == 'root=/dev/sda1 dyndbg="file drivers/pci/* +p" spaced="a c" x=""'
    assert apply('amd_pstate="active"', {"amd_pstate": "active"}) == 'amd_pstate="active"'


def test_arguments_of_init_are_not_ours() -> None:
    assert apply("root=/dev/sda1 -- nmi_watchdog=1\n", WANTED) == (
        "root=/dev/sda1 amd_pstate=active processor.max_cstate=1 nmi_watchdog=0 -- nmi_watchdog=1\n"
    )
    assert apply("-- x", {"quiet": True}) == "quiet -- x"
    assert missing("ro -- panic=30", {"panic": "30"}) == ["panic=30"]


def test_white_space_stays() -> None:
    assert apply("  root=x \t quiet  \n", {"panic": "30"}) == "  root=x \t quiet panic=30  \n"
    assert apply("  a=1  b=2 ", {"a": None}) == "  b=2 "
    assert apply("", {"panic": "30"}) == "panic=30"
    assert apply("\n", {"panic": "30"}) == "panic=30\n"
    assert apply("a=1", {"a": None}) == ""


@pytest.mark.parametrize(
    ("current", "wanted"),
    [
        ('dyndbg="file x', {"panic": "30"}),
        ("ro", {"a b": "1"}),
        ("ro", {"a=b": "1"}),
        ("ro", {"": True}),
        ("ro", {"--": True}),
        ("ro", {"a": 'say "x"'}),
        ("ro", {"a": "1\n2"}),
        ("ro", {"amd_pstate": "active", "amd-pstate": "passive"}),
    ],
)
def test_refused(current: str, wanted: Wanted) -> None:
    with pytest.raises(ValueError):
        apply(current, wanted)


def test_has_root() -> None:
    assert has_root("quiet root=UUID=x")
    assert not has_root("rooty=1 noroot=2 root")


# --- laws

texts = st.text(alphabet=st.sampled_from("abA=-_.\"' \t\n,:é#"), max_size=40)
keys = st.sampled_from(["amd_pstate", "nmi-watchdog", "processor.max_cstate", "quiet", "panic"])
values = st.one_of(st.none(), st.just(True), st.sampled_from(["0", "1", "active", "a b", "x=y", ""]))
wishes = st.dictionaries(keys, values, max_size=4)
ROOTED = ["root=/dev/sda1", "ro", "console=tty0", "--", 'dyndbg="file a b +p"']
OURS = ["quiet", "quiet=1", "nmi_watchdog=0", "nmi-watchdog=1", "panic=0", 'panic="5"', "amd-pstate=passive"]
tokens = st.sampled_from([*ROOTED, *OURS, "processor.max_cstate=10"])
lines = st.builds(" ".join, st.lists(tokens, max_size=8)) | st.builds("  ".join, st.lists(tokens, max_size=5))


@given(texts)
def test_parse_and_render_give_the_same_bytes(text: str) -> None:
    assert parse(text).render() == text


@given(lines, wishes)
def test_apply_is_enough_and_idempotent(current: str, wanted: Wanted) -> None:
    result = apply(current, wanted)
    assert missing(result, wanted) == []
    assert apply(result, wanted) == result
    assert apply(current, {}) == current


@given(lines, wishes)
def test_apply_touches_no_other_argument(current: str, wanted: Wanted) -> None:
    ours = {key.replace("-", "_") for key in wanted}
    before, after = parse(current), parse(apply(current, wanted))
    assert [item.text for item in before.own if item.key not in ours] == [
        item.text for item in after.own if item.key not in ours
    ]
    assert [item.text for item in before.arguments[before.end :]] == [
        item.text for item in after.arguments[after.end :]
    ]
    assert before.tail == after.tail


@given(keys, st.text(alphabet=st.characters(exclude_characters='"\n\v\f\r\0', max_codepoint=0x2FF), max_size=12))
def test_a_rendered_argument_reads_back(key: str, value: str) -> None:
    (argument,) = parse(render_argument(key, value)).arguments
    assert (argument.key, argument.value) == (key.replace("-", "_"), value)


def test_our_own_keys_are_not_repeatable() -> None:
    assert not REPEATABLE & {"panic", "amd_pstate", "processor.max_cstate", "nmi_watchdog"}
