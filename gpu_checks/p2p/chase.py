"""The time of one small read from another GPU's memory: a chain of pointers that one thread follows.

nvbandwidth's ``device_to_device_latency_sm`` does the same: 2 MiB on the peer, pointers 128 bytes apart (a cache line
each), one multiprocessor after the other, 1,000,000 steps over all of them, so 7,575 for each of an H200. No walk comes
to the chain's end, so no line is read twice and none comes from the reader's own L1 cache; all of it lies in one page
of 2 MiB, so that one entry of the TLB serves it; and after the first walk all lines are in the L2 cache of their owner.
All this is the same here, with fewer walks; nvbandwidth's seconds go into writing its chain, word by word.
"""

from __future__ import annotations

from array import array
from dataclasses import asdict
from typing import Any

from gpu_checks.p2p.copies import Mover
from gpu_checks.timing import summary

CHAIN_BYTES, STRIDE_BYTES, POINTER_BYTES = 2 << 20, 128, 8

STEPS = 4096
"""Of a walk, a quarter of the chain. At 0.8 us a step a walk takes 3.4 ms: what a launch costs, a few us, is a
thousandth of it."""

WALKS = 8
"""Multiprocessors that walk, spread over the GPU: their way to the link is not equally long."""


def chain(base: int, size: int = CHAIN_BYTES, stride: int = STRIDE_BYTES) -> bytes:
    """Pointers for memory at ``base``: each place of ``stride`` bytes begins with the address of the next place.

    The last points to the first. Nothing else of a place is ever read.
    """
    pointers = array("Q", bytes(size))
    places = range(0, size, stride)
    pointers[:: stride // POINTER_BYTES] = array("Q", [base + (place + stride) % size for place in places])
    return pointers.tobytes()


def blocks(multiprocessors: int, walks: int = WALKS) -> list[int]:
    """The blocks that walk, as evenly spread as they can be.

    >>> blocks(132)
    [0, 16, 33, 49, 66, 82, 99, 115]
    """
    return [walk * multiprocessors // walks for walk in range(walks)]


def latency(mover: Mover, i: int, j: int) -> dict[str, Any]:
    """Microseconds of one dependent read, by GPU i from GPU j's memory."""
    mover.open(i, j)
    base = mover.buffers[j].source
    mover.on(j)
    mover.api.upload(base, chain(base))
    ready = mover.on(i)
    walkers = blocks(ready.kernels.multiprocessors)

    def walk(turn: int) -> None:
        ready.kernels.chase(base, STEPS, walkers[turn % len(walkers)], ready.stream)

    samples = summary([time / STEPS for time in ready.timer.each(ready.stream, walk, len(walkers), warm_up=1)])
    return {
        "us": samples.median,
        "samples": asdict(samples),
        "moved": {"steps": STEPS, "walks": len(walkers), "chain_bytes": CHAIN_BYTES, "stride_bytes": STRIDE_BYTES},
    }
