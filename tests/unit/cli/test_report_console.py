"""Below a step on the terminal: of a gate that failed a few rows and the next step, of other failures nothing."""

from __future__ import annotations

import re
from typing import Any

import gate_runs as runs
import pytest

from gpuhost_cli.report_console import ROWS, WIDTH, failed_gate_lines, step_lines


def test_the_console_gets_a_few_rows_and_the_next_step() -> None:
    _, verdict = runs.slow_gate()
    lines = failed_gate_lines({"gpuhost_documents": [verdict]})
    assert len(lines) == 7
    assert re.fullmatch(r" +measurement +now +baseline +change +limit +verdict", lines[0])
    assert re.search(r"host memory.copy.gpu0 +2104 GB/s +4145 GB/s +-49.2 % +at least .* fail memory.slow$", lines[1])
    assert lines[-1].strip().startswith("next: nvidia-smi -q -d CLOCK"), "that of the first row"


def test_the_console_counts_what_it_leaves_out() -> None:
    faults: dict[str, float | str] = {f"ce_0_{j}": 3.0 for j in range(1, 8)}
    targets = {"llm-a": runs.target(*runs.pairs(8, sm_write_2_3="p2p.hang", **faults))}
    before = runs.baseline_of({"llm-a": runs.target(*runs.pairs(8))})
    verdict = runs.verdict(targets, ["p2p"], baselines=before)
    verdict["comparisons"][0]["observed"] = "long " * 100
    lines = [line.strip() for line in failed_gate_lines({"results": [{"gpuhost_documents": [verdict]}]})]
    assert len(lines) == ROWS + 3, "names of the columns, rows, the rest, the next step"
    assert lines[-2] == "… and 3 more of p2p, see the report"
    assert any(line.startswith("p2p.sm_write.2-3: p2p.hang: no end within 5 s") for line in lines)
    assert lines[-1].startswith("next: Suspects: ACS"), "that of the hang: the judge names it first"


def test_a_long_message_is_cut_and_the_next_step_is_not() -> None:
    row = {"name": "p2p.ce.0-1", "check": "p2p", "target": "host", "verdict": "fail", "cause": "p2p.hang"}
    verdict = {
        "schema": "gpuhost.verdict", "required": ["p2p"], "comparisons": [{**row, "observed": "x" * 999}],
        "verdicts": [{"check": "p2p", "target": "host", "status": "fail", "required": True, "next_step": "y" * 400}],
    }  # fmt: skip
    said, step = (line.strip() for line in failed_gate_lines({"gpuhost_documents": [verdict]}))
    assert len(said) == WIDTH
    assert said.endswith("x…")
    assert step == f"next: {'y' * 400}"


def test_a_check_that_gave_no_measurement_is_named() -> None:
    targets = {"host": runs.target(*runs.items("memory"))}
    lines = failed_gate_lines({"gpuhost_documents": [runs.verdict(targets, ["p2p"])]})
    assert lines[0].strip() == "p2p on host: gate.not_measured: not run anywhere"
    assert lines[-1].strip().startswith("next: ")


@pytest.mark.parametrize("result", [{}, {"gpuhost_documents": [{"schema": "gpuhost.plan"}]}, {"gpuhost_documents": 7}])
def test_other_failures_print_nothing_more(result: dict[str, Any]) -> None:
    assert failed_gate_lines(result) == []
    assert step_lines(result, "failed", diff=False) == []


def test_lines_of_steps_that_went_well_are_shown_as_before() -> None:
    shown = {status: step_lines({"lines": ["a"]}, status, diff=False) for status in ("ok", "changed", "skipped")}
    assert shown == {"ok": ["          a"], "changed": ["          a"], "skipped": []}
