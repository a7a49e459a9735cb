"""The peer of GEMV: triton.testing.do_bench around the same call of torch. Needs a Python with torch and triton.

    python3 tools/peers/torch_peer.py 0:1:24576:6144 0:16:24576:6144

Each argument is GPU:m:n:k. One process, one GPU after the other, as the check gemm works. Prints JSON: for each
argument the bytes of the three matrices and two medians in milliseconds. ``ms``: do_bench as it is. It empties the L2
before each call by writing zeros over 256 MB; those that are still in the L2 then are written back while the call runs.
``ms_clean``: the same do_bench, but its flush reads these 256 MB, which leaves nothing to write back.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import json
import sys
from collections.abc import Iterator
from typing import Any

WARM_UP_MS, REPEAT_MS = 50, 500
"""do_bench's own arguments, in milliseconds: for a product of 0.1 ms some thousand repetitions."""

BF16_BYTES = 2


def bytes_of(m: int, n: int, k: int) -> int:
    """What a product reads and writes once: both operands and the result.

    >>> bytes_of(1, 24576, 6144)
    302051328
    """
    return BF16_BYTES * (m * k + n * k + m * n)


def shape(text: str) -> tuple[int, int, int, int]:
    """GPU, m, n, k of an argument. Raises ValueError."""
    gpu, m, n, k = (int(part) for part in text.split(":"))
    return gpu, m, n, k


@contextlib.contextmanager
def flush_that_reads(triton: Any) -> Iterator[None]:
    """Within this, do_bench empties the L2 by reading."""
    kind = type(triton.runtime.driver.active)
    before = kind.clear_cache
    kind.clear_cache = lambda _self, cache: cache.sum()
    try:
        yield
    finally:
        kind.clear_cache = before


def measure(torch: Any, triton: Any, gpu: int, m: int, n: int, k: int) -> dict[str, float]:
    """Median milliseconds of torch.mm with weights as a linear layer has them (n x k), on random data."""
    do_bench = importlib.import_module("triton.testing").do_bench
    torch.cuda.set_device(gpu)
    generator = torch.Generator(device=f"cuda:{gpu}").manual_seed(1)

    def random(rows: int, columns: int) -> Any:
        made = torch.empty(rows, columns, dtype=torch.bfloat16, device=f"cuda:{gpu}")
        return made.normal_(generator=generator)

    left, right = random(m, k), random(n, k).t()
    out = torch.empty(m, n, dtype=torch.bfloat16, device=f"cuda:{gpu}")

    def median() -> float:
        call = functools.partial(torch.mm, left, right, out=out)
        return float(do_bench(call, warmup=WARM_UP_MS, rep=REPEAT_MS, return_mode="median"))

    found = {"ms": median()}
    with flush_that_reads(triton):
        found["ms_clean"] = median()
    return found


def main(arguments: list[str]) -> int:
    """Measure what is asked for."""
    torch, triton = importlib.import_module("torch"), importlib.import_module("triton")
    # As the check gemm has it: halves of a split sum stay in float32.
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    shapes = [shape(text) for text in arguments]
    found = [
        {"gpu": gpu, "m": m, "n": n, "k": k, "bytes": bytes_of(m, n, k), **measure(torch, triton, gpu, m, n, k)}
        for gpu, m, n, k in shapes
    ]
    print(json.dumps({"torch": torch.__version__, "triton": triton.__version__, "products": found}))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
