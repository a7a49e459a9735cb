"""The sets of figures that are compared, each as one round: ours, then the peer. Rounds follow each other: A B A B."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from pathlib import Path

import nccl_tests
import nvbandwidth
import ours
import torch_peer
from bench import Bench, Done, Values
from figures import gemv

NVBANDWIDTH, NCCL_TESTS, DO_BENCH = "nvbandwidth", "nccl-tests", "do_bench"
OUR_LAYOUT = "GPU_CHECKS_LAYOUT"
"""The variable by which our check is told how to spread GPUs over processes."""

ONE_PROCESS_TABLE = "allreduce, one process"
SECONDS, SAME_SET = "seconds", "seconds for the same set"
QUICK_CHECKS = ["cuda", "p2p", "allreduce", "gemm"]
"""The quick set: one P2P ring, one matrix product for each GPU, one collective."""


def _nvbandwidth(bench: Bench, name: str, tests: tuple[str, ...]) -> Values:
    def read(done: Done) -> Values:
        matrices = nvbandwidth.parse(done.out)
        bench.about["nvbandwidth"] = nvbandwidth.about(done.out)
        return nvbandwidth.readings(matrices)

    return bench.peer(name, NVBANDWIDTH, nvbandwidth.command(str(bench.setup.programs / "nvbandwidth"), tests), read)


def memory(bench: Bench, _turn: int) -> None:
    """Copies within each GPU."""
    bench.keep("memory", bench.ours("memory", ["memory"]))
    bench.keep("memory", _nvbandwidth(bench, "memory", (nvbandwidth.LOCAL,)), NVBANDWIDTH)


def p2p(bench: Bench, _turn: int) -> None:
    """Copies from GPU to GPU, and their seconds: ours with all its patterns, the peer with the same figures only."""

    def same(values: Values) -> Values:
        return {(SAME_SET if figure == SECONDS else figure, place): value for (figure, place), value in values.items()}

    bench.keep("p2p", same(bench.ours("p2p", ["p2p"])))
    bench.keep("p2p", same(_nvbandwidth(bench, "p2p", nvbandwidth.P2P_TESTS)), NVBANDWIDTH)


def _all_reduce(bench: Bench, table: str, layout: nccl_tests.Layout, mode: str, span: tuple[int, int]) -> float:
    """One call of the peer; its seconds."""
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "result.json"

        def read(done: Done) -> Values:
            if done.rc or not output.exists():
                raise nccl_tests.NotUsable(f"all_reduce_perf ended with {done.rc}: {done.out.strip()[-300:]}")
            text = output.read_text()
            bench.about[NCCL_TESTS] = nccl_tests.about(text)
            return nccl_tests.readings(nccl_tests.parse(text), mode)

        argv = layout.command(*span, mode, str(output))
        values = bench.peer(table, f"{NCCL_TESTS}, {layout.name}", argv, read)
    seconds = values.pop((SECONDS, "all"), 0.0)
    bench.keep(table, values, f"{NCCL_TESTS}, {layout.name}")
    return seconds


def _layout(bench: Bench, table: str, ours_is: str, peer_is: str) -> None:
    """All sizes and both modes in one layout: ours, then the peer."""
    bench.keep(table, bench.ours(table, ["allreduce"], variables={OUR_LAYOUT: ours_is}))
    layout = nccl_tests.layout(peer_is, str(bench.setup.programs), bench.setup.gpus)
    calls = [(mode, span) for mode in nccl_tests.MODES for span in nccl_tests.SPANS]
    seconds = sum(_all_reduce(bench, table, layout, mode, span) for mode, span in calls)
    bench.keep(table, {(SECONDS, "all"): seconds}, f"{NCCL_TESTS}, {layout.name}")


def allreduce(bench: Bench, _turn: int) -> None:
    """Ours against nccl-tests in both layouts: a process for each GPU, and one process for all of them."""
    if bench.setup.mpi:
        _layout(bench, "allreduce", "process", nccl_tests.A_PROCESS_EACH)
    else:
        bench.note("nccl-tests was built without MPI: ours has a process for each GPU, it a thread (build.py --mpi)")
        _layout(bench, "allreduce", "process", nccl_tests.A_THREAD_EACH)
    _layout(bench, ONE_PROCESS_TABLE, "single", nccl_tests.ONE_PROCESS)


def gemv_products(bench: Bench, _turn: int) -> None:
    """Products with few rows against triton's do_bench on the same call."""
    values = bench.ours("gemv", ["gemm"])
    wanted = ours.products(bench.documents.get("gemv", []))
    for gpu, m, n, k in wanted:
        found = values.get((gemv(m, n, k), str(gpu)))
        if found is not None:
            values[gemv(m, n, k, clean=True), str(gpu)] = found
    bench.keep("gemv", values)
    if not wanted:
        bench.note("gemv: no product of ours was measured, so that the peer has nothing to compare with")
        return

    def read(done: Done) -> Values:
        try:
            said = json.loads(done.out)
        except ValueError as error:
            raise ours.NotUsable(f"torch_peer.py wrote no JSON: {done.err[-300:]}") from error
        bench.about["do_bench"] = {"torch": said["torch"], "triton": said["triton"]}
        return {
            (gemv(each["m"], each["n"], each["k"], clean), str(each["gpu"])): each["bytes"] / each[key] / 1e6
            for each in said["products"]
            for key, clean in (("ms", False), ("ms_clean", True))
        }

    shapes = [":".join(map(str, each)) for each in wanted]
    argv = [bench.setup.python, str(Path(torch_peer.__file__).resolve()), *shapes]
    bench.keep("gemv", bench.peer("gemv", DO_BENCH, argv, read), DO_BENCH)


def times(bench: Bench, turn: int) -> None:
    """How long everything takes, and the quick set: ours alone, in the first round."""
    if turn:
        return
    for figure, checks, quick in (("quick set (s)", QUICK_CHECKS, True), ("all checks (s)", ["all"], False)):
        values = bench.ours("times", checks, quick)
        if values:
            bench.keep("times", {(figure, "all"): values[SECONDS, "all"]})


SETS: dict[str, tuple[int, Callable[[Bench, int], None]]] = {
    "memory": (1, memory),
    "p2p": (2, p2p),
    "allreduce": (2, allreduce),
    "gemv": (1, gemv_products),
    "times": (1, times),
}
"""Each set by name: the GPUs that it needs, and one round of it."""

UNLIKE = f"{NCCL_TESTS}, {nccl_tests.A_THREAD_EACH}"
"""A peer that is not laid out as ours is: shown beside it, and no bound is meant for it."""


def judged_by(peers: list[str]) -> list[str]:
    """The peers of a set that ours is judged by."""
    return [peer for peer in peers if peer != UNLIKE]
