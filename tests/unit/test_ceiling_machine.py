"""The machine's numbers: given, then measured, then the data sheet, then assumed; and which of them a document has."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from ceiling_cases import batch, glm, term

from gpuhost_cli.ceiling_hardware import Input, at_size
from gpuhost_cli.ceiling_measured import measured_of
from gpuhost_cli.ceiling_report import Ceiling
from gpuhost_cli.run import InputError


def row(name: str, value: float | None, status: str = "measured", **detail: Any) -> dict[str, Any]:
    return {"name": name, "value": value, "status": status, "detail": detail}


ROWS = [
    *(row(f"memory.read.gpu{gpu}", 1500 + 10 * gpu) for gpu in range(8)),
    row("allreduce.graph.8", 20.0, ranks=8),
    row("allreduce.graph.4096", 25.0, ranks=8),
    row("allreduce.graph.12288", 30.0, ranks=8),
    row("allreduce.graph.262144", 100.0, ranks=8),
    row("allreduce.eager.12288", 55.0, ranks=8),
    row("p2p.ce.0-1", 42.0),
    row("p2p.ce.1-0", 38.0),
    row("gemm.nvfp4.gpu0.square", 1400.0),
    row("gemm.nvfp4.gpu1.square", 1300.0),
    row("gemm.bf16.gpu0.square", 350.0),
    row("p2p.ce.2-3", None, "error"),
]


def document(rows: list[dict[str, Any]] = ROWS, **more: Any) -> dict[str, Any]:
    head = {"schema": "gpuhost.measurements", "schema_version": 1, "host": "gpu1.example.com"}
    return {**head, "taken_at": "2026-01-31T12:00:00Z", "targets": {"llm-a": {"measurements": rows}}, **more}


@pytest.fixture
def measured(tmp_path: Path) -> Any:
    def ask(*argv: str, rows: list[dict[str, Any]] = ROWS) -> Ceiling:
        path = tmp_path / "measurements.json"
        path.write_text(json.dumps(document(rows)))
        return glm("--measured", str(path), *argv)

    return ask


def inputs(found: Ceiling) -> dict[str, Input]:
    return {item.name: item for item in found.inputs}


def test_measured_goes_before_the_data_sheet(measured: Any) -> None:
    found = inputs(measured())
    assert {name: (item.value, item.source) for name, item in found.items()} == {
        "GPUs": (8, "measured"),
        "memory of one GPU": (1500, "measured"),
        "share of it that kernels get": (1.0, "assumed"),
        "one all-reduce of a token": (30.0, "measured"),
        "one GPU to another": (38.0, "measured"),
        "FP4 rate": (1300.0, "measured"),
        "BF16 rate": (350.0, "measured"),
    }
    assert found["memory of one GPU"].why == "memory.read.gpu0, the slowest of 8"
    assert "one that a kernel reached" in found["share of it that kernels get"].why


def test_given_goes_before_measured(measured: Any) -> None:
    argv = ("--gpu-memory-gb-s", "2000", "--allreduce-us", "11", "--link-gb-s", "50", "--flops", "fp4=900")
    found = inputs(measured(*argv, "--memory-efficiency", "0.9", "--gpus", "8"))
    assert [found[name].source for name in found if name != "BF16 rate"] == ["given"] * 6
    assert found["FP4 rate"].value == 900


def test_without_anything_it_is_sheet_and_mode() -> None:
    found = inputs(glm())
    sources = {name: item.source for name, item in found.items()}
    assert sources == {
        "GPUs": "preset", "memory of one GPU": "preset", "share of it that kernels get": "assumed",
        "one all-reduce of a token": "assumed", "one GPU to another": "preset", "FP4 rate": "preset",
        "BF16 rate": "assumed",
    }  # fmt: skip
    assert found["BF16 rate"].value == 1850 / 4


def test_all_reduces_take_what_was_measured_at_their_size(measured: Any) -> None:
    found = measured()
    assert term(found, "allreduce").seconds == pytest.approx(156 * 30e-6)
    assert term(found, "transfer").seconds == 0
    two, sixteen = batch(found, 2), batch(found, 16)
    weights = {step.batch: step.weight_bytes / 1500e9 for step in (two, sixteen)}
    assert two.seconds - weights[2] == pytest.approx(156e-6 * at_size(((12288, 30.0), (262144, 100.0)), 24576))
    assert sixteen.seconds - weights[16] == pytest.approx(156e-6 * at_size(((12288, 30.0), (262144, 100.0)), 196608))


def test_beyond_the_largest_measured_size_the_link_is_added(measured: Any) -> None:
    found = measured()
    assert "all-reduces were measured up to 262144 B; beyond, the link's rate is added" in found.notes
    at, tokens = batch(found, 64), 64 - 262144 / 12288
    beyond = 156 * tokens * 12288 * 2 * 7 / 8 / 38e9
    assert at.seconds == pytest.approx(at.weight_bytes / 1500e9 + 156 * 100e-6 + beyond)


def test_all_reduces_of_other_ranks_are_not_used(measured: Any) -> None:
    found = measured("--tp", "4")
    assert inputs(found)["one all-reduce of a token"].source == "assumed"
    assert "the all-reduces were measured over 8 GPUs, tp is 4: not used" in found.notes


def test_what_failed_is_named(measured: Any) -> None:
    notes = measured().notes
    assert "measured: on gpu1.example.com at 2026-01-31T12:00:00Z" in notes
    assert "not measured, so not used: p2p.ce.2-3" in notes


def test_an_answer_of_gpu_checks_itself() -> None:
    plain = {key: value for key, value in document().items() if key != "targets"}
    found = measured_of({**plain, "measurements": ROWS}, "x")
    assert found.read_gb_s == 1500
    assert found.where == "in gpu1.example.com at 2026-01-31T12:00:00Z", "the name may be a container's"


@pytest.mark.parametrize(
    ("content", "target", "text"),
    [
        ([], None, "not a document of measurements (schema gpuhost.measurements)"),
        ({"schema": "gpuhost.audit"}, None, "not a document of measurements"),
        (document(schema_version=2), None, "schema_version 2, 1 is understood"),
        (document([row("memory.read.gpu0", None, "error")]), None, "none of memory.read.gpuN"),
        (document(), "llm-b", "no target llm-b; it has llm-a"),
        (
            document(targets={"a": {"measurements": ROWS}, "b": {"measurements": ROWS}}),
            None,
            "measured in a, b: say which with --measured-target",
        ),
        (document(targets={"a": {"measurements": [1]}}), None, "no list of named measurements"),
        (document(targets={"a": {"measurements": [{"name": 1}]}}), None, "no list of named measurements"),
        (document(targets=[]), None, "its targets are no object"),
    ],
)
def test_documents_that_cant_be_used(content: Any, target: str | None, text: str) -> None:
    with pytest.raises(InputError) as caught:
        measured_of(content, "m.json", target)
    assert text in str(caught.value)


def test_a_target_is_chosen_by_name_or_by_what_it_has() -> None:
    targets = {"a": {"measurements": ROWS}, "b": {"measurements": [row("device_access", 11)]}}
    assert measured_of(document(targets=targets), "x").gpus == 8
    targets["b"] = {"measurements": [row("memory.read.gpu0", 7)]}
    assert measured_of(document(targets=targets), "x", "b").read_gb_s == 7


@pytest.mark.parametrize("value", [0, float("inf"), float("nan")])
def test_no_number_is_no_measurement(value: float) -> None:
    with pytest.raises(InputError, match="none of"):
        measured_of(document([row("memory.read.gpu0", value)]), "x")


def test_a_gpu_that_was_not_measured_is_still_one(measured: Any) -> None:
    """Seven of eight would make it tp 7, and a refusal that nobody understands."""
    rows = [row("memory.read.gpu3", None, "error") if each["name"] == "memory.read.gpu3" else each for each in ROWS]
    found = measured(rows=rows)
    assert (found.tp, inputs(found)["memory of one GPU"].why) == (8, "memory.read.gpu0, the slowest of 7")
    assert "not measured, so not used: memory.read.gpu3, p2p.ce.2-3" in found.notes


def test_the_assumed_latency_is_that_of_the_links() -> None:
    """27.5 us are PCIe's: over NVLink a server would be faster than such a ceiling."""
    name = "one all-reduce of a token"
    pcie, nvlink = inputs(glm())[name], inputs(glm("--hardware", "h200"))[name]
    assert (pcie.value, nvlink.value, nvlink.source) == (27.5, 6, "assumed")
    assert "NVLink" in nvlink.why
    assert inputs(glm("--hardware", "h200", "--mode", "incident"))[name].value == 10


def test_a_gpu_without_a_format_multiplies_in_a_wider_one() -> None:
    found = inputs(glm("--hardware", "h200"))
    assert (found["FP4 rate"].value, found["FP4 rate"].source) == (1979, "assumed")
    assert found["FP4 rate"].why == "no rate known: multiplied in 8 bit"


def test_batches_that_do_not_fit_are_said() -> None:
    found = glm("--hardware", "h200", "--context", "32768")
    note = next(note for note in found.notes if "do not fit" in note)
    assert note.startswith("from batch 64 on weights and cache do not fit (174.6 GB on a GPU of 141 GB)")
    assert not any("do not fit" in note for note in glm("--hardware", "h200").notes)
    assert any("from batch 1 on" in note for note in glm("--gpu-memory-gb", "48").notes)


def test_transfer_within_or_beside_the_latency() -> None:
    within, beside = glm("--transfer", "included"), glm("--transfer", "added")
    assert term(beside, "transfer").seconds == pytest.approx(within.traffic.wire_bytes / 40e9)
    assert term(within, "transfer").seconds == 0
    assert batch(beside, 64).seconds - batch(within, 64).seconds == pytest.approx(term(beside, "transfer").seconds)
