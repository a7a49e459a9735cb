"""The products that ``gemm`` measures: their shapes, how much memory they move and need. Pure arithmetic."""

from __future__ import annotations

from dataclasses import dataclass

from gpu_checks.timing import rotation

SQUARE = 8192
"""Rows, columns and depth: large enough for every GPU's best rate, 0.4 GB in BF16."""

WEIGHT_ROWS, WEIGHT_BYTES = 24576, 24576 * 6144 * 2
"""302 MB of weights in every format: 24576 x 6144 in BF16, deeper in the others."""

FEW_ROWS = (1, 2, 4, 8, 16, 32, 64)
"""Rows of activations: sequences decoded at the same time."""

SETS = 2
"""At least so many copies of the weights are gone through in turn, even where one is larger than 3 x L2: a cache
that keeps some of what it has seen, instead of the latest, would serve a part of it the next time."""

SCRATCH_BYTES = 1 << 30
"""For the comparison in float64 (four times 128 MiB at most) and for cuBLAS's own workspaces."""


@dataclass(frozen=True)
class Shape:
    """A product: ``rows`` x ``depth`` times the transpose of ``columns`` x ``depth``."""

    name: str
    rows: int
    columns: int
    depth: int

    @property
    def few(self) -> bool:
        """Whether the weights are what has to be moved, and the rate is one of memory."""
        return self.rows < self.columns

    @property
    def flops(self) -> int:
        """A multiplication and an addition for each pair."""
        return 2 * self.rows * self.columns * self.depth


def weights_depth(bits: int) -> int:
    """How deep weights of this format are.

    >>> weights_depth(16), weights_depth(8), weights_depth(4)
    (6144, 12288, 24576)
    """
    return WEIGHT_BYTES * 8 // bits // WEIGHT_ROWS


def shapes(bits: int, quick: bool) -> tuple[list[Shape], list[Shape]]:
    """The products of a format with so many bits: the large one, and those with few rows."""
    square = [Shape("square", SQUARE, SQUARE, SQUARE)]
    depth = weights_depth(bits)
    return square, [] if quick else [Shape(f"m{rows}", rows, WEIGHT_ROWS, depth) for rows in FEW_ROWS]


def tflop_s(flops: int, times_us: list[float]) -> list[float]:
    """TFLOP/s of each time in microseconds.

    >>> tflop_s(4_000_000_000, [1000.0, 500.0])
    [4.0, 8.0]
    """
    return [flops / 1e6 / each for each in times_us]


def sets_of(stored_bytes: int, l2_bytes: int, few: bool) -> int:
    """How many copies of the weights are gone through. Arithmetic limits a large product, whatever is in the L2."""
    return max(SETS if few else 1, rotation(stored_bytes, l2_bytes))


def needed_bytes(shape: Shape, bits: int, sets: int) -> int:
    """Memory for a product: activations, the copies of the weights, as many results, and the comparison."""
    left, right = shape.rows * shape.depth * bits // 8, shape.columns * shape.depth * bits // 8
    # A sixteenth more for the scales of NVFP4, which is what takes most of them, twice: as they are, and swizzled.
    return (left + sets * right) * 9 // 8 + sets * 2 * shape.rows * shape.columns + SCRATCH_BYTES
