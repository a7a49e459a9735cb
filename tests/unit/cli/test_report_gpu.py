"""The report's section about the GPUs: the gate's table, matrices, clocks, and what was not measured."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import gate_runs as runs
import pytest
from gate_runs import eight, host_of, pages, part_of

from gpu_checks.health.gpu import SLOWED
from gpuhost import baselines
from gpuhost_cli.report_gate import ORDER, compared, table_of
from gpuhost_cli.report_gpu import IDLE
from gpuhost_cli.report_gpu import SLOWED as HARMFUL
from gpuhost_cli.report_matrix import matrices


@pytest.fixture
def slow(tmp_path: Path) -> Path:
    return runs.folder(tmp_path, *runs.slow_gate())


# --- the table


def test_what_failed_comes_first_and_both_numbers_are_there(slow: Path) -> None:
    table = part_of(slow).table
    assert table is not None
    assert [row.name for row in table.bad] == [row.name for row in table.rows[: len(table.bad)]]
    assert {row.name for row in table.bad} == {
        "memory.copy.gpu0", "p2p.ce.0-1", "p2p.ce_both.0-1", "p2p.sm_read.0-1", "p2p.sm_write.0-1"
    }  # fmt: skip
    sentence = r"5 failed; \d+ compared, at worst 1.0 % worse than the baseline; \d+ without a limit"
    assert re.fullmatch(sentence, table.sentence)
    html, markdown = pages(slow)
    assert html.index("GPU measurements") < html.index(">Timing<"), "where the gate failed it comes first"
    assert html.index("memory.copy.gpu0</code></td>") < html.index("others, none of them failed")
    for page in (html, markdown):
        assert "2104 GB/s" in page
        assert "4145 GB/s" in page
        assert "-49.2 %" in page
        assert "at least 3938 GB/s (baseline - 5 %)" in page
    assert html.count("Next for p2p.slow") == 1, "a next step is said once, not at each of its rows"


def test_hangs_come_before_what_is_slow_and_a_check_repeats_no_part(tmp_path: Path) -> None:
    table = part_of(eight(tmp_path, ce_0_5=4.1, ce_2_3="p2p.hang")).table
    assert table is not None
    assert [row.name for row in table.bad] == ["p2p.ce.2-3", "p2p.ce.0-5"]
    assert "p2p" in {row.name for row in table.rows}, "report.json has it all"
    assert table.sentence.startswith("2 failed;")


def test_a_check_that_is_not_required_is_no_alarm(tmp_path: Path) -> None:
    now, _ = runs.slow_gate()
    before = runs.baseline_of({**now, "host": runs.target(*runs.items("health", "cuda", "memory", "gemm"))})
    folder = runs.folder(tmp_path, now, runs.verdict(now, ["cuda"], baselines=before))
    host = host_of(folder)
    assert host.gate == "pass"
    assert host.gpu is not None
    assert host.gpu.table is not None
    assert [(row.name, row.tone) for row in host.gpu.table.bad] == [("memory.copy.gpu0", "warn")]
    assert host.gpu.table.sentence.startswith("1 failed (not required);")
    html = pages(folder)[0]
    assert 'class="warned"' in html
    assert 'class="failed"' not in html
    assert html.index(">Timing<") < html.index(">GPU measurements<"), "where it passed, the usual order"


def test_an_unknown_verdict_of_a_row_is_an_error() -> None:
    for verdict in (None, "", "PASS", 1, ["pass"]):
        (row,) = compared({"required": ["memory"], "comparisons": [{"name": "memory", "verdict": verdict}]})
        assert (row.verdict, row.bad, row.tone) == ("error", True, "bad")
    assert {row.tone for row in compared(_rows_of_all_verdicts())} == {"good", "quiet", "bad"}


def _rows_of_all_verdicts() -> dict[str, Any]:
    return {"required": ["memory"], "comparisons": [{"name": "memory.x", "verdict": verdict} for verdict in ORDER]}


def test_many_failures_are_folded_after_the_first_twenty(tmp_path: Path) -> None:
    faults: dict[str, float | str] = {f"ce_{i}_{j}": 3.0 for i in range(8) for j in range(8) if i != j}
    html = pages(eight(tmp_path, **faults))[0]
    assert "36 more that failed" in html


# --- the baseline


def test_the_judges_note_is_understood(slow: Path) -> None:
    """The words are those of baselines.changes_since: a change there has to be one here too."""
    table = part_of(slow).table
    assert table is not None
    (origin,) = table.origins
    assert (origin.taken_at, origin.run_id) == (runs.ORIGIN.taken_at, runs.ORIGIN.run_id)
    assert (origin.kernel, origin.driver) == (runs.OLD, "570.172.08")
    assert (table.kernel, table.driver, table.notes) == (runs.NEW, "580.159.04", ())
    html, markdown = pages(slow)
    assert "another kernel" in html
    assert "another driver" in html
    assert f"**{runs.NEW}** (another kernel)" in markdown


def test_the_same_kernel_and_driver_are_said_to_be_the_same(slow: Path) -> None:
    path = slow / runs.HOST / "verdict.json"
    verdict = json.loads(path.read_text())
    path.write_text(json.dumps({**verdict, "kernel": runs.OLD, "driver": "570.172.08"}))
    html = pages(slow)[0]
    assert "another kernel" not in html
    assert f"{runs.OLD}, the same" in html


def test_another_gpu_is_said() -> None:
    now, _ = runs.slow_gate()
    before = runs.baseline_of(now)
    other = baselines.Origin(**{**vars(runs.ORIGIN), "gpus": {"host": ["GPU-of-before"]}})
    found = baselines.Baselines(before.head, {other.key: other}, before.targets)
    (note,) = table_of(runs.verdict(now, ["memory"], baselines=found)).notes
    assert "the baseline was taken on GPU-of-before" in note


def test_no_baseline_is_said(tmp_path: Path) -> None:
    targets = {"host": runs.target(*runs.items("memory"))}
    for page in pages(runs.folder(tmp_path, targets, runs.verdict(targets, ["memory"]))):
        assert "No baseline on this host" in page


# --- matrices


def test_the_matrix_has_value_link_and_share(tmp_path: Path) -> None:
    folder = eight(tmp_path, ce_0_5=4.1, ce_2_3="p2p.hang")
    one = part_of(folder).matrices[0]
    near, far, bad, hung = (one.cells[i][j] for i, j in ((0, 1), (0, 4), (0, 5), (2, 3)))
    assert near is not None
    assert far is not None
    assert bad is not None
    assert hung is not None
    assert (near.link, near.heat, near.tone, near.bad) == ("PIX", 5, "h5", False)  # 52.2 of 57.6 GB/s: 91 %
    assert (far.link, far.heat, far.under) == ("SYS", 3, "SYS · 66 %")  # 37.84 of 57.614
    assert (bad.heat, bad.verdict, bad.cause, bad.tone) == (1, "fail", "p2p.slow", "failed h1")
    assert (hung.value, hung.value_text, hung.heat, hung.tone) == (None, "hang", None, "failed")
    assert "expected 57.61 GB/s (SYS), failed p2p.slow" in bad.sentence
    assert all(one.cells[i][i] is None for i in range(8))
    html, markdown = pages(folder)
    assert f'title="{bad.sentence}"' in html
    assert "**4.10** (SYS · 7 %)" in markdown


def test_matrices_without_a_failure_are_folded_only_where_they_are_large(tmp_path: Path) -> None:
    large = part_of(eight(tmp_path, ce_0_5=4.1)).matrices
    assert [(one.what, one.first) for one in large] == [
        ("ce", True), ("ce_both", False), ("sm_write", False), ("latency", False)
    ]  # fmt: skip
    assert part_of(eight(tmp_path / "2", latency_1_0=99.0)).matrices[-1].first, "a failure is never folded away"
    assert all(one.first for one in matrices("x", runs.pairs(4), ()))


def test_a_latency_is_not_coloured_by_a_speed() -> None:
    latency = matrices("x", runs.pairs(4), ())[-1]
    assert (latency.what, latency.heated) == ("latency", False)


def test_a_pair_without_a_value_is_no_failure_where_nothing_was_judged(tmp_path: Path) -> None:
    targets = {"llm-a": runs.target(*runs.items("p2p_hang"))}
    part = part_of(runs.folder(tmp_path, targets, None, single=True))
    ce, both = part.matrices[0], part.matrices[1]
    hung, missing = ce.cells[0][1], both.cells[0][1]
    assert hung is not None
    assert missing is not None
    assert (hung.verdict, hung.tone) == ("error", "failed")
    assert (missing.verdict, missing.tone, missing.value_text) == ("not_measured", "missing", "not reached")


def test_names_make_no_huge_matrix() -> None:
    item = {"name": "p2p.ce.0-100000", "value": 1.0, "unit": "gb_s", "status": "measured"}
    assert matrices("x", [item], ()) == []


# --- clocks


def test_clocks_are_those_before_the_first_and_after_the_last_check(tmp_path: Path) -> None:
    targets = {"host": runs.target(*runs.items("health", "gemm", "memory"))}
    (gpu,) = part_of(runs.folder(tmp_path, targets, None)).gpus
    assert gpu.name == "NVIDIA H200"
    assert gpu.before is not None
    assert gpu.after is not None
    assert (gpu.before.sm_clock_mhz, gpu.before.temperature_c, gpu.before.throttle_reasons) == (345, 30, (IDLE,))
    assert (gpu.after.sm_clock_mhz, gpu.after.temperature_c) == (1980, 31)
    assert gpu.hottest_c == 36, "of the parts, too"
    assert [check.check for check in gpu.checks] == ["gemm", "memory"]
    assert [(one.reason, one.checks, one.harmful) for one in gpu.throttles] == [("sw_power_cap", ("gemm",), False)]
    html = pages(tmp_path / runs.RUN_ID)[0]
    assert "345 → 1980 MHz" in html
    assert "ran slower than it can" not in html, "a power cap is what a GPU under load does"


def test_a_gpu_that_is_too_hot_stands_above_the_table_of_clocks(tmp_path: Path) -> None:
    for page in pages(eight(tmp_path)):
        assert re.search(r"GPU 3 in llm-a ran slower than it can:</strong>|\*\*GPU 3 in llm-a ran slower", page)
        assert "too hot (hardware) (p2p), up to 91 °C" in page


def test_the_faults_among_the_throttle_reasons_are_those_of_the_check() -> None:
    assert set(HARMFUL) == set(SLOWED)


def test_gpus_that_nvml_says_nothing_of_are_not_known(tmp_path: Path) -> None:
    targets = {"llm-a": runs.target(*runs.items("p2p_slow"))}
    part = part_of(runs.folder(tmp_path, targets, None))
    assert [(gpu.ordinal, gpu.before, gpu.after) for gpu in part.gpus] == [("0", None, None), ("1", None, None)]


# --- what was not measured


def test_what_was_not_measured_has_its_reason(slow: Path) -> None:
    (row,) = part_of(slow).unmeasured
    assert (row.names, row.cause, row.why) == (
        ("gemm.nvfp4.gpu0",), "gemm.unsupported", "unsupported on SM90: FP8 was measured instead"
    )  # fmt: skip
    for page in pages(slow):
        assert "unsupported on SM90: FP8 was measured instead" in page


def test_one_reason_for_many_is_one_row(tmp_path: Path) -> None:
    targets = {"llm-a": runs.target(*runs.items("p2p_hang"))}
    rows = part_of(runs.folder(tmp_path, targets, None, single=True)).unmeasured
    assert [(row.status, row.cause, len(row.names)) for row in rows] == [
        ("error", "p2p.hang", 1), ("not_measured", "p2p.not_reached", 7)
    ]  # fmt: skip
    assert rows[1].named.endswith(" and 4 more")
