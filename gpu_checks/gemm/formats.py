"""The number formats that ``gemm`` multiplies: random matrices, the call that an engine makes, and the exact values.

A matrix is kept as it is stored, rows x K. A left one is activations (M x K), a right one is weights as a linear layer
has them (N x K); the product is left x right^T, M x N in BF16. ``torch`` is handed in: the module itself.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Callable

FP4_VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
"""What the lower three bits of an E2M1 number say; the fourth is the sign."""

FP4_BLOCK = 16
"""Elements of NVFP4 that share an E4M3 scale."""

SCALE_ROWS, SCALE_COLUMNS = 128, 4
"""Block scales come in tiles of so many rows and columns: see ``swizzled``."""

CHUNK_ELEMENTS = 1 << 24
"""Elements made or widened at once: 128 MiB as float64."""

TENSOR_SCALES = (0.75, 1.5)
"""Left and right: no powers of two, and no 1, so that a scale that is left out shows."""


@dataclass(frozen=True)
class Matrix:
    """``data``: rows x K as stored (bytes for FP8; two elements a byte for FP4). ``scales``: in plain order."""

    data: Any
    scales: Any = None

    @property
    def rows(self) -> int:
        """How many rows it has."""
        return int(self.data.shape[0])

    def take(self, rows: slice) -> Matrix:
        """Some of its rows. A scale for the whole stays."""
        shared = self.scales is None or self.scales.dim() == 0
        return Matrix(self.data[rows], self.scales if shared else self.scales[rows])

    def to(self, device: str) -> Matrix:
        """On another device."""
        return Matrix(self.data.to(device), None if self.scales is None else self.scales.to(device))

    def copy(self) -> Matrix:
        """The same values at another address. The scales of weights are as large as caches and go with them."""
        return Matrix(self.data.clone(), None if self.scales is None else self.scales.clone())

    @property
    def stored_bytes(self) -> int:
        """Bytes that a multiplication has to read."""
        scales = 0 if self.scales is None else self.scales.numel() * self.scales.element_size()
        return int(self.data.numel() * self.data.element_size() + scales)


@dataclass(frozen=True)
class Format:
    """A number format and how it is multiplied.

    ``bits``: of a weight. ``since``: the first compute capability that has it. ``slack``: see ``proof``.
    """

    name: str
    bits: int
    since: tuple[int, int]
    slack: float
    call: str
    random: Callable[[Any, int, int, bool, Any], Matrix]
    exact: Callable[[Any, Matrix], Any]
    bind: Callable[[Any, Matrix, Matrix, Any], Callable[[], Any]]


def by_chunks(rows: int, columns: int) -> list[slice]:
    """Rows in pieces of at most CHUNK_ELEMENTS elements.

    >>> by_chunks(5, CHUNK_ELEMENTS // 2)
    [slice(0, 2, None), slice(2, 4, None), slice(4, 5, None)]
    """
    step = max(1, CHUNK_ELEMENTS // columns)
    return [slice(begin, min(rows, begin + step)) for begin in range(0, rows, step)]


# BF16. ------------------------------------------------------------------------------------------------------------


def _bf16_random(torch: Any, rows: int, k: int, right: bool, generator: Any) -> Matrix:
    del right
    data = torch.empty(rows, k, dtype=torch.bfloat16, device=generator.device)
    data.normal_(generator=generator)
    return Matrix(data)


def _bf16_exact(torch: Any, matrix: Matrix) -> Any:
    return matrix.data.to(torch.float64)


def _bf16_bind(torch: Any, left: Matrix, right: Matrix, out: Any) -> Callable[[], Any]:
    a, b = left.data, right.data.t()
    return lambda: torch.mm(a, b, out=out)


# FP8. -------------------------------------------------------------------------------------------------------------


def _fp8_data(torch: Any, rows: int, k: int, generator: Any) -> Any:
    data = torch.empty(rows, k, dtype=torch.uint8, device=generator.device)
    for part in by_chunks(rows, k):
        values = torch.randn(part.stop - part.start, k, generator=generator, device=generator.device)
        data[part] = values.to(torch.float8_e4m3fn).view(torch.uint8)
    return data


def _fp8_random(torch: Any, rows: int, k: int, right: bool, generator: Any) -> Matrix:
    scale = torch.tensor(TENSOR_SCALES[right], dtype=torch.float32, device=generator.device)
    return Matrix(_fp8_data(torch, rows, k, generator), scale)


def _fp8_rows_random(torch: Any, rows: int, k: int, right: bool, generator: Any) -> Matrix:
    del right
    scales = torch.rand(rows, 1, generator=generator, device=generator.device) + 0.5
    return Matrix(_fp8_data(torch, rows, k, generator), scales)


def _fp8_exact(torch: Any, matrix: Matrix) -> Any:
    # float32 holds each of these numbers exactly, and every torch knows that conversion.
    values = matrix.data.view(torch.float8_e4m3fn).to(torch.float32)
    return values.to(torch.float64) * matrix.scales.to(torch.float64)


def _fp8_bind(torch: Any, left: Matrix, right: Matrix, out: Any) -> Callable[[], Any]:
    a, b = left.data.view(torch.float8_e4m3fn), right.data.view(torch.float8_e4m3fn).t()
    scale_a, scale_b = left.scales, right.scales.t()
    return _scaled(torch, a, b, scale_a, scale_b, out)


def _scaled(torch: Any, a: Any, b: Any, scale_a: Any, scale_b: Any, out: Any) -> Callable[[], Any]:
    # Without use_fast_accum, as engines call it.
    return lambda: torch._scaled_mm(a, b, scale_a=scale_a, scale_b=scale_b, out_dtype=torch.bfloat16, out=out)


# NVFP4. -----------------------------------------------------------------------------------------------------------


def _fp4_random(torch: Any, rows: int, k: int, right: bool, generator: Any) -> Matrix:
    del right
    data = torch.randint(0, 256, (rows, k // 2), dtype=torch.uint8, generator=generator, device=generator.device)
    scales = torch.rand(rows, k // FP4_BLOCK, generator=generator, device=generator.device) + 0.5
    return Matrix(data, scales.to(torch.float8_e4m3fn).view(torch.uint8))


def _fp4_exact(torch: Any, matrix: Matrix) -> Any:
    signed = [*FP4_VALUES, *(-value for value in FP4_VALUES)]
    table = torch.tensor(signed, dtype=torch.float64, device=matrix.data.device)
    # The element of even number is the lower half of the byte.
    codes = torch.stack((matrix.data & 15, matrix.data >> 4), dim=-1)
    blocks = table[codes.to(torch.int64)].reshape(matrix.rows, -1, FP4_BLOCK)
    scales = matrix.scales.view(torch.float8_e4m3fn).to(torch.float32).to(torch.float64)
    return (blocks * scales.unsqueeze(-1)).reshape(matrix.rows, -1)


def swizzled(torch: Any, scales: Any) -> Any:
    """Block scales (rows x blocks) as cuBLAS takes them: tiles of 128 x 4, one after the other, row of tiles by row.

    In a tile the scale of row r, column c stands at r % 32 * 16 + r // 32 * 4 + c (cuBLAS, "1D block scaling factors
    layout"). Missing rows and columns are filled with zeros.
    """
    rows, columns = scales.shape
    tiles_down, tiles_across = math.ceil(rows / SCALE_ROWS), math.ceil(columns / SCALE_COLUMNS)
    whole = torch.zeros(tiles_down * SCALE_ROWS, tiles_across * SCALE_COLUMNS, dtype=scales.dtype, device=scales.device)
    whole[:rows, :columns] = scales
    parts = whole.reshape(tiles_down, 4, 32, tiles_across, SCALE_COLUMNS)
    return parts.permute(0, 3, 2, 1, 4).contiguous().reshape(-1)


def _fp4_bind(torch: Any, left: Matrix, right: Matrix, out: Any) -> Callable[[], Any]:
    a, b = left.data.view(torch.float4_e2m1fn_x2), right.data.view(torch.float4_e2m1fn_x2).t()
    scale_a = swizzled(torch, left.scales).view(torch.float8_e4m3fn)
    scale_b = swizzled(torch, right.scales).view(torch.float8_e4m3fn)
    return _scaled(torch, a, b, scale_a, scale_b, out)


# The slack of each is explained where it is used, in proof.
FORMATS = (
    Format("bf16", 16, (8, 0), 2.0**-10, "torch.mm(x, w.t())", _bf16_random, _bf16_exact, _bf16_bind),
    Format("fp8", 8, (8, 9), 2.0**-6, "torch._scaled_mm, a scale a tensor", _fp8_random, _fp8_exact, _fp8_bind),
    Format("fp8_rows", 8, (8, 9), 2.0**-6, "torch._scaled_mm, a scale a row", _fp8_rows_random, _fp8_exact, _fp8_bind),
    Format("nvfp4", 4, (10, 0), 2.0**-6, "torch._scaled_mm, a scale each 16", _fp4_random, _fp4_exact, _fp4_bind),
)
NEEDS = {"fp8": "float8_e4m3fn", "fp8_rows": "float8_e4m3fn", "nvfp4": "float4_e2m1fn_x2"}
"""The type without which a torch can't do a format."""


def unsupported(torch: Any, wanted: Format, capability: tuple[int, int]) -> str | None:
    """Why this GPU or this torch can't multiply in a format; None where it should."""
    major, minor = capability
    if capability < wanted.since:
        instead = next((each.name for each in reversed(FORMATS) if each.since <= capability), None)
        other = f": {instead.partition('_')[0].upper()} was measured instead" if instead else ""
        return f"unsupported on SM{major}{minor}{other}"
    kind = NEEDS.get(wanted.name)
    if kind is not None and not (hasattr(torch, kind) and hasattr(torch, "_scaled_mm")):
        return f"torch {torch.__version__} has no {kind}"
    return None
