"""What casting a KV pool from FP8 to BF16 takes: two pools with one context, and the context alone.

An engine that casts all of its pool in every step pays for tokens that nobody reads: then the time follows the pool.
Where the pool is twice as large the time is twice as long, which is shown here, beside what the context alone takes.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import partial
from typing import Any, Callable

from gpu_checks.decode.cast import ELEMENT, SINCE, Cast
from gpu_checks.decode.graph import COUNT
from gpu_checks.decode.run import Run
from gpu_checks.gpus import MEMORY_SHARE
from gpu_checks.measurement import Samples
from gpu_checks.parts import Why
from gpu_checks.timing import L2_MULTIPLE, summary

POOL_BYTES, LEAST_POOL_BYTES = 1 << 30, 64 << 20
"""The larger pool, and the least: casting 1 GiB takes a millisecond on an H200, so that begin and end hardly count."""

POOL_RATIO = 2
"""The larger pool by the smaller one."""

MOVED = 3
"""Bytes for each number of a pool: one read, two written."""

SAMPLED = 1 << 20
"""Of a pool so many numbers at each end are compared on the CPU."""

WHAT, HOW = "probe.cast", "FP8 to BF16"


def pool_bytes(free: int, l2_bytes: int) -> int | None:
    """How large the larger pool is: with its BF16 it needs three times as much, and a quarter for what is around it.

    None: no room for two pools that no cache holds.

    >>> pool_bytes(100 << 30, 60 << 20) >> 20, pool_bytes(2 << 30, 60 << 20) >> 20, pool_bytes(1 << 30, 60 << 20)
    (1024, 512, None)
    """
    least = max(LEAST_POOL_BYTES, POOL_RATIO * L2_MULTIPLE * l2_bytes)
    size = POOL_BYTES
    while size >= least:
        if MOVED * size + (size >> 2) <= free:
            return size
        size //= 2
    return None


@dataclass(frozen=True)
class Pool:
    """Random numbers of FP8, none of them NaN, and room for them in BF16. ``common``: for every figure's record."""

    codes: Any
    out: Any
    copy_gb_s: float
    common: dict[str, Any]

    @property
    def size(self) -> int:
        """Numbers, and bytes of FP8."""
        return int(self.codes.numel())

    def numbers(self, torch: Any) -> Any:
        """As FP8."""
        return self.codes.view(torch.float8_e4m3fn)


CastSome = Callable[[int, int], None]
"""Queue the cast of so many numbers from a place on."""


def casts(run: Run) -> None:
    """A pool of FP8 to BF16, all of it, in two sizes with one context; by torch, and by a kernel of ours."""
    pool = run.attempt(WHAT, HOW, lambda begin: _pool(run, begin))
    if pool is None:
        return
    ways = {"torch": ("torch Tensor.copy_", _by_torch)}
    if run.capability >= SINCE:
        ways["kernel"] = ("a kernel of ours (PTX)", _by_kernel)
    for way, (how, make) in ways.items():
        run.attempt(f"{WHAT}.{way}", how, partial(_way, run, pool, way, how, make))


def _pool(run: Run, begin: float) -> Pool | None:
    torch, bench = run.torch, run.bench
    free = bench.gpus.api.free_bytes()
    size = pool_bytes(int(free * MEMORY_SHARE), run.clock.l2_bytes)
    if size is None:
        text = f"{bench.where}: {free} bytes are free, half of that is too few for two pools that no cache holds"
        run.refuse(WHAT, HOW, Why("decode.no_room", text), begin)
        return None
    generator = torch.Generator(device=bench.device)
    generator.manual_seed(1)
    codes = torch.randint(0, 127, (size,), dtype=torch.uint8, device=bench.device, generator=generator)
    codes[::3] += 128  # some are negative; the largest code of each sign is NaN, and not among them
    out = torch.empty(size, dtype=torch.bfloat16, device=bench.device)
    copied = summary(run.clock.each(
        lambda _: bench.gpus.api.copy(out.data_ptr(), codes.data_ptr(), size, bench.handle), COUNT
    ))  # fmt: skip
    copy_gb_s = 2 * size / copied.median / 1000
    run.known["copy_gb_s"] = round(copy_gb_s, 3)
    common = {
        "copy_gb_s": run.known["copy_gb_s"],
        "context_tokens": run.options.context * run.options.batch,
        "token_bytes": run.model.kv_values,
        "in_step": False,
    }
    return Pool(codes, out, copy_gb_s, common)


def _by_torch(run: Run, pool: Pool) -> CastSome:
    numbers = pool.numbers(run.torch)

    def some(begin: int, count: int) -> None:
        pool.out[begin : begin + count].copy_(numbers[begin : begin + count])

    return some


def _by_kernel(run: Run, pool: Pool) -> CastSome:
    bench = run.bench
    kernel, source, target = Cast(bench.gpus.api, bench.identity.ordinal), pool.codes.data_ptr(), pool.out.data_ptr()

    def some(begin: int, count: int) -> None:
        kernel.queue(target + 2 * begin, source + begin, count, bench.handle)

    return some


def counts(size: int, token_bytes: int, context_tokens: int) -> dict[str, int]:
    """How many numbers are cast: the two pools, and the context as far as the pool has it.

    >>> counts(1 << 30, 1024, 4096)
    {'pool_small': 536870912, 'pool_large': 1073741824, 'context': 4194304}
    """
    context = min(size, context_tokens * token_bytes) // ELEMENT * ELEMENT
    return {"pool_small": size // POOL_RATIO, "pool_large": size, "context": max(ELEMENT, context)}


def _way(run: Run, pool: Pool, way: str, how: str, make: Callable[[Run, Pool], CastSome], begin: float) -> None:
    """One way of casting: its data first, then its figures."""
    cast = make(run, pool)
    pool.out.zero_()
    cast(0, pool.size)
    message = _wrong(run.torch, pool)
    if message is not None:
        run.refuse(f"{WHAT}.{way}", how, Why("decode.wrong_result", f"{run.bench.where}: {how}: {message}"), begin)
        return
    taken: dict[str, Samples] = {}
    for what, count in counts(pool.size, run.model.kv_values, pool.common["context_tokens"]).items():
        begin = time.monotonic()
        taken[what] = summary(run.clock.each(partial(_in_turn, cast, count, pool.size // count), COUNT))
        rate = MOVED * count / taken[what].median / 1000
        detail = {
            "pool_bytes": count,
            "pool_tokens": count // run.model.kv_values,
            "bytes_moved": MOVED * count,
            "gb_s": round(rate, 3),
            "of_copy": round(rate / pool.copy_gb_s, 4),
            **pool.common,
        }
        run.add(f"{WHAT}.{way}.{what}", "us", f"{HOW} by {how}", taken[what], begin, detail)
    _together(run, pool, way, taken)


def _in_turn(cast: CastSome, count: int, places: int, turn: int) -> None:
    """Another piece of the pool each time, so that none is still in the cache."""
    cast(turn % places * count, count)


def _together(run: Run, pool: Pool, way: str, taken: dict[str, Samples]) -> None:
    """What the two pools say: the ratio of their times, and the rate beside a copy's."""
    begin = time.monotonic()
    ratio = taken["pool_large"].median / taken["pool_small"].median
    of_copy = MOVED * pool.size / taken["pool_large"].median / 1000 / pool.copy_gb_s
    said = {**pool.common, "pool_ratio": POOL_RATIO, "of_pool_ratio": round(ratio / POOL_RATIO, 4)}
    how = "time with the larger pool by time with the smaller one, at one context"
    run.add(f"{WHAT}.{way}.ratio", "ratio", how, summary([ratio]), begin, said)
    run.add(f"{WHAT}.{way}.of_copy", "share", "GB/s by those of a copy", summary([of_copy]), begin, pool.common)


def _wrong(torch: Any, pool: Pool) -> str | None:
    """Compare both ends with the CPU's cast, bit by bit."""
    for name, some in (("first", slice(0, SAMPLED)), ("last", slice(-SAMPLED, None))):
        # float32 holds each of these numbers exactly, and so does BF16.
        expected = pool.numbers(torch)[some].cpu().to(torch.float32)
        wrong = int((pool.out[some].cpu().to(torch.float32) != expected).sum())
        if wrong:
            return f"{wrong} of the {name} {SAMPLED} numbers are not what was cast"
    return None
