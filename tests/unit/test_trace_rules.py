"""Planted faults: each is named with its share, and a healthy trace names none. All traces are synthetic."""

from __future__ import annotations

from pathlib import Path

import pytest
from fake_trace import BASE_NS, TOKEN, Plan, Writer, frame, step, write

from gpuhost.causes import CAUSES
from gpuhost_cli import trace, trace_power, trace_rules
from gpuhost_cli.trace_model import TraceError


def report(*paths, **options):
    told = [item for name, value in options.items() for item in (f"--{name.replace('_', '-')}", str(value))]
    made = trace.argparse.ArgumentParser()
    trace.fill(made)
    return trace.analyse(made.parse_args([*map(str, paths), *told]))


def codes(found):
    return [item.code for item in found.findings]


HEALTHY = {
    "graph": Plan(),
    "with an all-reduce": Plan(all_reduce=12_000),
    "quantised": Plan(quantise=2_000),
    "eager, but without gaps": Plan(graph=False),
    "spans": Plan(graph=False, marks="step[DECODE bs={}]"),
}


@pytest.mark.parametrize("plan", HEALTHY.values(), ids=HEALTHY)
def test_a_healthy_trace_names_none(tmp_path, plan):
    found = report(write(tmp_path, plan))
    assert codes(found) == []
    assert found.exit_status == 0


FAULTS = {
    "a cast in each layer": (Plan(cast=120_000), "cast", "cast"),
    "eager dispatch": (Plan(graph=False, gap=24_000, layers=30), "dispatch_bound", "idle"),
    "eager dispatch on a slow CPU": (Plan(graph=False, gap=180_000), "dispatch_bound", "idle"),
    "a sleep between the steps": (Plan(host=900_000), "host_gap", None),
    "short kernels in a graph": (Plan(gap=14_000), "graph_gaps", None),
    "slow all-reduces": (Plan(all_reduce=60_000), "collective", "collective"),
    "quantisation beside every GEMM": (Plan(quantise=9_000), "quantise", "quantise"),
}


@pytest.mark.parametrize(("plan", "code", "key"), FAULTS.values(), ids=FAULTS)
def test_a_planted_fault_is_named_with_its_share(tmp_path, plan, code, key):
    found = report(write(tmp_path, plan))
    assert codes(found) == [f"trace.{code}"]
    assert found.exit_status == 1
    truth = plan.truth()
    kernels = plan.kernels()
    sole = 100 * plan.host / sum([*(length for _, length in kernels), plan.gap * (len(kernels) - 1), plan.host])
    share = truth[key] if key else sole if code == "host_gap" else truth["idle"]
    assert found.findings[0].percent == pytest.approx(share, abs=2)
    # and no looser than the arithmetic is
    assert found.findings[0].percent == pytest.approx(share, abs=0.05)


def test_a_cast_says_where_and_what_the_known_fault_is(tmp_path):
    item = report(write(tmp_path, Plan(cast=120_000))).findings[0]
    assert item.where[0].startswith("8 x 120.0 us: unrolled_elementwise_kernel<direct_copy_kernel_cuda")
    assert "its cost follows the size of the pool, not the context" in item.likely_cause
    assert "half the pool" in item.next_step
    assert (item.limit, item.threshold) == (20, "cast_percent")


def test_a_cast_is_found_beside_a_sleep(tmp_path):
    assert codes(report(write(tmp_path, Plan(cast=120_000, host=900_000)))) == ["trace.cast", "trace.host_gap"]


def test_many_launches_without_a_graph(tmp_path):
    found = report(write(tmp_path, Plan(graph=False, layers=60)))
    assert codes(found) == ["trace.no_graph"]
    # 243 calls of 4 us in 5.6 ms
    assert found.findings[0].percent == pytest.approx(100 * 243 * 4 / 5600, abs=1)
    without = report(write(tmp_path, Plan(graph=False, layers=60, calls=False)))
    assert without.findings[0].percent == pytest.approx(100 * 243 * 5 / 5600, abs=1)
    assert "at 5 us each, assumed" in without.findings[0].what


def test_the_thresholds_decide_and_can_be_set(tmp_path):
    path = write(tmp_path, Plan(cast=120_000))
    assert codes(report(path, threshold="cast_percent=54")) == []
    assert codes(report(path, threshold="cast_percent=53")) == ["trace.cast"]
    with pytest.raises(TraceError, match="--threshold cast=3: no such threshold: cast_percent, gap_percent"):
        report(path, threshold="cast=3")
    for value in ("", "much", "-1", "inf", "nan"):
        with pytest.raises(TraceError, match="expected NAME=NUMBER, as cast_percent=25"):
            report(path, threshold=f"cast_percent={value}")


def host_copies(tmp_path, count, length, name=TOKEN):
    writer, plan, now = Writer(), Plan(steps=8), BASE_NS
    for number in range(plan.steps):
        now = step(writer, plan, now, number)
        for _ in range(count):
            writer.correlation += 1
            writer.kernel(name, now, length, plan, 0)
            now += length + 500
    path = tmp_path / "copies.json"
    path.write_text(frame(writer.events, plan))
    return report(path)


def test_copies_to_the_host_in_the_step(tmp_path):
    assert codes(host_copies(tmp_path, 8, 1_000)) == []
    many = host_copies(tmp_path, 40, 500)
    assert codes(many) == ["trace.host_copies"]
    assert many.findings[0].threshold == "host_copies"
    slow = host_copies(tmp_path, 1, 200_000, "Memcpy HtoD (Pageable -> Device)")
    assert codes(slow) == ["trace.host_copies"]
    assert slow.findings[0].threshold == "host_copy_percent"
    assert slow.findings[0].percent == pytest.approx(100 * 200 / 1026.7, abs=2)
    assert "1.0 of them from or to pageable memory" in slow.findings[0].what
    assert codes(host_copies(tmp_path, 40, 500, "Memcpy DtoD (Device -> Device)")) == []


def test_a_cache_that_is_copied_without_a_kernel(tmp_path):
    """torch copies what has one type and layout by cudaMemcpyAsync."""
    found = host_copies(tmp_path, 8, 120_000, "Memcpy DtoD (Device -> Device)")
    assert codes(found) == ["trace.cast"]
    assert found.findings[0].percent == pytest.approx(100 * 960 / 1790.7, abs=2)


def test_sampling_on_the_cpu(tmp_path):
    """An operator that launches something is the GPU's work; one that does not is the CPU's."""
    found = {}
    for where in ("cpu", "gpu"):
        writer, plan, now = Writer(), Plan(steps=8, host=150_000), BASE_NS
        for number in range(plan.steps):
            now = step(writer, plan, now, number)
            writer.host("cpu_op", "aten::multinomial", now - 140_000, 80_000)
            writer.host("cpu_op", "aten::cumsum", now - 130_000, 60_000)  # within it: counted once
            if where == "gpu":
                writer.host("cuda_runtime", "cudaLaunchKernel", now - 100_000, 4_000, 1)
        path = tmp_path / f"{where}.json"
        path.write_text(frame(writer.events, plan))
        found[where] = report(path)
    assert codes(found["gpu"]) == []
    assert codes(found["cpu"]) == ["trace.cpu_sampling"]
    assert found["cpu"].findings[0].percent == pytest.approx(100 * 80 / 956, abs=1)


# --- several ranks, and power


def test_sampling_of_other_ranks_in_a_merged_trace_is_not_added_up(tmp_path):
    """Eight ranks that sample 30 us a step each, one after the other: 3.5 % of 866 us, not 28."""
    events, plan = [], Plan(steps=8, host=60_000)
    for rank in range(8):
        writer, now = Writer(), BASE_NS
        for number in range(plan.steps):
            begin, now = now, step(writer, plan, now, number)
            writer.host("cpu_op", "aten::multinomial", begin + 100_000 + rank * 80_000, 30_000)
        for pid in ("4711", "0"):
            writer.events = [item.replace(f'"pid": {pid},', f'"pid": "[TP0{rank}] {pid}",') for item in writer.events]
        events += writer.events
    path = tmp_path / "merged.json"
    path.write_text(frame(events, plan))
    found = report(path)
    assert codes(found) == []
    launches = [gpu.launches for gpu in found.gpus]
    assert [item.cpu_sampling_percent for item in launches] == pytest.approx([100 * 30 / 866] * 8, rel=0.05)
    assert [item.synchronisations for item in launches] == pytest.approx([1] * 8, abs=0.2)


def test_the_rank_that_the_others_wait_for(tmp_path):
    slow = write(tmp_path, Plan(all_reduce=6_000, rank=1, gpu=1, host=20_000), "b-TP-1.json")
    others = [write(tmp_path, Plan(all_reduce=30_000, rank=n, gpu=n), f"a-TP-{n}.json") for n in (0, 2)]
    found = report(slow, *others)
    straggler = [item for item in found.findings if item.code == "trace.straggler"]
    assert [item.gpu for item in straggler] == ["rank 1 GPU 1"]
    assert "the others wait for it" in straggler[0].what
    assert codes(report(*others)) == []


def test_a_collective_that_spins_at_idle_power(tmp_path):
    path = write(tmp_path, Plan(all_reduce=400_000))
    assert "trace.spinning" not in codes(report(path))
    assert "trace.spinning" in codes(report(path, power=120, power_limit=600))
    assert "trace.spinning" not in codes(report(path, power=420, power_limit=600))
    # idle power alone is none: a GPU that computes little draws little
    assert codes(report(write(tmp_path, Plan(), "h.json"), power=120, power_limit=600)) == []


def test_power_as_a_series(tmp_path):
    series = tmp_path / "power.csv"
    series.write_text(
        "timestamp, index, power.draw [W], power.limit [W], utilization.gpu [%]\n"
        "2026/01/01 00:00:00.000, 0, 100.00 W, 600.00 W, 100 %\n"
        "2026/01/01 00:00:00.200, 0, 140.00 W, 600.00 W, 100 %\n"
        "2026/01/01 00:00:00.200, 1, [N/A], 600.00 W, 100 %\n"
        "2026/01/01 00:0"
    )
    found = report(write(tmp_path, Plan(all_reduce=400_000)), power=series)
    assert "trace.spinning" in codes(found)
    assert found.gpus[0].power_w == 120
    assert found.assumptions[0].startswith("power is the mean of all 2 rows of ")
    other = report(write(tmp_path, Plan(all_reduce=400_000, gpu=1), "1.json"), power=series)
    assert other.gpus[0].power_w is None


@pytest.mark.parametrize(
    ("text", "limit", "words"),
    [
        ("120", None, "--power 120: --power-limit W is missing"),
        ("nowhere.csv", None, "neither a number of watts nor a file that can be read"),
        ("a,b\n1,2\n", None, "columns index and power.draw are missing; make it with: nvidia-smi --query-gpu="),
        ("", None, "columns index and power.draw are missing"),
        ("index, power.draw\n0, [N/A]\n", 600, "no row with a GPU's power in it"),
        ("index, power.draw\n0, 100 W\n", None, "no column power.limit: add it, or give --power-limit W"),
    ],
)
def test_power_that_can_not_be_used(tmp_path, text, limit, words):
    name = text
    if "\n" in text or not text:
        name = str(tmp_path / "p.csv")
        (tmp_path / "p.csv").write_text(text)
    with pytest.raises(TraceError) as caught:
        trace_power.read(name, limit)
    assert words in str(caught.value)


def test_every_code_is_registered_and_every_registered_one_can_come():
    source = Path(trace_rules.__file__).read_text()
    registered = {code.removeprefix("trace.") for code in CAUSES if code.startswith("trace.")}
    assert registered == {code for code in registered if f'"trace.{code}"' in source}
    assert all(CAUSES[f"trace.{code}"].exit_status == 1 for code in registered)
    tested = {code for _, code, _ in FAULTS.values()}
    assert registered - tested == {"no_graph", "host_copies", "cpu_sampling", "straggler", "spinning"}


def test_the_page_has_every_threshold_and_code():
    page = (Path(__file__).resolve().parents[2] / "docs/trace.md").read_text()
    for name, (value, _) in trace_rules.THRESHOLDS.items():
        assert f"`{name}` {value:g}" in page
    for code in CAUSES:
        assert not code.startswith("trace.") or f"`{code}`" in page
