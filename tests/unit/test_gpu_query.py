"""nvidia-smi's batch query and MIG tables: captured texts, and what stands in them instead of values."""

from __future__ import annotations

from pathlib import Path

import pytest
from fake_gpus import FIELDS, FIRST, FIXTURES, SECOND, Machine
from fake_host import FakeHost
from hypothesis import given
from hypothesis import strategies as st

from gpuhost import gpu_query, mig
from gpuhost.gpu_query import BASE, OLD_REASONS, address_of, error_of, parse, value_of


@pytest.fixture
def host(tmp_path: Path) -> FakeHost:
    return FakeHost(tmp_path)


def captured(name: str, fields: tuple[str, ...]) -> gpu_query.Report:
    return parse((FIXTURES / f"h200-x2/{name}.csv").read_text(), fields)


def test_two_real_gpus() -> None:
    report = captured("query_new", FIELDS)
    first, second = report.gpus
    assert (first.index, first.address, first.name) == (0, FIRST, "NVIDIA H200")
    assert (first.persistence, first.ecc, first.ecc_next, first.mig, first.mig_next) == (True, True, True, False, False)
    assert (first.power_limit_w, first.power_min_w, first.power_max_w) == (700, 200, 700)
    assert (first.application_clocks_mhz, first.max_clocks_mhz) == ((3201, 1980), (3201, 1980))
    assert (first.event_reasons, first.thermal_margin_c, first.recovery_action) == (1, 50, "None")
    assert (first.retired_single, first.retired_pending) == (None, None)
    assert (second.uncorrected, second.uncorrected_ever, second.remapped_uncorrected) == (0, 1, 1)
    assert (report.remarks, report.problem, first.errors) == ((), "", ())


def test_an_older_drivers_fields_give_the_same_but_for_what_it_does_not_say() -> None:
    (first, _) = captured("query_old", (*BASE, OLD_REASONS)).gpus
    assert (first.event_reasons, first.power_limit_w) == (1, 700)
    assert (first.thermal_margin_c, first.recovery_action, first.remap_pending) == (None, None, None)
    assert captured("query_base", BASE).gpus[0].event_reasons is None


@pytest.mark.parametrize(
    ("text", "value", "error"),
    [
        ("700.00", "700.00", None),
        ("[N/A]", None, None),
        ("N/A", None, None),
        ("[Not Supported]", None, None),
        ("[Requested functionality has been deprecated]", None, None),
        ("[Unknown Error]", None, "Unknown Error"),
        ("[GPU is lost]", None, "GPU is lost"),
        ("[GPU requires reset]", None, "GPU requires reset"),
        ("[Insufficient Permissions]", None, "Insufficient Permissions"),
        ("None", "None", None),
        ("", None, None),
    ],
)
def test_what_is_no_value(text: str, value: str | None, error: str | None) -> None:
    assert (value_of(text), error_of(text)) == (value, error)


def test_a_lost_gpu_among_good_ones() -> None:
    line = (FIXTURES / "h200-x2/query_new.csv").read_text().splitlines()[0]
    cells = line.split(", ")
    cells[4:] = ["[GPU is lost]"] * len(cells[4:])
    remark = "Unable to determine the device handle for GPU 0000:C1:00.0: Unknown Error"
    report = parse(f"{line}\n{', '.join(cells)}\n{remark}\n", FIELDS)
    assert [gpu.errors for gpu in report.gpus] == [(), ("GPU is lost",)]
    assert report.gpus[1].persistence is None
    assert report.remarks == (remark,)


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("00000000:41:00.0", "0000:41:00.0"),
        ("00000001:C1:00.0", "0001:c1:00.0"),
        ("0000:41:00", "0000:41:00.0"),
        ("PCI:0000:41:00", "0000:41:00.0"),
        ("0000:41:00.0", "0000:41:00.0"),
        ("odd", "odd"),
    ],
)
def test_addresses_as_the_kernel_writes_them(text: str, address: str) -> None:
    assert address_of(text) == address


@given(st.text(alphabet="[],0123456789.-xabNAEn /\n", max_size=300))
def test_no_text_is_an_exception(text: str) -> None:
    parse(text, FIELDS)
    mig.parse_profiles(text)
    mig.parse_instances(text)


def test_one_call_for_all(host: FakeHost) -> None:
    Machine(host)
    assert len(gpu_query.ask(host).gpus) == 2
    assert len(host.ran("nvidia-smi")) == 1


def test_a_driver_that_does_not_know_the_new_fields_is_asked_again(host: FakeHost) -> None:
    machine = Machine(host)
    machine.unknown_fields = {"gpu_recovery_action", "clocks_event_reasons.active"}
    (first, _) = gpu_query.ask(host).gpus
    assert (first.recovery_action, first.event_reasons) == (None, 1)
    assert len(host.ran("nvidia-smi")) == 2


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        ((127, "", "nvidia-smi: No such file or directory"), "nvidia-smi is not installed"),
        ((9, "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.\n", ""), "NVIDIA-SMI has"),
        ((6, "No devices were found\n", ""), "No devices were found"),
        ((124, "", "nvidia-smi: killed after 30 s"), "killed after 30 s"),
        ((2, 'Field "nonsense" is not a valid field to query.\n', ""), "nonsense"),
    ],
)
def test_no_answer_is_a_problem_and_never_no_gpus(host: FakeHost, answer: tuple[int, str, str], problem: str) -> None:
    host.programs[("nvidia-smi",)] = answer
    report = gpu_query.ask(host)
    assert report.gpus == ()
    assert problem in report.problem


def test_the_captured_refusal_of_a_field_is_the_one_that_is_recognised() -> None:
    text = (FIXTURES / "h200-x2/unknown_field.txt").read_text()
    assert text.startswith("rc 2\n")
    assert "is not a valid field to query" in text


def test_real_mig_profiles() -> None:
    found = mig.parse_profiles((FIXTURES / "h200-x2/mig_lgip.txt").read_text())
    assert len(found) == 14
    assert found[1] == mig.Profile(0, "1g.18gb+me", 20, 1, 1)
    assert found[-1] == mig.Profile(1, "7g.141gb", 0, 1, 1)
    assert mig.parse_instances((FIXTURES / "h200-x2/mig_lgip.txt").read_text()) == ()


def test_mig_instances() -> None:
    found = mig.parse_instances((FIXTURES / "synthetic/mig_lgi.txt").read_text())
    assert found == (
        mig.Instance(0, "1g.18gb+me", 20, 5, 0, 1),
        mig.Instance(0, "3g.71gb", 9, 2, 4, 4),
        mig.Instance(1, "1g.18gb", 19, 13, 6, 1),
    )
    assert mig.parse_instances("No MIG-enabled devices found.\n") == ()


def test_what_is_missing_of_a_layout() -> None:
    assert mig.missing_and_more(["3g.71gb"], ["3g.71gb", "3g.71gb"]) == (["3g.71gb"], [])
    assert mig.missing_and_more(["7g.141gb"], ["3g.71gb"]) == (["3g.71gb"], ["7g.141gb"])
    assert mig.layout(["b", "a"]) == mig.layout(["a", "b"]) == "a,b"


@pytest.mark.parametrize(
    ("layout", "reason"),
    [
        (["3g.71gb", "3g.71gb"], ""),
        (["3g.71gb"] * 3, "holds at most 2 of 3g.71gb"),
        (["3g.40gb"], "has no profile 3g.40gb"),
    ],
)
def test_a_layout_that_can_not_be(layout: list[str], reason: str) -> None:
    profiles = mig.parse_profiles((FIXTURES / "h200-x2/mig_lgip.txt").read_text())
    found = mig.misfit(layout, [item for item in profiles if item.gpu == 0])
    assert found.startswith(reason) if reason else found == ""


def test_the_second_gpus_address(host: FakeHost) -> None:
    Machine(host)
    assert gpu_query.ask_one(host, SECOND, "power.limit") == ["700.00"]
    assert gpu_query.ask_one(host, "0000:ff:00.0", "power.limit") == [None]
