"""Is a product right? Compared with float64, element by element, with a limit that comes from the arithmetic itself.

An element of the product is c = sum of x[k] w[k] over K. From the same stored numbers float64 gives it practically
exactly. The GPU's own c may differ by two things:

- it is rounded to BF16, which has 8 bits: by at most 2^-8 |c| (ROUNDING);
- sums are kept with fewer bits. Such errors are in proportion to what is summed, which is |x| |w| / sqrt(K) for random
  numbers (the ``spread``, the size that c typically has): at most ``slack`` of it.

Slack: BF16 products are summed in float32 (2^-24 for each addition; thousands of them, partly cut off, make some 2^-14
of the spread): 2^-10 is far above that, and far below the effect of a wrong weight. It holds because sums of a split
product are not allowed to be kept in BF16, see ``gemm``. FP8 on SM90 keeps 14 bits while it sums 128 products, the
largest of which decides what the others lose: we estimate 2^-8 of the spread for K = 12288, and allow 2^-6. NVFP4 too.

A weight whose sign flips changes c by about 2 / sqrt(K) of the spread: 2.5 % for K = 6144. Some of 16 rows show that,
one row not always. NaN is below no limit.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from gpu_checks.gemm.formats import Format, Matrix, by_chunks

ROUNDING = 2.0**-8

STRIDE = 8
"""Of a large product every eighth row is compared: some rows of each tile (64 rows at least), whichever part of the GPU
computed it."""

FEW_ROWS = 128
"""Of a product with at most so many rows all are compared."""

CPU_ROWS, CPU_COLUMNS = 16, 64
"""So much of the product is computed once more on the CPU: a GPU that computes wrong might err in float64 as well."""

POISON = float("nan")
"""Stands in the output before: what is not written fails."""


@dataclass(frozen=True)
class Reference:
    """The exact product of some rows, and the spread of each element; ``rows``: which rows they are."""

    rows: slice
    product: Any
    spread: Any

    def first(self, count: int) -> Reference:
        """The first rows of a reference that has all rows."""
        return Reference(slice(0, count), self.product[:count], self.spread[:count])


@dataclass(frozen=True)
class Proof:
    """What was compared. ``relative_error``: of all elements together (root of squares); None: not even a number."""

    compared: int
    wrong: int
    not_numbers: int
    zeros: int
    relative_error: float | None

    @property
    def message(self) -> str | None:
        """What is wrong, in words; None where nothing is."""
        if not self.wrong:
            return None
        kinds = [(self.not_numbers, "no number"), (self.zeros, "zero")]
        of_them = "".join(f", {count} of them {what}" for count, what in kinds if count)
        error = "" if self.relative_error is None else f"; relative error of all {self.relative_error:.2g}"
        return f"{self.wrong} of {self.compared} elements are not the float64 product{of_them}{error}"

    def add(self, other: Proof) -> Proof:
        """Both together; the larger error counts."""
        errors = [self.relative_error, other.relative_error]
        known = [each for each in errors if each is not None]
        return Proof(
            self.compared + other.compared,
            self.wrong + other.wrong,
            self.not_numbers + other.not_numbers,
            self.zeros + other.zeros,
            max(known) if len(known) == len(errors) else None,
        )


def rows_to_compare(rows: int) -> slice:
    """Which rows of a product are compared.

    >>> rows_to_compare(64), rows_to_compare(8192)
    (slice(0, 64, None), slice(3, 8192, 8))
    """
    return slice(0, rows) if rows <= FEW_ROWS else slice(3, rows, STRIDE)


def reference(torch: Any, wanted: Format, left: Matrix, right: Matrix, rows: slice) -> Reference:
    """The product of these rows with all of ``right``, in float64, where the matrices are."""
    x = wanted.exact(torch, left.take(rows))
    k = x.shape[1]
    size = torch.linalg.vector_norm(x, dim=1, keepdim=True) / math.sqrt(k)
    products, spreads = [], []
    for part in by_chunks(right.rows, k):
        w = wanted.exact(torch, right.take(part))
        products.append(x @ w.t())
        spreads.append(size * torch.linalg.vector_norm(w, dim=1))
    return Reference(rows, torch.cat(products, dim=1), torch.cat(spreads, dim=1))


def compare(torch: Any, got: Any, expected: Reference, slack: float) -> Proof:
    """Compare the rows of a whole product with their reference."""
    have = got[expected.rows].to(torch.float64)
    error = (have - expected.product).abs()
    limit = ROUNDING * expected.product.abs() + slack * expected.spread
    wrong = ~(error <= limit)  # this way round NaN is wrong
    relative = float(torch.linalg.vector_norm(error) / torch.linalg.vector_norm(expected.product))
    return Proof(
        compared=int(have.numel()),
        wrong=int(wrong.sum()),
        not_numbers=int((~torch.isfinite(have)).sum()),
        zeros=int((wrong & (have == 0)).sum()),
        relative_error=relative if math.isfinite(relative) else None,
    )


def compare_on_cpu(torch: Any, wanted: Format, left: Matrix, right: Matrix, got: Any) -> Proof:
    """Compare a sample, spread over the product, with what the CPU computes from the same stored numbers."""
    rows = _spread(left.rows, CPU_ROWS)
    columns = _spread(right.rows, CPU_COLUMNS)
    a, b = left.take(rows).to("cpu"), right.take(columns).to("cpu")
    expected = reference(torch, wanted, a, b, slice(0, a.rows))
    return compare(torch, got[rows][:, columns].cpu(), expected, wanted.slack)


def _spread(size: int, count: int) -> slice:
    return slice(0, size, max(1, size // count))
