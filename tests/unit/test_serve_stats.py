"""From answers to a level's figures, and what is said beside them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpuhost_cli.serve_documents import ClientLoad, Dialect, Level
from gpuhost_cli.serve_load import Load
from gpuhost_cli.serve_notes import notes
from gpuhost_cli.serve_prompts import Prompts
from gpuhost_cli.serve_stats import level_of, percentiles
from gpuhost_cli.serve_stream import Stream

IDLE = ClientLoad(5.0, 0.2)


def stream(at: float = 0.0, tokens: int = 11, itl: float = 0.1, packed: int = 1, ttft: float = 0.5) -> Stream:
    chunks = 1 + (tokens - 1) // packed
    last = at + ttft + (tokens - 1) * itl
    return Stream(
        "text", "length", True, at, at + ttft, last, (itl * packed,) * (chunks - 1), chunks, 1, tokens, "usage", 20, 0,
        True, (), (), (),
    )  # fmt: skip


def level(*streams: Stream, concurrency: int = 1, client: ClientLoad = IDLE, complete: bool = True) -> Level:
    return level_of(concurrency, len(streams), list(enumerate(streams)), 0.0, {}, client, complete=complete)


def said(*levels: Level, dialect: Dialect | None = None, lines: tuple[str, ...] = (), max_tokens: int = 11) -> str:
    return "\n".join(notes(dialect or Dialect(), levels, Prompts(1, 50, lines), max_tokens))


def test_percentiles_interpolate_as_numpy_does() -> None:
    found = percentiles([4.0, 1.0, 3.0, 2.0])
    assert found is not None
    assert (found.n, found.p50, found.p90, found.p99, found.largest) == (4, 2.5, 3.7, 3.97, 4.0)
    assert percentiles([]) is None


def test_a_level() -> None:
    found = level(stream(), stream(at=1.5))
    assert (found.wall_s, found.output_tokens) == (3.0, 22)
    assert found.output_tok_s == pytest.approx(22 / 3, abs=1e-3)
    assert found.stream_tok_s == pytest.approx(10, abs=1e-3)
    assert found.ttft_ms is not None
    assert found.ttft_ms.p50 == pytest.approx(500)
    assert found.itl_ms is not None
    assert (found.itl_ms.n, found.itl_ms.p50) == (20, pytest.approx(100))


def test_95_ms_is_time_per_output_token() -> None:
    """Mistake 5 of the incident: 10.36 tok/s is 96.5 ms per token, and says nothing of the first token."""
    found = level(stream(itl=0.0965, ttft=3.0))
    assert found.stream_tok_s == pytest.approx(10.36, abs=0.01)
    assert found.ttft_ms is not None
    assert found.ttft_ms.p50 == pytest.approx(3000)


def test_packed_chunks_have_no_itl_but_a_tpot() -> None:
    found = level(stream(tokens=41, itl=0.01, packed=4))
    assert found.itl_ms is None
    assert found.gap_ms is not None
    assert found.gap_ms.p50 == pytest.approx(40)
    assert found.tpot_ms is not None
    assert found.tpot_ms.p50 == pytest.approx(10)
    text = said(found, max_tokens=41)
    assert "a chunk carries 3.73 tokens, so there is no ITL; pauses between arrivals p50 40.0" in text
    assert "the first chunk is taken for one token" not in text
    assert "the first chunk is taken for one token" in said(found, dialect=Dialect(continuous_usage=False))


def test_chunks_that_were_read_together_have_no_itl_either() -> None:
    late = replace(stream(), gaps_s=(0.2,) * 5)
    assert "1.83 chunks came together, held up here or on the way, so there is no ITL" in said(level(late))
    assert level(*[stream()] * 19, replace(stream(), gaps_s=(0.1,) * 8)).itl_ms is not None  # one in a hundred


def test_answers_that_were_held_back_are_said() -> None:
    """All but two of 40 chunks in one read: first and last arrival say nothing of the server's pace."""
    at_once = replace(stream(tokens=40), gaps_s=(0.001,), last=0.501)
    said_so = "1 of 3 answers were held up, here or on the way, and came in a few pieces"
    assert said_so in said(level(stream(tokens=40), stream(tokens=40), at_once), max_tokens=40)
    assert "held up" not in said(level(stream(tokens=40), stream(tokens=40, packed=20)), max_tokens=40)


def test_an_empty_level() -> None:
    found = level(complete=False)
    assert (found.output_tok_s, found.ttft_ms, found.tokens_by, found.tokens_per_chunk) == (None, None, None, None)
    assert "concurrency 1: broken off after 0 of 0 answers" in said(found)


def test_a_clean_run_says_nothing_but_how_few_there_are() -> None:
    assert (
        said(level(stream())) == "p99 of TTFT and TPOT with fewer than 100 answers is hardly more than the slowest one"
    )
    assert said(level(*[stream()] * 100)) == ""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (said(level(stream(), stream(tokens=4))), "1 of 2 answers ended before 11 tokens (the server passes over ig"),
        (said(level(stream(tokens=4)), dialect=Dialect(ignore_eos=False)), "(the server refuses ignore_eos)"),
        (said(level(stream(tokens=12))), "1 of 1 answers have more than 11 tokens: the server passes over max_tokens"),
        (said(level(stream()), dialect=Dialect(refused="no such field")), "asked without it: no such field"),
        (said(level(stream()), dialect=Dialect(done=False)), "without [DONE]"),
        (said(level(replace(stream(), tokens_by="chunks"))), "no usage from this server: each chunk with text was"),
        (said(level(replace(stream(), cached_tokens=19))), "95 % of the prompts' tokens came out of the server's pref"),
        (
            said(level(replace(stream(), cached_tokens=None))),
            "process has had --seed 1 before, TTFT is too good",
        ),
        (said(level(stream(), stream()), lines=("a",)), "1 prompts for 2 answers"),
        (said(level(stream(), client=ClientLoad(91.0, 0.1))), "late at concurrency 1: up to 0 ms at p99, with 91 % of"),
        (said(level(stream(), client=ClientLoad(5.0, 30.0))), "up to 30 ms at p99, with 5 % of a core"),
    ],
)
def test_what_is_not_as_defined_is_said(text: str, expected: str) -> None:
    assert expected in text


def test_what_a_server_has_cached_is_asked_once() -> None:
    """Neither where it says so, nor where it gives no counts at all, nor where the prompts are the reader's own."""
    unknown = level(replace(stream(), cached_tokens=None))
    for text in (
        said(level(stream(), replace(stream(), cached_tokens=None))),
        said(level(replace(stream(), cached_tokens=None, prompt_tokens=None))),
        said(unknown, lines=("a",)),
    ):
        assert "prefix cache" not in text
    assert said(unknown, unknown).count("prefix cache") == 1


def test_lateness_that_is_small_beside_a_token_is_not_said() -> None:
    assert "late" not in said(level(stream(itl=0.2), client=ClientLoad(5.0, 30.0)))


@pytest.mark.parametrize(
    ("requests", "concurrency", "asked"),
    [(0, 1, 12), (0, 2, 12), (0, 10, 20), (0, 64, 128), (0, 5, 15), (5, 1, 5), (5, 2, 6), (5, 10, 10), (100, 64, 128)],
)
def test_answers_come_in_whole_rounds(requests: int, concurrency: int, asked: int) -> None:
    assert Load(128, requests, 60.0, 0, Dialect()).asked(concurrency) == asked
