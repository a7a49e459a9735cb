"""Number formats of weights: what one weight takes in memory, its scales included. Pure arithmetic."""

from __future__ import annotations

import math
from dataclasses import dataclass

WHOLE = 0
"""In a group: all rows, or all columns, share a scale."""


@dataclass(frozen=True)
class Format:
    """How a matrix of weights (rows = outputs, columns = inputs) lies in memory.

    ``group`` is the block of rows x columns that shares one scale, None where there are no scales. ``peak`` names the
    arithmetic that multiplies it: weights that only lie in 4 bit, with activations of 16, are multiplied as BF16.
    """

    name: str
    bits: int
    peak: str
    group: tuple[int, int] | None = None
    scale_bytes: float = 0
    zero_bytes: float = 0

    def stored_bytes(self, rows: int, columns: int) -> float:
        """A matrix in memory, with its scales.

        >>> FORMATS["nvfp4"].stored_bytes(2048, 6144) / (2048 * 6144)
        0.5625
        """
        weights = rows * columns * self.bits / 8
        if self.group is None:
            return weights
        down, across = (1 if size == WHOLE else size for size in self.group)
        blocks = (1 if self.group[0] == WHOLE else math.ceil(rows / down)) * (
            1 if self.group[1] == WHOLE else math.ceil(columns / across)
        )
        return weights + blocks * (self.scale_bytes + self.zero_bytes)

    @property
    def words(self) -> str:
        """What it consists of: ``4 bit + a scale of 1 B for each 1 x 16``."""
        if self.group is None or self.group == (WHOLE, WHOLE):
            return f"{self.bits} bit"
        shape = " x ".join("all" if size == WHOLE else str(size) for size in self.group)
        zero = f" and a zero point of {self.zero_bytes:g} B" if self.zero_bytes else ""
        return f"{self.bits} bit + a scale of {self.scale_bytes:g} B{zero} for each {shape}"


def nvfp4(*, activations: bool = True) -> Format:
    """NVIDIA's FP4: one FP8 scale for each 16 weights of a row, so 0.5625 B for a weight."""
    return Format("NVFP4", 4, "fp4" if activations else "bf16", (1, 16), 1)


def mxfp(bits: int, *, activations: bool = True) -> Format:
    """OCP microscaling: one 8-bit exponent for each 32 weights of a row."""
    return Format(f"MXFP{bits}", bits, f"fp{bits}" if activations else "bf16", (1, 32), 1)


def fp8(group: tuple[int, int] = (WHOLE, WHOLE), *, activations: bool = True) -> Format:
    """FP8 with FP32 scales: one for the matrix, for each row, or for each block (DeepSeek: 128 x 128)."""
    return Format("FP8", 8, "fp8" if activations else "bf16", group, 4)


def integers(bits: int, group: int, *, zero_point: bool, activations: bool = False) -> Format:
    """Whole numbers with FP16 scales, as AWQ and GPTQ store them; a zero point takes as many bits as a weight.

    >>> integers(4, 128, zero_point=True).stored_bytes(128, 128) / (128 * 128)
    0.51953125
    """
    columns = WHOLE if group in (-1, WHOLE) else group
    return Format(
        f"INT{bits}", bits, f"int{bits}" if activations else "bf16", (1, columns), 2, bits / 8 if zero_point else 0
    )


BF16 = Format("BF16", 16, "bf16")
FORMATS: dict[str, Format] = {
    "bf16": BF16,
    "fp16": Format("FP16", 16, "bf16"),
    "fp32": Format("FP32", 32, "fp32"),
    "fp8": fp8(),
    "fp8-block": fp8((128, 128)),
    "nvfp4": nvfp4(),
    "mxfp4": mxfp(4),
    "mxfp8": mxfp(8),
    "int8": integers(8, WHOLE, zero_point=False, activations=True),
    "int4": integers(4, 128, zero_point=False),
}
"""What --weights and --precision take."""

VALUE_BYTES = {"bf16": 2.0, "fp16": 2.0, "fp8": 1.0}
"""One value of the KV cache. Its scales (one for a layer, mostly) are not counted."""
