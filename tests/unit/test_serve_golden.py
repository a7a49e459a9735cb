"""Golden answers: what rounding explains passes, what it does not is found."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpuhost.documents import make_head
from gpuhost_cli.serve_documents import GoldenAnswer, GoldenResult, GoldenSet
from gpuhost_cli.serve_golden import Limits, answer_of, common_prefix, compared, recorded
from gpuhost_cli.serve_stream import Stream

WORDS = tuple(" " + word for word in ("the sky is blue because air scatters light and so on " * 6).split())[:64]
OTHER = tuple(f" x{number}" for number in range(64))


def answer(
    prompt: str = "Why?",
    words: tuple[str, ...] = WORDS,
    *,
    lead: float = 4.0,
    drift: float = 0.0,
    probable: bool = True,
) -> GoldenAnswer:
    """A greedy answer, each token ahead of the next candidate by ``lead``."""
    found = GoldenAnswer(prompt, "".join(words), "length")
    if not probable:
        return found
    return replace(
        found, tokens=words, logprobs=tuple(-0.05 - drift for _ in words), margins=tuple(lead for _ in words)
    )


def parted(at: int, **more: float | bool) -> GoldenAnswer:
    return answer(words=WORDS[:at] + OTHER[at:], **more)  # type: ignore[arg-type]


def against(before: list[GoldenAnswer], after: list[GoldenAnswer], limits: Limits | None = None) -> GoldenResult:
    known = GoldenSet(make_head("serve_golden", "h", "r"), "m", "chat", 64, tuple(before))
    return compared("good.json", known, after, limits or Limits())


def test_the_same_answers_pass() -> None:
    found = against([answer()] * 8, [answer()] * 8)
    assert found.cause is None
    assert found.sentence == "8 of 8 golden answers are the same, logprobs have moved by 0.000 nats on average"
    assert {row.verdict for row in found.rows} == {"equal"}


def test_a_near_tie_passes_however_early_it_is() -> None:
    found = against([answer(lead=0.4)] * 8, [parted(2)] * 8)
    assert found.cause is None
    assert found.rows[0].verdict == "near tie"
    assert found.rows[0].sentence == "parts after 2 of 64 tokens, lead 0.40 nats"
    assert found.sentence.endswith("the others part at near ties, as rounding explains")


def test_parting_where_the_model_was_sure_is_found_even_once_and_late() -> None:
    found = against([answer()] * 8, [answer()] * 7 + [parted(60)])
    assert found.cause == "serve.golden_differs"
    assert "7 of 8 golden answers are the same, 1 part where the model was sure: parts after 60 of 64" in found.sentence
    assert "lead 4.00 nats; up to 0.5 is a near tie" in found.sentence
    assert against([answer()] * 8, [answer()] * 7 + [parted(60)], Limits(near_tie_nats=5)).cause is None


@pytest.mark.parametrize(("drift", "cause"), [(0.1, None), (0.2, "serve.golden_differs")])
def test_logprobs_that_move(drift: float, cause: str | None) -> None:
    found = against([answer()] * 8, [answer(drift=drift)] * 8)
    assert (found.cause, found.logprob_difference) == (cause, pytest.approx(drift))
    if cause:
        assert "have moved by 0.200 nats on average, expected at most 0.125" in found.sentence


@pytest.mark.parametrize(
    ("common", "cause"), [([64] * 4 + [8] * 4, None), ([20] * 8, None), ([64] * 3 + [8] * 5, "serve.golden_differs")]
)
def test_without_logprobs_the_common_beginning_counts(common: list[int], cause: str | None) -> None:
    plain = answer(probable=False)
    found = against([plain] * 8, [parted(at, probable=False) for at in common])
    assert found.cause == cause
    assert found.rows[0].unit == "characters"
    assert found.logprob_difference is None


def test_logprobs_on_one_side_only_are_none() -> None:
    found = against([answer()] * 8, [parted(3, probable=False)] * 8)
    assert found.cause == "serve.golden_differs"
    assert "half of them agree for " in found.sentence


@pytest.mark.parametrize("garbage", ["!" * 200, " and so it goes" * 30, "приве世界的عالمhelloสวัสดีקלוע"])
def test_a_garbled_answer_is_found(garbage: str) -> None:
    bad = GoldenAnswer("Why?", garbage, "length")
    found = against([answer()] * 8, [answer()] * 7 + [bad])
    assert found.cause == "serve.garbled"
    assert found.rows[-1].verdict == "garbled"
    assert found.sentence.startswith("1 of 8 golden answers are garbled now: ")


def test_an_answer_that_was_a_loop_then_may_be_one_now() -> None:
    """A small model loops by itself, and was recorded so."""
    loop = answer(words=(" and", " so", " it", " goes") * 32)
    assert against([loop] * 8, [loop] * 8).cause is None


def test_one_answer_that_ends_earlier_is_no_damage_by_itself() -> None:
    found = against([answer()] * 8, [answer()] * 7 + [answer(words=WORDS[:50])])
    assert found.cause is None
    assert found.rows[-1].verdict == "differs"
    assert found.rows[-1].sentence == "parts after 50 of 64 tokens"
    assert found.sentence.endswith("; 1 part where the lead of the first choice is not known")


def test_an_answer_that_ends_where_the_model_was_sure_to_go_on_is_damage() -> None:
    """The end token was chosen there, whether the server lists it or not."""
    short = replace(answer(words=WORDS[:3]), finish="stop")
    found = against([answer()] * 8, [answer()] * 7 + [short])
    assert found.cause == "serve.golden_differs"
    assert found.rows[-1].sentence == "parts after 3 of 64 tokens, lead 4.00 nats"
    assert against([answer(lead=0.4)] * 8, [short] * 8).rows[0].verdict == "near tie"


def test_an_end_token_that_is_no_longer_listed_is_no_damage() -> None:
    before = replace(answer(words=(*WORDS[:5], "<end>")), text="".join(WORDS[:5]), finish="stop")
    after = replace(answer(words=WORDS[:5]), finish="stop")
    assert against([before] * 8, [after] * 8).cause is None


def stream(text: str, tokens: tuple[str, ...] = ()) -> Stream:
    return Stream(
        text, "stop", True, 0.0, 1.0, 2.0, (), 1, 1, 2, "usage", 1, 0, True, tokens, (-0.1,) * len(tokens), ()
    )


def test_recording() -> None:
    same = answer_of("a", stream("one two", ("one", " two")), stream("one two", ("one", " two")))
    other = answer_of("b", stream("one two", ("one", " two")), stream("one six", ("one", " six")))
    assert (same.repeats, other.repeats) == (1.0, 0.5)
    found = recorded("good.json", [same, other])
    assert (found.cause, found.sentence) == (None, "2 golden answers, 1 of them the same when asked again")
    assert [row.sentence for row in found.rows] == ["the same when asked again", "not the same when asked again"]
    assert "no logprobs" in recorded("good.json", [answer_of("a", stream("one"), None)]).sentence


def test_garbage_is_not_recorded() -> None:
    found = recorded("good.json", [answer(), GoldenAnswer("b", "!" * 99, "length")])
    assert found.cause == "serve.garbled"
    assert found.sentence == "1 of 2 answers are garbled, nothing was recorded: '!' 99 times in a row"


def test_common_prefix() -> None:
    assert [common_prefix("abc", "abd"), common_prefix("", "x"), common_prefix("ab", "abc")] == [2, 0, 2]


def test_a_row_is_one_line_of_the_table() -> None:
    found = against([answer("What is the longest prompt that can be thought of?", lead=0.4)] * 8, [parted(31)] * 8)
    assert len(f"   8  near tie  {'x' * 34}  {found.rows[0].sentence}") <= 100
