"""Prompts are the same everywhere, of the length that was asked for, and no two begin alike."""

from __future__ import annotations

from itertools import combinations, takewhile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuhost_cli.serve_prompts import GOLDEN, Prompts, built_in, load


def test_the_same_text_everywhere() -> None:
    """Python's generator gives the same numbers in every version for a text as its seed; before.json rests on it."""
    assert built_in(1, 0, 40) == (
        "Case 0 of series 1. Notes of the day: The old teacher counted the boats in the harbour because the work was "
        "done. The. Leave the notes aside. Plan a lesson of one hour about sleep, with questions and answers."
    )


@given(st.integers(0, 9), st.integers(0, 7_000_000), st.integers(45, 2000))
def test_length(seed: int, number: int, words: int) -> None:
    assert len(built_in(seed, number, words).split()) == words


def test_a_task_is_there_however_short() -> None:
    assert "Leave the notes aside." in built_in(1, 1, 1)


def test_no_two_begin_alike() -> None:
    """A server that keeps the cache of beginnings must not find one of 16 tokens, a block of vLLM."""
    made = [built_in(1, number, 200) for number in (0, 100_000, 100_001, 150_000, 6_400_000, 6_400_001)]
    for one, other in combinations(made, 2):
        pairs = zip(one.split(), other.split(), strict=False)
        assert len(list(takewhile(lambda pair: pair[0] == pair[1], pairs))) == 1  # Case


def test_seeds_give_other_prompts() -> None:
    assert built_in(1, 5, 100) != built_in(2, 5, 100)


def test_golden_prompts_are_different() -> None:
    assert len(set(GOLDEN)) == len(GOLDEN) == 8


def test_files(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\n\n  two \n")
    (tmp_path / "a.jsonl").write_text('{"prompt": "one"}\n\n"two"\n')
    assert load(tmp_path / "a.txt") == load(tmp_path / "a.jsonl") == ("one", "two")
    prompts = Prompts(1, 10, ("one", "two"))
    assert [prompts.text(number) for number in range(3)] == ["one", "two", "one"]
    assert prompts.name.startswith("file sha256:")
    assert prompts.name != Prompts(1, 10, ("one", "two!")).name


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("a.txt", "\n \n", "holds no prompt"),
        ("a.txt", b"\xff\xfe", "invalid start byte"),
        ("a.jsonl", "{", "line 1 is no JSON"),
        ("a.jsonl", '"x"\n{"text": "y"}', 'line 2 has neither a text nor {"prompt": a text}'),
        ("a.jsonl", "7", "line 1 has neither"),
        (".", None, "Is a directory"),
        ("missing.txt", None, "No such file"),
    ],
)
def test_files_that_are_no_use(tmp_path: Path, name: str, text: str | bytes | None, says: str) -> None:
    if text is not None:
        (tmp_path / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ValueError) as caught:
        load(tmp_path / name)
    assert says in str(caught.value)
