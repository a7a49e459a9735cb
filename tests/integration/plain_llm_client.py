"""A second client that shares nothing with ours: http.client, a thread a stream, lines as they come.

It is what serve-check's figures are held against. Usage is not asked for: a line with text is a token.
"""

from __future__ import annotations

import http.client
import json
import statistics
import threading
import time
from dataclasses import dataclass


@dataclass(frozen=True)
class Figures:
    """Medians in ms, and output tokens per second of all streams."""

    ttft_ms: float
    tpot_ms: float
    tok_s: float


def one_answer(port: int, number: int, max_tokens: int, words: int) -> tuple[float, list[float]]:
    """When it was asked for, and when each token came."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    prompt = f"{number} " + "word " * (words - 1)
    body = {
        "model": "tiny", "messages": [{"role": "user", "content": prompt}], "max_tokens": max_tokens,
        "temperature": 0, "stream": True, "ignore_eos": True,
    }  # fmt: skip
    begun = time.perf_counter()
    connection.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
    response = connection.getresponse()
    times = []
    while line := response.readline():
        if line.startswith(b"data: {"):
            now = time.perf_counter()
            choices = json.loads(line[6:])["choices"]
            if choices and choices[0]["delta"].get("content"):
                times.append(now)
    connection.close()
    return begun, times


def measure(port: int, concurrency: int, requests: int, max_tokens: int, words: int = 256) -> Figures:
    """So many threads, each with one question open at any time."""
    numbers = iter(range(requests))
    taken, found = threading.Lock(), []

    def work() -> None:
        while True:
            with taken:
                number = next(numbers, None)
            if number is None:
                return
            found.append(one_answer(port, number, max_tokens, words))

    threads = [threading.Thread(target=work) for _ in range(concurrency)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    begun, ended = min(begin for begin, _ in found), max(times[-1] for _, times in found)
    return Figures(
        statistics.median(1e3 * (times[0] - begin) for begin, times in found),
        statistics.median(1e3 * (times[-1] - times[0]) / (len(times) - 1) for _, times in found),
        sum(len(times) for _, times in found) / (ended - begun),
    )
