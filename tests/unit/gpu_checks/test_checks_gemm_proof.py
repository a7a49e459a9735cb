"""The products of ``gemm`` by a real torch on the CPU: right ones pass, and every kind of wrong one is found."""

from __future__ import annotations

import importlib
import importlib.util
import math
import sys
from types import SimpleNamespace

import pytest
from measuring import Kept, identity, some_gpus

from gpu_checks.gemm.formats import FORMATS, FP4_BLOCK, Matrix, by_chunks, swizzled
from gpu_checks.gemm.proof import POISON, Reference, compare, compare_on_cpu, reference, rows_to_compare
from gpu_checks.gemm.run import Bench, prepare, run
from gpu_checks.gemm.shapes import Shape

pytestmark = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason=f"{sys.executable} has no torch")
BY_NAME = {each.name: each for each in FORMATS}
ON_CPU = [BY_NAME["bf16"], BY_NAME["fp8"], BY_NAME["fp8_rows"]]
ROWS, COLUMNS, K = 16, 48, 2048


@pytest.fixture(scope="module")
def torch():
    return importlib.import_module("torch")


def matrices(torch, wanted, seed=0, rows=ROWS, columns=COLUMNS, k=K):
    generator = torch.Generator(device="cpu")
    generator.manual_seed(seed)
    return wanted.random(torch, rows, k, False, generator), wanted.random(torch, columns, k, True, generator)


def product(torch, wanted, left, right):
    out = torch.full((left.rows, right.rows), POISON, dtype=torch.bfloat16)
    wanted.bind(torch, left, right, out)()
    return out


def proof(torch, wanted, left, right, got):
    return compare(torch, got, reference(torch, wanted, left, right, slice(0, left.rows)), wanted.slack)


@pytest.mark.parametrize("wanted", ON_CPU, ids=lambda each: each.name)
def test_right_products_pass_again_and_again(torch, wanted):
    for seed in range(20):
        left, right = matrices(torch, wanted, seed)
        found = proof(torch, wanted, left, right, product(torch, wanted, left, right))
        assert (found.wrong, found.message) == (0, None), (seed, found)
        assert found.compared == ROWS * COLUMNS
        assert 0 < found.relative_error < 2**-8


@pytest.mark.parametrize("wanted", ON_CPU, ids=lambda each: each.name)
def test_the_sample_on_the_cpu_is_the_same_product(torch, wanted):
    left, right = matrices(torch, wanted, rows=40, columns=200)
    found = compare_on_cpu(torch, wanted, left, right, product(torch, wanted, left, right))
    assert (found.wrong, found.compared) == (0, 20 * 67)  # every 2nd of 40 rows, every 3rd of 200 columns


@pytest.mark.parametrize("wanted", ON_CPU, ids=lambda each: each.name)
def test_one_weight_whose_sign_is_flipped(torch, wanted):
    """The weight nearest to 1, so neither a large nor a small one: some of 16 rows show it."""
    left, right = matrices(torch, wanted)
    place = int((wanted.exact(torch, right)[7] / wanted.exact(torch, right)[7].abs().mean() - 1).abs().argmin())
    other = right.copy()
    raw = other.data.view(torch.int16) if wanted.bits == 16 else other.data
    raw[7, place] ^= -(1 << 15) if wanted.bits == 16 else 1 << 7
    found = proof(torch, wanted, left, right, product(torch, wanted, left, other))
    assert 0 < found.wrong <= ROWS  # in one column only
    assert f"{found.wrong} of 768 elements" in found.message


@pytest.mark.parametrize(("bit", "rows"), [(14, 1), (13, ROWS), (11, ROWS)])
def test_one_weight_with_a_wrong_bit_in_its_exponent(torch, bit, rows):
    """With its highest bit a 1 becomes huge, and one row will do. Without another one it all but vanishes."""
    wanted = BY_NAME["bf16"]
    left, right = matrices(torch, wanted, rows=rows)
    right.data[7, 99] = 1.0
    other = right.copy()
    other.data.view(torch.int16)[7, 99] ^= 1 << bit
    assert proof(torch, wanted, left, right, product(torch, wanted, left, other)).wrong


@pytest.mark.parametrize("wanted", ON_CPU, ids=lambda each: each.name)
@pytest.mark.parametrize(
    ("break_it", "kind"),
    [
        (lambda out: out.zero_(), "zeros"),
        (lambda out: out.fill_(math.nan), "not_numbers"),
        (lambda out: out.__setitem__((3, 5), math.nan), "not_numbers"),
        (lambda out: out.__setitem__((3, 5), math.inf), "not_numbers"),
        (lambda out: out.__setitem__((3, slice(0, 8)), 0), "zeros"),
        (lambda out: out.copy_(out.flip(0)), "wrong"),
        (lambda out: out.mul_(1.02), "wrong"),
    ],
    ids=["zeros", "nan", "one nan", "one infinity", "a row of a tile", "rows swapped", "2 % too much"],
)
def test_wrong_products_are_found(torch, wanted, break_it, kind):
    left, right = matrices(torch, wanted)
    out = product(torch, wanted, left, right)
    break_it(out)
    found = proof(torch, wanted, left, right, out)
    assert found.wrong > 0
    assert getattr(found, kind) > 0
    assert found.message is not None
    assert (found.relative_error is None) == (found.not_numbers > 0)  # no NaN in the record


def test_what_is_not_written_is_found(torch):
    wanted = BY_NAME["bf16"]
    left, right = matrices(torch, wanted)
    out = torch.full((ROWS, COLUMNS), POISON, dtype=torch.bfloat16)
    found = proof(torch, wanted, left, right, out)
    assert (found.wrong, found.not_numbers) == (ROWS * COLUMNS, ROWS * COLUMNS)


@pytest.mark.parametrize("name", ["fp8", "fp8_rows"])
def test_a_scale_that_is_left_out_is_found(torch, name):
    wanted = BY_NAME[name]
    left, right = matrices(torch, wanted)
    without = Matrix(right.data, torch.ones_like(right.scales))
    assert proof(torch, wanted, left, right, product(torch, wanted, left, without)).wrong > 0


def test_every_tile_of_a_large_product_is_looked_at(torch):
    rows = rows_to_compare(8192)
    every = range(8192)[rows]
    assert all(any(tile <= row < tile + 64 for row in every) for tile in range(0, 8192, 64))
    expected = Reference(rows, torch.ones(1024, 4, dtype=torch.float64), torch.ones(1024, 4, dtype=torch.float64))
    got = torch.ones(8192, 4, dtype=torch.bfloat16)
    assert compare(torch, got, expected, 2**-10).wrong == 0
    got[128:192] = 0
    assert compare(torch, got, expected, 2**-10).wrong == 8 * 4


def test_the_limit_by_hand(torch):
    """|c| = 4, spread 2, slack 2^-10: 4 / 256 + 2 / 1024 = 0.017578125 may be missing."""
    expected = Reference(slice(0, 1), *(torch.tensor([[value]], dtype=torch.float64) for value in (4.0, 2.0)))
    for error, wrong in ((0.0175, 0), (0.0177, 1)):
        got = torch.tensor([[4.0 + error]], dtype=torch.float64)
        assert compare(torch, got, expected, 2**-10).wrong == wrong


def test_exact_values_of_fp8(torch):
    data = torch.tensor([[0x38, 0xB8, 0x7E, 0x01]], dtype=torch.uint8)  # 1, -1, 448 (the largest), 2^-9 (the smallest)
    got = BY_NAME["fp8"].exact(torch, Matrix(data, torch.tensor(0.75)))
    assert got.tolist() == [[0.75, -0.75, 336.0, 0.75 / 512]]
    rows = BY_NAME["fp8_rows"].exact(torch, Matrix(data.repeat(2, 1), torch.tensor([[2.0], [4.0]])))
    assert rows[:, 0].tolist() == [2.0, 4.0]


def test_exact_values_of_nvfp4(torch):
    """0x21: the lower half, 1, is 0.5 and comes first; then 2, which is 1. 0xF8: -0 and -6."""
    data = torch.tensor([[0x21, 0xF8, *[0] * 6, 0x07, *[0] * 7]], dtype=torch.uint8)
    scales = torch.tensor([[0x40, 0x38]], dtype=torch.uint8)  # 2 and 1
    got = BY_NAME["nvfp4"].exact(torch, Matrix(data, scales))
    assert got.shape == (1, 32)
    assert got[0, :4].tolist() == [1.0, 2.0, 0.0, -12.0]
    assert got[0, FP4_BLOCK:].tolist() == [6.0, *[0.0] * 15]


def test_the_order_of_block_scales(torch):
    """cuBLAS: tiles of 128 x 4, of which each holds (r, c) at r % 32 * 16 + r // 32 * 4 + c."""
    rows, columns = 200, 7
    scales = torch.arange(1, rows * columns + 1, dtype=torch.int32).reshape(rows, columns)
    got = swizzled(torch, scales).tolist()
    assert len(got) == 256 * 8
    for r in range(rows):
        for c in range(columns):
            tile = r // 128 * 2 + c // 4
            place = tile * 512 + r % 32 * 16 + r % 128 // 32 * 4 + c % 4
            assert got[place] == scales[r, c]
    assert sum(1 for value in got if value == 0) == 256 * 8 - rows * columns


def test_a_product_in_nvfp4(torch, monkeypatch):
    """No CPU multiplies in it; what is handed to torch is undone by hand, and multiplied there."""
    wanted = BY_NAME["nvfp4"]
    left, right = matrices(torch, wanted, rows=5, columns=32, k=64)

    def scaled_mm(a, b, *, scale_a, scale_b, out_dtype, out):
        assert (a.dtype, b.dtype, scale_a.dtype) == (torch.float4_e2m1fn_x2,) * 2 + (torch.float8_e4m3fn,)
        assert (a.shape, b.shape, b.stride()) == ((5, 32), (32, 32), (1, 32))
        assert (scale_a.numel(), scale_b.numel()) == (128 * 4, 128 * 4)
        first, second = (
            wanted.exact(torch, Matrix(data.view(torch.uint8), plain(scales.view(torch.uint8), data.shape[0])))
            for data, scales in ((a, scale_a), (b.t(), scale_b))
        )
        return out.copy_(first @ second.t())

    def plain(scales, rows):
        return torch.tensor([[int(scales[r % 32 * 16 + r // 32 * 4 + c]) for c in range(4)] for r in range(rows)]).to(
            torch.uint8
        )

    monkeypatch.setattr(torch, "_scaled_mm", scaled_mm)
    got = product(torch, wanted, left, right)
    assert proof(torch, wanted, left, right, got).message is None


def test_matrices_are_random_and_always_the_same(torch):
    for wanted in FORMATS:
        left, right = matrices(torch, wanted, k=64)
        again, _ = matrices(torch, wanted, k=64)
        assert torch.equal(left.data, again.data)
        values = wanted.exact(torch, right)
        assert values.unique().numel() > 20
        assert torch.isfinite(values).all()
        assert abs(float(values.mean() / values.std())) < 0.1


def test_pieces(torch):
    assert [each.stop - each.start for each in by_chunks(24576, 6144)] == [2730] * 9 + [6]


class OnCpu(Bench):
    """A bench without a GPU: its timer calls the work, and says that each took 100 us."""

    def __init__(self, torch):
        super().__init__(torch, some_gpus(Kept()), identity(0))
        self.calls = 0
        self.l2_bytes, self.handle = 1 << 20, None
        self.ready = SimpleNamespace(timer=SimpleNamespace(each=self.each))

    def each(self, _stream, work, count, warm_up):
        for turn in range(warm_up + count):
            work(turn)
        self.calls += warm_up + count
        return [100.0] * count

    @property
    def device(self):
        return "cpu"


@pytest.mark.parametrize("wanted", ON_CPU, ids=lambda each: each.name)
def test_a_run_compares_every_copy_of_the_weights(torch, wanted):
    bench, shape = OnCpu(torch), Shape("m16", 16, 64, 512)
    operands = prepare(bench, wanted, shape)
    assert len(operands.rights) > 3 * bench.l2_bytes // operands.rights[0].stored_bytes
    assert len({each.data.data_ptr() for each in operands.rights}) == len(operands.rights)
    times, found = run(bench, operands, Shape("m4", 4, 64, 512), 6)
    assert (times, found.message) == ([100.0] * 6, None)
    assert found.compared == 4 * 64 * (len(operands.rights) + 1)
    # A weight that goes wrong in one of the copies only.
    operands.rights[2].data[9] = 0
    assert run(bench, operands, shape, 6)[1].message is not None
