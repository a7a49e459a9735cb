"""Health of GPUs and XIDs: what is broken is said with its way out, and what is not measured is not good."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fake_gpus import FIELDS, FIRST, FIXTURES, SECOND
from fake_host import FakeHost

from gpuhost import gpu_health, gpu_query, xids
from gpuhost.documents import Finding
from gpuhost.gpu_query import Gpu, Report

REAL = gpu_query.parse((FIXTURES / "h200-x2/query_new.csv").read_text(), FIELDS)
XIDS = (FIXTURES / "synthetic/xids.txt").read_text()


def said(*gpus: Gpu) -> dict[str, Finding]:
    return {item.id: item for item in gpu_health.findings(Report(gpus))}


def test_two_real_gpus() -> None:
    found = said(*REAL.gpus)
    assert {name for name, item in found.items() if item.severity == "good"} == {
        "gpu.ecc_mode", "gpu.recovery_action", "gpu.throttle", "gpu.temperature",
    }  # fmt: skip
    assert {item.severity for item in found.values()} == {"good", "info"}
    assert found["gpu.row_remap"].observed == f"{SECOND}: 1 rows remapped"
    assert found["gpu.ecc_errors"].observed == f"{SECOND}: 1 uncorrectable ever"


@pytest.mark.parametrize(
    ("change", "code", "severity", "says"),
    [
        ({"uncorrected": 2}, "gpu.ecc_errors", "p0_runtime", "2 uncorrectable since the driver was loaded"),
        ({"corrected": 7}, "gpu.ecc_errors", "info", "7 corrected"),
        ({"ecc_next": False}, "gpu.ecc_mode", "p1_reboot", "on now, off after a reset or a boot"),
        ({"ecc": False, "ecc_next": False}, "gpu.ecc_mode", "info", "off on"),
        ({"ecc": None, "ecc_next": None}, "gpu.ecc_mode", "info", "not applicable"),
        ({"uncorrected": None}, "gpu.ecc_errors", "info", "not applicable"),
        ({"remap_pending": True}, "gpu.row_remap", "p1_reboot", "pending"),
        ({"remap_failed": True, "remap_pending": True}, "gpu.row_remap", "p1_reboot", "has failed"),
        ({"remap_pending": None}, "gpu.row_remap", "info", "not applicable"),
        ({"retired_pending": True}, "gpu.retired_pages", "p1_reboot", "waits to be retired"),
        ({"retired_single": 3, "retired_double": 1}, "gpu.retired_pages", "info", "4 retired"),
        ({"retired_single": 0, "retired_double": 0}, "gpu.retired_pages", "good", "none"),
        ({"recovery_action": "Reset"}, "gpu.recovery_action", "p0_runtime", "Reset"),
        ({"recovery_action": "Reboot"}, "gpu.recovery_action", "p1_reboot", "Reboot"),
        ({"recovery_action": "Drain P2P"}, "gpu.recovery_action", "p0_runtime", "Drain P2P"),
        ({"recovery_action": None}, "gpu.recovery_action", "info", "not applicable"),
        ({"event_reasons": 0x20}, "gpu.throttle", "p0_runtime", "by the driver: too hot"),
        ({"event_reasons": 0x48}, "gpu.throttle", "p0_runtime", "by the hardware: too hot"),
        ({"event_reasons": 0x80}, "gpu.throttle", "p0_runtime", "brake signal"),
        ({"event_reasons": 0x8}, "gpu.throttle", "p0_runtime", "slowed down by the hardware"),
        ({"event_reasons": 0x4}, "gpu.throttle", "good", "none"),
        ({"event_reasons": 0x4}, "gpu.power_cap", "info", "draws its limit of 700 W"),
        ({"event_reasons": None}, "gpu.throttle", "unknown", "unknown"),
        ({"thermal_margin_c": -1.0}, "gpu.temperature", "p0_runtime", "-1 C below its limit"),
        ({"temperature_c": None}, "gpu.temperature", "unknown", "unknown"),
    ],
)
def test_each_thing_that_can_be_wrong(change: dict[str, Any], code: str, severity: str, says: str) -> None:
    item = said(replace(REAL.gpus[0], **change))[code]
    assert (item.severity, says in item.observed) == (severity, True)
    assert item.domain == ("power_thermal" if code in POWER else "gpu_state")
    if severity in ("p0_runtime", "p1_reboot"):
        assert item.fix


POWER = {"gpu.throttle", "gpu.temperature", "gpu.power_cap"}


def test_one_bad_gpu_among_good_ones_is_named_alone() -> None:
    item = said(replace(REAL.gpus[0], remap_pending=True), REAL.gpus[1])["gpu.row_remap"]
    assert item.observed == f"{FIRST}: remapping is pending"
    assert SECOND not in item.fix


@pytest.mark.parametrize(
    ("report", "severity", "says"),
    [
        (REAL, "good", "2 GPUs"),
        (Report(REAL.gpus[:1]), "p1_reboot", f"{SECOND} on the bus, not in nvidia-smi"),
        (Report((replace(REAL.gpus[0], errors=("GPU is lost",)), REAL.gpus[1])), "p1_reboot", "GPU is lost"),
        (Report((replace(REAL.gpus[0], errors=("GPU requires reset",)), REAL.gpus[1])), "p0_runtime", "requires reset"),
        (Report((), (), "No devices were found"), "p1_reboot", "No devices were found"),
    ],
)
def test_a_gpu_that_does_not_answer(report: Report, severity: str, says: str) -> None:
    (item,) = gpu_health.not_answering(report, (FIRST, SECOND))
    assert (item.severity, says in item.observed) == (severity, True)


def test_no_gpu_gives_no_health() -> None:
    assert gpu_health.findings(Report()) == []


# --- XIDs


def test_messages_in_the_drivers_forms() -> None:
    found = xids.parse(XIDS)
    assert [(item.address, item.number) for item in found] == [
        ("0000:41:00.0", 31),
        ("0000:41:00.0", 43),
        ("0000:41:00.0", 43),
        ("0000:c1:00.0", 79),
        ("0000:81:00.0", 63),
        ("0001:01:00.0", 999),
    ]
    assert found[3].text.endswith("GPU has fallen off the bus.")


def test_a_programs_fault_hides_no_broken_gpu() -> None:
    serious, minor = xids.findings(xids.Log(xids.parse(XIDS)))
    assert (serious.id, serious.severity) == ("gpu.xid", "p1_reboot")
    assert "0000:c1:00.0 XID 79: the GPU has fallen off the bus" in serious.observed
    assert "0000:81:00.0 XID 63" in serious.observed
    assert (minor.id, minor.severity) == ("gpu.xid_minor", "info")
    assert "0000:41:00.0 XID 43 x2" in minor.observed
    assert "XID 999: see NVIDIA's catalogue" in minor.observed


def test_none_is_good_and_not_known_is_unknown() -> None:
    assert [item.severity for item in xids.findings(xids.Log())] == ["good"]
    assert [item.severity for item in xids.findings(xids.Log(unknown="needs root"))] == ["unknown"]


@pytest.mark.parametrize(
    ("programs", "count", "unknown"),
    [
        ({"journalctl": (0, XIDS, "")}, 6, ""),
        ({"journalctl": (1, "", "")}, 0, ""),
        ({"journalctl": (1, "", "Compiled without pattern matching support"), "dmesg": (0, XIDS, "")}, 6, ""),
        ({"dmesg": (0, "[0.0] Linux version 6.8.12\n", "")}, 0, ""),
        ({"journalctl": (1, "", "No journal files were found.\n"), "dmesg": (1, "", "dmesg: not permitted")},
         0, "No journal files were found.; dmesg: dmesg: not permitted"),
        ({"dmesg": (0, "", "")}, 0, "journalctl: No such file or directory; dmesg: exit status 0"),
    ],
)  # fmt: skip
def test_where_the_kernels_log_is(tmp_path: Path, programs: dict[str, Any], count: int, unknown: str) -> None:
    host = FakeHost(tmp_path)
    host.programs |= {(name,): answer for name, answer in programs.items()}
    log = xids.read(host)
    assert (len(log.xids), log.unknown) == (count, unknown)


def test_an_ordinary_user_can_not_say(tmp_path: Path) -> None:
    host = FakeHost(tmp_path)
    host.root_user = False
    assert xids.read(host) == xids.Log(unknown="needs root")
    assert host.calls == []
