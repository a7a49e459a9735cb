"""The check ``decode`` on the CPU: torch computes, in small shapes; graphs are the same calls, time is the host's."""

from __future__ import annotations

import contextlib
import ctypes
import json
import time
from types import SimpleNamespace

import pytest
from measuring import Kept, some_gpus

from gpu_checks import torch_gpu
from gpu_checks.decode import casts as decode_casts
from gpu_checks.decode import check as decode
from gpu_checks.decode import reduce as decode_reduce
from gpu_checks.decode.models import for_rank, model_of
from gpu_checks.decode.reduce import Reduced
from gpu_checks.decode.run import Run
from gpu_checks.gemm.run import Bench
from gpu_checks.parts import Parts, Why
from gpu_checks.registry import Options
from gpu_checks.torch_gpu import Torch

torch = pytest.importorskip("torch", reason="this Python has no torch: the stack can't be run")

GQA = {
    "name": "tiny", "model_type": "qwen3_moe", "hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 96, "moe_intermediate_size": 32, "num_experts": 8,
    "num_experts_per_tok": 2,
}  # fmt: skip
MLA = {
    **GQA, "name": "latent", "model_type": "deepseek_v3", "num_experts": None, "n_routed_experts": 8,
    "n_shared_experts": 1, "first_k_dense_replace": 1, "intermediate_size": 128, "q_lora_rank": 32, "kv_lora_rank": 32,
    "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 16, "scoring_func": "sigmoid",
}  # fmt: skip
SPARSE = {**MLA, "name": "indexed", "index_n_heads": 2, "index_head_dim": 16, "index_topk": 8}
DENSE = {
    "name": "dense", "hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2,
    "vocab_size": 96, "intermediate_size": 128,
}  # fmt: skip
HALF_TURNED = {**GQA, "name": "half", "model_type": "glm4_moe", "n_shared_experts": 1, "partial_rotary_factor": 0.5}
CONFIGS = {each["name"]: each for each in (GQA, MLA, SPARSE, DENSE, HALF_TURNED)}


class CpuClock:
    """Time of the CPU. ``slower``: by how much a launch is said to take longer than it does, by its turn."""

    l2_bytes = 4096

    def __init__(self, _bench=None):
        self.recorded = 0

    def record(self, work):
        self.recorded += 1
        work()
        return work

    def times(self, launch, count):
        return self.each(lambda _: launch(), count)

    def each(self, work, count):
        taken = []
        for turn in range(count):
            begin = time.perf_counter()
            work(turn)
            taken.append((time.perf_counter() - begin) * 1e6)
        return taken

    def wait(self):
        return None


class Api(SimpleNamespace):
    """As much of the driver as is asked for."""

    def copy(self, target, source, size, _stream):
        ctypes.memmove(target, source, size)


class CpuBench(Bench):
    """A bench whose GPU is the CPU."""

    device = "cpu"

    def open(self):
        self.stream, self.handle, self.l2_bytes, self.capability = None, None, CpuClock.l2_bytes, (0, 0)


def text_of(config):
    return json.dumps(config)


def options(config=GQA, **changes):
    return Options(**{"model": text_of(config), "context": 24, **changes})


def a_run(config=GQA, **changes):
    """A run that can be handed to single parts of the check; its report is in ``kept``."""
    wanted, report = options(config, **changes), Kept()
    model = for_rank(model_of(config, "x"), wanted.tp)
    gpus = some_gpus(report, api=Api(driver_version=lambda: 13000, free_bytes=lambda: 8 << 30), count=1)
    bench = CpuBench(torch, gpus, gpus.gpus[0])
    bench.open()
    run = Run(wanted, model, Parts(report, "decode", "figures", "x"), bench, CpuClock(), decode.tag_of(model, wanted))
    return run, report


def check(monkeypatch, config=GQA, *, free=8 << 30, reduced=None, module=torch, clock=CpuClock, **changes):
    """Run the whole check; its measurements by name, without the tag."""
    report, wanted = Kept(), options(config, **changes)
    gpus = some_gpus(report, api=Api(driver_version=lambda: 13000, free_bytes=lambda: free), count=1)
    monkeypatch.setattr(decode, "open_gpus", lambda *_: gpus)
    monkeypatch.setattr(decode, "Bench", CpuBench)
    monkeypatch.setattr(decode, "GraphClock", clock)
    monkeypatch.setattr(torch_gpu, "load", lambda _: Torch(module, 3.0))
    monkeypatch.setattr(torch_gpu, "unfit", lambda *_: None)
    monkeypatch.setattr(torch.cuda, "stream", lambda _: contextlib.nullcontext())
    for name in ("POOL_BYTES", "LEAST_POOL_BYTES"):
        monkeypatch.setattr(decode_casts, name, 1 << 20)
    if reduced is not None:
        monkeypatch.setattr(decode_reduce, "measure", lambda *_: reduced)
    decode.check(wanted, report)
    check.report = report
    return named(report)


def named(report):
    """Measurements by name, without the tag."""
    tag = next((each.name.rpartition(".")[2] for each in report.made if "-tp" in each.name), "")
    return {name.removesuffix(f".{tag}"): each for name, each in report.by_name.items()}


ONE_RANK = Reduced(None, Why("decode.one_rank", "alone"), 1, 128, 0.0)
