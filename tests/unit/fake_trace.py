"""Synthetic traces with a known truth: a decode step of a few layers, as torch's profiler writes it.

No file of a real server is here: names, layout and fields are those of Kineto, the times are made up.
"""

from __future__ import annotations

import gzip
import json
import re
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

CAST = (
    "void at::native::unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda(at::TensorIteratorBase&)"
    "::{lambda()#3}::operator()() const::{lambda()#12}::operator()() const::{lambda(c10::BFloat16)#1}, "
    "at::detail::Array<char*, 2>, at::native::memory::LoadWithCast<1>, at::native::memory::StoreWithCast<1> >(int)"
)
GEMM, GEMM_FP8 = "nvjet_tst_64x8_64x16_4x1_v_bz_TNT", "nvjet_qqtst_128x8_128x6_2x1_v_bz_TNT"
NORM = "void flashinfer::norm::FusedAddRMSNormKernel<8u, __nv_bfloat16>(__nv_bfloat16*, __nv_bfloat16*)"
ATTENTION = "void flash::flash_fwd_splitkv_kernel<Flash_fwd_kernel_traits<128, 64, 128, 4> >(flash::Flash_fwd_params)"
QUANTISE = "void sglang::per_token_group_quant_8bit_kernel<c10::BFloat16, c10::Float8_e4m3fn>(void*, void*, float*)"
ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
EMBEDDING = "void at::native::(anonymous namespace)::vectorized_gather_kernel<16, long>(char*, char*, long*, int)"
ARGMAX = "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::ArgMaxOps<float>, long, 4> >"
TOKEN = "Memcpy DtoH (Device -> Pinned)"
BASE_NS = 1_712_195_495_505_582_988
"""Microseconds of this size have no exact float."""

OF = {
    CAST: "cast",
    GEMM: "gemm_bf16",
    GEMM_FP8: "gemm_fp8",
    NORM: "norm",
    ATTENTION: "attention",
    QUANTISE: "quantise",
    ALL_REDUCE: "collective",
    EMBEDDING: "norm",
    ARGMAX: "sampling",
    TOKEN: "memcpy",
}


def us(ns: int) -> str:
    """Microseconds as Kineto writes them."""
    return f"{ns // 1000}.{ns % 1000:03d}"


@dataclass
class Plan:
    """What one decode step is made of; times in nanoseconds."""

    steps: int = 12
    layers: int = 8
    graph: bool = True
    gap: int = 700
    """Between two kernels."""
    host: int = 20_000
    """Between two steps."""
    cast: int = 0
    """An FP8 to BF16 cast of the KV pool, once a layer."""
    quantise: int = 0
    all_reduce: int = 0
    marks: str = ""
    """Name of a span around each step's launches, with {} for its number."""
    gpu: int = 0
    rank: int | None = None
    numbered: bool = True
    """Kernels have the number of their graph, as Kineto has it since CUDA 12."""
    calls: bool = True

    def kernels(self) -> list[tuple[str, int]]:
        """Names and durations of one step in order."""
        found = [(EMBEDDING, 3_000)]
        for _ in range(self.layers):
            gemm = GEMM_FP8 if self.quantise else GEMM
            quantise = [(QUANTISE, self.quantise)] if self.quantise else []
            found += [(NORM, 4_000), *quantise, (gemm, 30_000)]
            found += [(CAST, self.cast)] if self.cast else []
            found += [(ATTENTION, 25_000), *quantise, (gemm, 30_000)]
            found += [(ALL_REDUCE, self.all_reduce)] if self.all_reduce else []
        return [*found, (GEMM, 60_000), (ARGMAX, 5_000), (TOKEN, 1_000)]

    def truth(self) -> dict[str, float]:
        """Share of the step in percent by class, and ``idle``: counted here, not by the program under test."""
        kernels, sums = self.kernels(), Counter[str]()
        for name, length in kernels:
            sums[OF[name]] += length
        sums["idle"] = self.gap * (len(kernels) - 1) + self.host
        whole = sum(sums.values())
        return {key: 100 * value / whole for key, value in sums.items()}


@dataclass
class Writer:
    """Events, as Kineto orders them: by the time of what came first."""

    events: list[str] = field(default_factory=list)
    correlation: int = 1000

    def kernel(self, name: str, begin: int, length: int, plan: Plan, graph: int, stream: int = 7) -> None:
        """Work on the GPU."""
        category = "gpu_memcpy" if name.startswith("Memcpy") else "kernel"
        more = f', "graph id": {graph}, "graph node id": {graph << 32 | 5}' if graph and plan.numbered else ""
        more += ', "bytes": 4' if category == "gpu_memcpy" else ', "grid": [8, 1, 1], "est. achieved occupancy %": 0'
        self.events.append(
            f'    "ph": "X", "cat": "{category}", "name": {json.dumps(name)}, "pid": {plan.gpu}, "tid": {stream},\n'
            f'    "ts": {us(begin)}, "dur": {us(length)},\n    "args": {{\n      "External id": 4, "queued": 0, '
            f'"device": {plan.gpu}, "context": 1, "stream": {stream}, "correlation": {self.correlation}{more}\n    }}'
        )

    def host(self, category: str, name: str, begin: int, length: int, correlation: int = 0) -> None:
        """Something on the CPU."""
        self.events.append(
            f'    "ph": "X", "cat": "{category}", "name": {json.dumps(name)}, "pid": 4711, "tid": 4711,\n'
            f'    "ts": {us(begin)}, "dur": {us(length)},\n'
            f'    "args": {{\n      "External id": 4, "cbid": 211, "correlation": {correlation}\n    }}'
        )

    def flow(self, begin: int) -> None:
        """The arrow from a call to its kernel."""
        self.events.append(
            f'    "ph": "s", "id": {self.correlation}, "pid": 4711, "tid": 4711, "ts": {us(begin)},\n'
            '    "cat": "ac2g", "name": "ac2g"'
        )


def step(writer: Writer, plan: Plan, begin: int, number: int) -> int:
    """One step; returns when the next one begins."""
    now = begin
    launched = begin - 50_000  # the CPU runs ahead of the GPU
    if plan.marks:
        writer.host("user_annotation", plan.marks.format(number), launched - 1000, 30_000)
    if plan.graph:
        writer.correlation += 1
        if plan.calls:
            writer.host("cuda_runtime", "cudaGraphLaunch", launched, 8_000, writer.correlation)
            writer.flow(launched)
    kernels = plan.kernels()
    for place, (name, length) in enumerate(kernels):
        in_graph = plan.graph and not name.startswith("Memcpy")
        if not in_graph:
            writer.correlation += 1
            if plan.calls:
                call = "cudaMemcpyAsync" if name.startswith("Memcpy") else "cudaLaunchKernel"
                at = launched + 10_000 + place if plan.marks else now - 6_000
                writer.host("cuda_runtime", call, at, 4_000, writer.correlation)
        writer.kernel(name, now, length, plan, 3 if in_graph else 0)
        now += length + plan.gap
    if plan.calls:
        writer.host("cuda_runtime", "cudaStreamSynchronize", now - 2_000, 1_500)
    return now - plan.gap + plan.host


def text(plan: Plan, writer: Writer | None = None) -> str:
    """A whole trace."""
    writer, now = writer or Writer(), BASE_NS
    for number in range(plan.steps):
        now = step(writer, plan, now, number)
    return frame(writer.events, plan)


def frame(events: list[str], plan: Plan) -> str:
    """What stands around the events."""
    rank = "" if plan.rank is None else f'\n  "distributedInfo": {{"backend": "nccl", "rank": {plan.rank}}},'
    body = "\n  },\n  {\n".join(events)
    return (
        f'{{\n  "schemaVersion": 1,{rank}\n  "deviceProperties": [{{"id": {plan.gpu}, "name": "synthetic GPU"}}],\n'
        f'  "traceEvents": [\n  {{\n{body}\n  }}\n  ],\n  "traceName": "synthetic", "displayTimeUnit": "ms"\n}}\n'
    )


def write(folder: Path, plan: Plan, name: str = "synthetic.json") -> Path:
    """As a file, packed where its name says so."""
    path = folder / name
    data = text(plan).encode()
    path.write_bytes(gzip.compress(data, 1) if name.endswith(".gz") else data)
    return path


def big(path: Path, size: int, *, lines: bool = True) -> int:
    """A file of that many bytes with the mixture of a real one: three of four events are of no use to us.

    Without ``lines`` all of it stands on one line. Returns the number of its steps.
    """
    plan = Plan(layers=60, graph=False, gap=500, host=40_000, marks="step[DECODE bs={}]")
    writer, written, now, number = Writer(), 0, BASE_NS, 0
    with gzip.open(path, "wt", compresslevel=1) if path.name.endswith(".gz") else path.open("w") as stream:
        stream.write('{\n  "schemaVersion": 1,\n  "traceEvents": [\n')
        while written < size:
            writer.events.clear()
            begin, now = now, step(writer, plan, now, number)
            for place in range(len(plan.kernels())):
                at = begin + place * 900
                for depth in range(6):
                    writer.host("cpu_op", f"aten::linear_{depth}", at + depth, 800, 0)
                writer.host("python_function", f"synthetic/layers/attention.py({place}): forward", at, 850)
            body = ("" if not number else ",\n") + "  {\n" + "\n  },\n  {\n".join(writer.events) + "\n  }"
            written += stream.write(body if lines else re.sub(r"\n *", "", body))
            number += 1
        stream.write('\n  ],\n  "traceName": "synthetic"\n}\n')
    return number
