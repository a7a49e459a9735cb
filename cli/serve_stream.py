"""From the bytes of one streamed answer to its times and tokens. Pure: reads in, figures out.

The hot loop of the client only notes (time, bytes) for each read; all parsing is done here, after the answer, so that
it does not delay the clock of the other streams.

Definitions (also printed):

* arrival: a read from the socket that brings output. Events that come in one read have one time and are one arrival.
* TTFT: from the question's last byte to the first arrival. An event with a role but without text is no output.
* TPOT: (last arrival - first arrival) / (output tokens - tokens of the first arrival). It is right however tokens are
  packed into chunks. Where the server does not say how many the first arrival has, each of its events counts as one:
  engines send the first token by itself. At worst that is off by (k - 1) / output tokens for k tokens a chunk.
  Tokens without text, such as an end token, and all special ones that follow it where ``ignore_eos`` is taken, are in
  the usage. So their times count too: each by its event's running usage, and the last of all by its finish_reason.
* ITL: the pause before an arrival, and only where an arrival is a token. Where arrivals carry several, pauses between
  them are no inter-token latency, and nothing is divided to make them look like it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import Any

from gpuhost_cli.records import one_line
from gpuhost_cli.serve_documents import TokensBy
from gpuhost_cli.serve_faults import HttpRefused, ServeFault

DONE = "[DONE]"
MOST_SURE = 100.0
"""Nats: a second choice that is ruled out (-inf) must not bring infinity into the JSON."""
Read = tuple[float, bytes]
"""Seconds of time.perf_counter() when the bytes had arrived, and the bytes."""


@dataclass(frozen=True)
class Event:
    """One ``data:`` of the stream."""

    at: float
    data: str


@dataclass(frozen=True)
class Piece:
    """What an event says: text, how many tokens there are so far (where the server says so), why it ended."""

    at: float
    text: str = ""
    tokens_so_far: int | None = None
    finish: str = ""
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    tokens: tuple[str, ...] = ()
    logprobs: tuple[float, ...] = ()
    margins: tuple[float | None, ...] = ()
    is_choice: bool = True
    """False for the usage alone, which comes after everything."""


@dataclass(frozen=True)
class Stream:
    """A whole answer. ``gaps_s``: the pauses between arrivals. ``done``: whether ``[DONE]`` came."""

    text: str
    finish: str
    done: bool
    started: float
    first: float
    last: float
    gaps_s: tuple[float, ...]
    chunks: int
    first_tokens: int
    output_tokens: int
    tokens_by: TokensBy
    prompt_tokens: int | None
    cached_tokens: int | None
    continuous: bool
    tokens: tuple[str, ...]
    logprobs: tuple[float, ...]
    margins: tuple[float, ...]

    @property
    def ttft_s(self) -> float:
        return self.first - self.started

    @property
    def tpot_s(self) -> float | None:
        rest = self.output_tokens - self.first_tokens
        return (self.last - self.first) / rest if rest > 0 else None


def events(reads: Sequence[Read]) -> tuple[list[Event], bool]:
    """Server-sent events, each with the time of the read that completed it; and whether bytes are left over.

    A last event without its empty line counts: some servers end so.
    """
    found: list[Event] = []
    rest, lines, at = b"", [], 0.0
    for at, data in reads:
        *whole, rest = (rest + data).split(b"\n")
        for raw in whole:
            line = raw.rstrip(b"\r")
            if line.startswith(b"data:"):
                lines.append(line[5:].removeprefix(b" ").decode("utf-8", "replace"))
            elif not line and lines:
                found.append(Event(at, "\n".join(lines)))
                lines = []
    tail = rest.rstrip(b"\r\n")
    if tail.startswith(b"data:"):
        lines.append(tail[5:].removeprefix(b" ").decode("utf-8", "replace"))
    if lines and _is_whole("\n".join(lines)):
        found.append(Event(at, "\n".join(lines)))
        return found, False
    return found, bool(lines or tail)


def _is_whole(data: str) -> bool:
    if data == DONE:
        return True
    try:
        json.loads(data)
    except ValueError:
        return False
    return True


def piece_of(event: Event) -> Piece:
    """What one event of chat or text completions says. Raises ServeFault for an error in the stream."""
    try:
        data = json.loads(event.data)
    except ValueError as error:
        raise ServeFault(
            "serve.broken_stream", f"an event is no JSON ({error}): {one_line(event.data, 120)}", "bad_event"
        ) from error
    if not isinstance(data, dict):
        raise ServeFault("serve.broken_stream", f"an event is no object: {one_line(event.data, 120)}", "bad_event")
    if data.get("error"):
        raise _refusal(data["error"])
    usage, choices = _mapping(data.get("usage")), data.get("choices")
    choice = _mapping(choices[0]) if isinstance(choices, list) and choices else {}
    delta = _mapping(choice.get("delta"))
    texts = (delta.get("reasoning_content") or delta.get("reasoning"), delta.get("content"), choice.get("text"))
    tokens, logprobs, margins = _logprobs(choice.get("logprobs"))
    return Piece(
        event.at,
        "".join(text for text in texts if isinstance(text, str)),
        _count(usage.get("completion_tokens")),
        str(choice.get("finish_reason") or ""),
        _count(usage.get("prompt_tokens")),
        _count(_mapping(usage.get("prompt_tokens_details")).get("cached_tokens")),
        tokens,
        logprobs,
        margins,
        bool(choice),
    )


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _refusal(error: Any) -> ServeFault:
    """An error in the stream. vLLM may begin with HTTP 200 before it has looked at the question, and say 400 here."""
    found = _mapping(error)
    said = one_line(str(found.get("message") or error), 300)
    code = _count(found.get("code"))
    if code is not None and 400 <= code < 500:
        return HttpRefused(code, said).as_fault("an error in the stream")
    return ServeFault("serve.server_error", f"an error in the stream: {said}", "stream_error")


def _logprobs(found: Any) -> tuple[tuple[str, ...], tuple[float, ...], tuple[float | None, ...]]:
    """Tokens, their logprobs and the lead over the second choice, in the form of chat or of text completions."""
    rows: list[tuple[Any, Any, Any]] = []
    found = _mapping(found)
    if isinstance(found.get("content"), list):
        for item in map(_mapping, found["content"]):
            top = [_mapping(other).get("logprob") for other in item.get("top_logprobs") or ()]
            rows.append((item.get("token"), item.get("logprob"), top))
    elif isinstance(found.get("tokens"), list):
        tops = found.get("top_logprobs") or [None] * len(found["tokens"])
        for token, logprob, top in zip(found["tokens"], found.get("token_logprobs") or (), tops, strict=False):
            rows.append((token, logprob, list(_mapping(top).values())))
    good = [(str(token), float(logprob), top) for token, logprob, top in rows if isinstance(logprob, int | float)]
    for token, logprob, _ in good:
        if not math.isfinite(logprob):
            raise ServeFault("serve.garbled", f"the logprob of {token!r} is {logprob}", "logprob")
    return (
        tuple(token for token, _, _ in good),
        tuple(logprob for _, logprob, _ in good),
        tuple(_margin(top) for _, _, top in good),
    )


def _margin(top: Sequence[Any]) -> float | None:
    values = sorted((value for value in top if isinstance(value, int | float)), reverse=True)
    return min(float(values[0] - values[1]), MOST_SURE) if len(values) > 1 else None


def read_stream(reads: Sequence[Read], started: float) -> Stream:
    """The answer. Raises ServeFault where the stream is broken, or says that the server has failed.

    Whether a missing ``[DONE]`` is a fault depends on the server: the caller knows (``Stream.done``).
    """
    found, left_over = events(reads)
    data = [event for event in found if event.data != DONE]
    done = len(data) < len(found)
    pieces = [piece_of(event) for event in data]
    output = list(_output(pieces))
    finish = next((piece.finish for piece in reversed(pieces) if piece.finish), "")
    if left_over or not (done or finish):
        what = "the last event is incomplete" if left_over else "neither a finish_reason nor [DONE] came"
        raise ServeFault("serve.broken_stream", f"the stream ended early: {what}, after {len(output)} chunks with text")
    if not output:
        raise ServeFault("serve.broken_stream", f"the answer has no text (finish_reason {finish or 'none'})", "empty")
    continuous = all(piece.tokens_so_far is not None for piece in output)  # those without text have it
    arrivals = list(_arrivals(output, continuous))
    total = next((piece.tokens_so_far for piece in reversed(pieces) if piece.tokens_so_far), None)
    margins = [margin for piece in pieces for margin in piece.margins]
    return Stream(
        "".join(piece.text for piece in output),
        finish,
        done,
        started,
        arrivals[0][0],
        _last(arrivals[-1][0], pieces) if total is not None else arrivals[-1][0],
        tuple(later[0] - earlier[0] for earlier, later in pairwise(arrivals)),
        len(output),
        arrivals[0][1],
        total if total is not None else len(output),
        "chunks" if total is None else "usage",
        next((piece.prompt_tokens for piece in reversed(pieces) if piece.prompt_tokens is not None), None),
        next((piece.cached_tokens for piece in reversed(pieces) if piece.cached_tokens is not None), None),
        continuous,
        tuple(token for piece in pieces for token in piece.tokens),
        tuple(logprob for piece in pieces for logprob in piece.logprobs),
        tuple(margin for margin in margins if margin is not None) if None not in margins else (),
    )


def _output(pieces: Sequence[Piece]) -> Iterator[Piece]:
    """Events with text, and after the first of them also those that only bring further tokens."""
    so_far, begun = 0, False
    for piece in pieces:
        begun = begun or bool(piece.text)
        counted = piece.tokens_so_far or 0
        if piece.text or (begun and counted > so_far and piece.is_choice):
            yield piece
        so_far = max(so_far, counted)


def _last(output_at: float, pieces: Sequence[Piece]) -> float:
    """When the last token that is counted came: it may have no text, its event has the finish_reason."""
    return max([output_at, *(piece.at for piece in pieces if piece.finish)])


def _arrivals(output: Sequence[Piece], continuous: bool) -> Iterator[tuple[float, int]]:
    """Time and tokens of each read with output."""
    so_far = 0
    for at, group in groupby(output, key=lambda piece: piece.at):
        members = list(group)
        until = members[-1].tokens_so_far
        count = until - so_far if continuous and until is not None else len(members)
        so_far = until or so_far
        yield at, count
