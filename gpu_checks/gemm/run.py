"""Measure one product on one GPU: random operands, the product again and again, the results compared."""

from __future__ import annotations

from ctypes import c_void_p
from dataclasses import dataclass
from typing import Any

from gpu_checks import torch_gpu
from gpu_checks.cuda_api import CudaError, Identity
from gpu_checks.cuda_async import CAPABILITY_MAJOR, CAPABILITY_MINOR, L2_CACHE_BYTES
from gpu_checks.gemm.formats import FORMATS, Format, Matrix
from gpu_checks.gemm.proof import POISON, Proof, Reference, compare, compare_on_cpu, reference, rows_to_compare
from gpu_checks.gemm.shapes import Shape, sets_of
from gpu_checks.gpus import Gpus
from gpu_checks.parts import Why, why_cuda
from gpu_checks.triage import HUNG

WARM_UP = 3

REFUSED = ("not supported", "only supported", "NOT_SUPPORTED", "not implemented", "only implemented", "NotImplemented")
"""How torch and cuBLAS say that they don't have a format on this GPU."""


class Bench:
    """One GPU, torch on it, and a stream of torch's to measure in. ``open`` has to come first."""

    def __init__(self, torch: Any, gpus: Gpus, identity: Identity) -> None:
        """Nothing is called yet: where it fails, the messages need the names."""
        self.torch, self.gpus, self.identity = torch, gpus, identity

    def open(self) -> None:
        """Make the context, the stream and the timer. Raises CudaError, or RuntimeError as torch does."""
        ordinal = self.identity.ordinal
        self.ready = self.gpus.ready(ordinal)
        self.gpus.report.doing(f"make a stream through torch on {self.where}", hung=HUNG)
        self.torch.cuda.set_device(ordinal)
        self.stream = self.torch.cuda.Stream(device=ordinal)
        self.handle = c_void_p(self.stream.cuda_stream)
        self.l2_bytes = self.gpus.api.attribute(ordinal, L2_CACHE_BYTES)
        api = self.gpus.api
        self.capability = (api.attribute(ordinal, CAPABILITY_MAJOR), api.attribute(ordinal, CAPABILITY_MINOR))

    @property
    def where(self) -> str:
        """For messages."""
        return f"GPU {self.identity.ordinal} ({self.identity.pci_bus_id})"

    @property
    def device(self) -> str:
        """torch's name for the GPU."""
        return f"cuda:{self.identity.ordinal}"


@dataclass(frozen=True)
class Operands:
    """Activations and the copies of the weights, with the exact product of the rows that are compared."""

    format: Format
    left: Matrix
    rights: list[Matrix]
    expected: Reference


def why_torch(bench: Bench, wanted: Format, error: Exception) -> Why:
    """The cause of an error of torch's, or of a call of the driver's."""
    where = f"{bench.where}, {wanted.name}"
    if isinstance(error, CudaError):
        return why_cuda(error, "gemm.no_room", "gemm.failed", where)
    text = f"{where}: {torch_gpu.first_line(error)}"
    if torch_gpu.is_out_of_memory(bench.torch, error):
        return Why("gemm.no_room", text)
    # Every GPU of the last years has BF16: there it is no answer.
    refused = wanted is not FORMATS[0] and any(word in f"{type(error).__name__}: {error}" for word in REFUSED)
    return Why("gemm.unsupported" if refused else "gemm.failed", text)


def prepare(bench: Bench, wanted: Format, shape: Shape) -> Operands:
    """Random matrices on the GPU, always the same ones, and their exact product."""
    torch = bench.torch
    generator = torch.Generator(device=bench.device)
    generator.manual_seed(0)
    left = wanted.random(torch, shape.rows, shape.depth, False, generator)
    right = wanted.random(torch, shape.columns, shape.depth, True, generator)
    sets = sets_of(right.stored_bytes, bench.l2_bytes, shape.few)
    expected = reference(torch, wanted, left, right, rows_to_compare(shape.rows))
    return Operands(wanted, left, [right, *(right.copy() for _ in range(sets - 1))], expected)


def run(bench: Bench, operands: Operands, shape: Shape, count: int) -> tuple[list[float], Proof]:
    """Microseconds of each product, and what the comparison of the last ones says."""
    torch, wanted = bench.torch, operands.format
    left = operands.left.take(slice(0, shape.rows))
    outs = [
        torch.full((shape.rows, shape.columns), POISON, dtype=torch.bfloat16, device=bench.device)
        for _ in operands.rights
    ]
    calls = [wanted.bind(torch, left, right, out) for right, out in zip(operands.rights, outs)]
    # Every call once before the stream is held: kernels are loaded, workspaces allocated, algorithms chosen then.
    warm_up = max(WARM_UP, len(calls))
    times = bench.ready.timer.each(bench.handle, lambda turn: calls[turn % len(calls)](), count, warm_up)
    whole = operands.expected
    expected = whole.first(shape.rows) if whole.rows.stop != shape.rows else whole
    proof = compare_on_cpu(torch, wanted, left, operands.rights[0], outs[0])
    for out in outs:
        proof = proof.add(compare(torch, out, expected, wanted.slack))
    return times, proof
