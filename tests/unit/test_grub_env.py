"""GRUB's environment block: real blocks of grub-editenv, broken ones, and round trips."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuhost.grub_env import MESSAGE, SIGNATURE, SIZE, is_writable_by_grub, one_shot, parse, render

FIXTURES = Path(__file__).parent.parent / "fixtures" / "grub"
ROOT = "0f1e2d3c-4b5a-4697-8877-665544332211"
OLD = f"gnulinux-advanced-{ROOT}>gnulinux-6.1.0-57-amd64-advanced-{ROOT}"


def test_a_real_block_of_each_kind() -> None:
    created = (FIXTURES / "grubenv-created").read_bytes()
    assert parse(created) == {}
    assert render({}) == created
    after = (FIXTURES / "grubenv-after-trial").read_bytes()
    assert parse(after) == {"saved_entry": OLD, "odd": r"a\b=c", "next_entry": ""}
    assert render(parse(after), after) == after


def test_a_used_one_shot_is_an_empty_line() -> None:
    assert one_shot(parse((FIXTURES / "grubenv-after-trial").read_bytes())) is None
    assert one_shot({}) is None
    assert one_shot({"next_entry": OLD}) == OLD


def test_comment_lines_stay_as_they_are() -> None:
    old = (SIGNATURE + b"saved_entry=0\n").ljust(SIZE, b"#")
    assert render({"next_entry": "1"}, old) == (SIGNATURE + b"next_entry=1\n").ljust(SIZE, b"#")
    assert render({}).startswith(SIGNATURE + MESSAGE)


@pytest.mark.parametrize(
    ("block", "why"),
    [
        (b"", "has 1024 bytes, this file has 0"),
        ((SIGNATURE + b"a=1\n").ljust(SIZE - 1, b"#"), "this file has 1023"),
        (b"\0" * SIZE, "no GRUB environment block"),
        ((SIGNATURE + b"a=1").ljust(SIZE, b"#"), "broken GRUB environment block at byte 25"),
        ((SIGNATURE + b"no value\n").ljust(SIZE, b"#"), "broken GRUB environment block at byte 25"),
        ((SIGNATURE + b"a=1\n").ljust(SIZE, b"\0"), "broken GRUB environment block at byte 29"),
    ],
)
def test_broken_blocks_are_refused(block: bytes, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        parse(block)


def test_what_cannot_be_written_is_refused() -> None:
    with pytest.raises(ValueError, match="do not fit"):
        render({"saved_entry": "x" * 1000})
    with pytest.raises(ValueError, match="not the name"):
        render({"a b": ""})
    with pytest.raises(ValueError, match="NUL"):
        render({"a": "\0"})


def test_a_block_may_be_full_to_the_last_byte() -> None:
    room = SIZE - len(SIGNATURE + MESSAGE) - len("a=\n")
    assert parse(render({"a": "x" * room})) == {"a": "x" * room}
    with pytest.raises(ValueError, match="1025 bytes"):
        render({"a": "x" * (room + 1)})


@given(
    st.dictionaries(
        st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,9}", fullmatch=True),
        st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=20),
        max_size=5,
    )
)
def test_render_and_parse_give_back_the_same(variables: dict[str, str]) -> None:
    block = render(variables)
    assert len(block) == SIZE
    assert parse(block) == variables
    assert render(parse(block), block) == block


@pytest.mark.parametrize(
    ("fs", "abstraction", "writable"),
    [
        ("ext2", "", True),
        ("fat\n", "\n", True),
        ("ext2", "lvm", False),
        ("ext2", "diskfilter mdraid1x", False),
        ("btrfs", "", False),
        ("zfs", "", False),
        ("xfs", "", False),
        ("ext2", "cryptodisk luks2", False),
        ("", "", False),
    ],
)
def test_only_what_was_booted_counts_as_writable(fs: str, abstraction: str, writable: bool) -> None:
    assert is_writable_by_grub(fs, abstraction) is writable
