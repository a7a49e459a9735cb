"""From bytes with times to an answer's figures."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuhost_cli.serve_faults import ServeFault
from gpuhost_cli.serve_stream import Event, Stream, events, piece_of, read_stream


def data(content: dict[str, Any] | str) -> bytes:
    return b"data: " + (content if isinstance(content, str) else json.dumps(content)).encode() + b"\n\n"


def chunk(text: str = "", tokens: int | None = None, finish: str | None = None, **more: Any) -> bytes:
    found: dict[str, Any] = {"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": finish, **more}]}
    if tokens is not None:
        found["usage"] = {"completion_tokens": tokens, "prompt_tokens": 9}
    return data(found)


def usage(tokens: int) -> bytes:
    return data({"choices": [], "usage": {"completion_tokens": tokens, "prompt_tokens": 9}})


DONE = data("[DONE]")
ROLE = data({"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]})


def answer(reads: Sequence[tuple[float, bytes]]) -> Stream:
    return read_stream(reads, 100.0)


def plain(count: int, itl: float = 0.1, ttft: float = 0.5, end: Sequence[bytes] = (DONE,)) -> list[tuple[float, bytes]]:
    """A token an event; the role's event comes at once and is no output."""
    last = 100 + ttft + (count - 1) * itl
    reads = [(100.01, ROLE)]
    reads += [(100 + ttft + number * itl, chunk(f" w{number}")) for number in range(count)]
    return [*reads, (last, chunk(finish="length")), *((last, item) for item in end)]


def test_a_plain_answer() -> None:
    found = answer(plain(11, end=(usage(11), DONE)))
    assert found.ttft_s == pytest.approx(0.5)
    assert found.tpot_s == pytest.approx(0.1)
    assert found.gaps_s == pytest.approx((0.1,) * 10)
    assert (found.output_tokens, found.tokens_by, found.prompt_tokens) == (11, "usage", 9)
    assert (found.finish, found.done, found.text[:6]) == ("length", True, " w0 w1")


def test_without_usage_chunks_with_text_are_counted() -> None:
    found = answer(plain(7))
    assert (found.output_tokens, found.tokens_by, found.prompt_tokens) == (7, "chunks", None)


def test_packed_chunks_with_running_usage_are_exact() -> None:
    """Four tokens a chunk every 0.2 s, the first one too: 0.05 s a token, whatever the packing."""
    reads = [(100.5 + number * 0.2, chunk(" a b c d", 4 * (number + 1))) for number in range(8)]
    found = answer([*reads, (reads[-1][0], chunk(finish="length")), (reads[-1][0], DONE)])
    assert (found.output_tokens, found.first_tokens, found.chunks) == (32, 4, 8)
    assert found.tpot_s == pytest.approx(0.05)


def test_packed_chunks_with_usage_at_the_end_begin_with_one_token() -> None:
    """As engines speculate: one token of the prefill, then four at a time."""
    reads = [(100.5, chunk(" a")), *((100.5 + number * 0.2, chunk(" a b c d")) for number in range(1, 9))]
    found = answer([*reads, (reads[-1][0], chunk(finish="length")), (reads[-1][0], usage(33)), (reads[-1][0], DONE)])
    assert found.tpot_s == pytest.approx(0.05)
    assert not found.continuous


def test_events_of_one_read_are_one_arrival() -> None:
    """A proxy that holds chunks back must not make pauses of 0 ms."""
    reads = [(100.5, chunk(" a")), (100.8, chunk(" b") + chunk(" c") + chunk(" d")), (100.9, chunk(" e"))]
    found = answer([*reads, (100.9, chunk(finish="length") + DONE)])
    assert found.gaps_s == pytest.approx((0.3, 0.1))
    assert (found.chunks, found.output_tokens) == (5, 5)
    assert found.tpot_s == pytest.approx(0.1)


def test_the_end_token_has_a_time_where_it_is_counted() -> None:
    """Ten words and an end token without text, 0.1 s each."""
    reads = plain(10)[:11]
    end = [(101.5, chunk(finish="stop")), (101.5, usage(11)), (101.5, DONE)]
    assert answer([*reads, *end]).tpot_s == pytest.approx(0.1)
    assert answer([*reads, end[0], end[2]]).tpot_s == pytest.approx(0.1)  # neither is counted without usage


@pytest.mark.parametrize("running", [True, False])
def test_special_tokens_past_the_end_have_their_time(running: bool) -> None:
    """vLLM with ignore_eos: 20 words, then 108 tokens whose text is left out, 0.1 s each. It was 15 ms a token."""
    finish = [None] * 127 + ["length"]
    reads = [(100.01, ROLE)]
    for number in range(128):
        text = f" w{number}" if number < 20 else ""
        reads.append((100.5 + number * 0.1, chunk(text, number + 1 if running else None, finish[number])))
    found = answer([*reads, (113.2, usage(128)), (113.2, DONE)])
    assert found.tpot_s == pytest.approx(0.1)
    assert (found.output_tokens, found.ttft_s) == (128, pytest.approx(0.5))
    assert len(found.gaps_s) == (127 if running else 19)


def test_a_token_without_text_before_the_first_text_is_no_output() -> None:
    """A reasoning parser swallows <think>; the tokens before count as those of the first arrival."""
    reads = [(100.4, chunk("", 1)), (100.5, chunk(" a", 2)), (100.6, chunk(" b", 3, "length")), (100.6, DONE)]
    found = answer(reads)
    assert (found.ttft_s, found.first_tokens) == (pytest.approx(0.5), 2)
    assert found.tpot_s == pytest.approx(0.1)


def test_one_token_has_no_tpot() -> None:
    assert answer(plain(1)).tpot_s is None


def test_reasoning_counts_as_output() -> None:
    reasoning = data({"choices": [{"delta": {"reasoning_content": "hm"}}]})
    other = data({"choices": [{"delta": {"reasoning": "hm", "content": None}}]})
    found = answer([(101.0, reasoning), (102.0, other), (103.0, chunk(" yes", finish="stop")), (103.0, DONE)])
    assert (found.text, found.ttft_s) == ("hmhm yes", 1.0)


def test_text_completions() -> None:
    made = data({"choices": [{"text": "so", "finish_reason": "length"}]})
    assert answer([(101.0, made), (101.0, DONE)]).text == "so"


def test_logprobs_of_both_forms() -> None:
    content = [
        {"token": "a", "logprob": -0.1, "top_logprobs": [{"logprob": -0.1}, {"logprob": -2.1}]},
        {"token": "b", "logprob": -0.2, "top_logprobs": [{"logprob": -0.2}, {"logprob": -0.7}]},
    ]
    chat = piece_of(Event(1.0, chunk("ab", logprobs={"content": content})[6:].decode()))
    text = {"tokens": ["a", "b"], "token_logprobs": [-0.1, -0.2], "top_logprobs": [{"a": -0.1, "x": -2.1}, {"b": -0.2, "y": -0.7}]}  # fmt: skip # noqa: E501
    completion = piece_of(Event(1.0, json.dumps({"choices": [{"text": "ab", "logprobs": text}]})))
    for found in (chat, completion):
        assert (found.tokens, found.logprobs) == (("a", "b"), (-0.1, -0.2))
        assert found.margins == pytest.approx((2.0, 0.5))


@given(st.data())
def test_splitting_the_bytes_changes_no_event(drawn: st.DataObject) -> None:
    """However the network cuts the bytes, also within a character or a line end."""
    end = drawn.draw(st.sampled_from([b"\n\n", b"\r\n\r\n"]))
    whole = b"".join(
        [
            b": comment" + end,
            *(
                b"data:" + json.dumps({"n": number, "t": "é世"}, ensure_ascii=False).encode() + end
                for number in range(4)
            ),
            b"event: x\nid: 7\ndata: [DONE]" + end,
        ]
    )
    cuts = sorted(drawn.draw(st.sets(st.integers(1, len(whole) - 1), max_size=20)))
    parts = [whole[begin:stop] for begin, stop in zip([0, *cuts], [*cuts, len(whole)], strict=True)]
    found, left = events([(float(number), part) for number, part in enumerate(parts)])
    assert [event.data for event in found] == [event.data for event in events([(0.0, whole)])[0]]
    assert (len(found), left) == (5, False)
    assert [event.at for event in found] == sorted(event.at for event in found)


def test_an_event_has_the_time_of_the_read_that_completes_it() -> None:
    whole = chunk(" a")
    found, _ = events([(1.0, whole[:9]), (2.0, whole[9:] + chunk(" b")[:-1]), (3.0, b"\n")])
    assert [event.at for event in found] == [2.0, 3.0]


def test_a_last_event_without_its_empty_line_counts() -> None:
    assert answer([(101.0, chunk(" a", finish="stop") + b"data: [DONE]")]).done


@pytest.mark.parametrize(
    ("reads", "code", "says"),
    [
        ([chunk(" a"), chunk(" b")], "serve.broken_stream", "neither a finish_reason nor [DONE] came, after 2 chunks"),
        ([chunk(" a"), b'data: {"choi'], "serve.broken_stream", "the last event is incomplete, after 1 chunks"),
        ([], "serve.broken_stream", "neither a finish_reason nor [DONE] came, after 0 chunks"),
        ([ROLE, chunk(finish="stop"), DONE], "serve.broken_stream", "the answer has no text (finish_reason stop)"),
        ([chunk(" a"), b"data: {\n\n"], "serve.broken_stream", "an event is no JSON"),
        ([data("[1]")], "serve.broken_stream", "an event is no object: [1]"),
        (
            [data({"error": {"message": "out of memory"}})],
            "serve.server_error",
            "an error in the stream: out of memory",
        ),
        ([data({"error": "worker died"})], "serve.server_error", "an error in the stream: worker died"),
        (
            [data({"error": {"message": "worker died", "type": "InternalServerError", "code": 500}})],
            "serve.server_error",
            "an error in the stream: worker died",
        ),
        (
            [data({"error": {"message": "the prompt is empty", "type": "BadRequestError", "code": 400}}), DONE],
            "serve.rejected",
            "an error in the stream: HTTP 400: the prompt is empty",
        ),
    ],
)
def test_broken_streams(reads: list[bytes], code: str, says: str) -> None:
    with pytest.raises(ServeFault) as caught:
        answer([(101.0 + number, item) for number, item in enumerate(reads)])
    assert caught.value.code == code
    assert says in caught.value.observed


def test_whether_done_is_missed_is_the_callers_to_judge() -> None:
    assert not answer(plain(3, end=())).done


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(max_size=5), lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["choices", "delta", "usage", "logprobs", "content", "tokens", "top_logprobs", "token_logprobs", "completion_tokens", "logprob", "prompt_tokens_details", "text"]), inner, max_size=5), max_leaves=20))  # fmt: skip # noqa: E501
def test_any_json_is_read_or_refused(content: Any) -> None:
    try:
        piece_of(Event(1.0, json.dumps(content)))
    except ServeFault as fault:
        assert fault.observed  # noqa: PT017
