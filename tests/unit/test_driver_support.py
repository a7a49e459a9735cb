"""Drivers too old for a kernel (case dkms-04) and kernel modules of the wrong flavour for a GPU."""

from __future__ import annotations

from itertools import pairwise

import pytest

from gpuhost.driver_support import (
    GENERATIONS,
    UNBUILDABLE,
    Unbuildable,
    flavour_of,
    flavour_problem,
    generation,
    too_old,
)

NVIDIA, OPEN = "NVIDIA", "Dual MIT/GPL"


@pytest.mark.parametrize(
    ("driver", "kernel", "way_out"),
    [
        ("550.163.01", "6.17.13-2-pve", "580.82.07 does"),
        ("555.58.02", "6.17.13-2-pve", "580.82.07 does"),
        ("470.239.06", "6.12.117+deb12-amd64", "535.247.01 does"),
        ("470.256.02", "6.14.11-5-bpo12-pve", "535.247.01 does"),
        ("580.105.08", "6.17.11-061711-generic", "choose a kernel of the distribution's own archive"),
    ],
)
def test_case_dkms_04_known_pairs(driver: str, kernel: str, way_out: str) -> None:
    reason = too_old(driver, "open", kernel)
    assert reason is not None
    assert reason.startswith(f"driver {driver} does not build for ")
    assert way_out in reason
    assert "#" in reason or "case" in reason  # where it is known from


def test_the_sentence() -> None:
    assert too_old("550.163.01", "open", "6.17.13-2-pve") == (
        "driver 550.163.01 does not build for Linux 6.17 and later; 580.82.07 does "
        "(case dkms-04, NVIDIA/open-gpu-kernel-modules#1143)"
    )


@pytest.mark.parametrize(
    ("driver", "kernel"),
    [
        ("550.163.01", "6.14.11-5-bpo12-pve"),  # the incident's own fallback: it was built there
        ("550.163.01", "6.12.74+deb13+1-amd64"),
        ("580.105.08", "6.17.13-2-pve"),  # case dkms-04: on mainline's 6.17.11 only
        ("580.105.08", "6.17.11-200.fc42.x86_64"),
        ("570.133.07", "6.14.0-36-generic"),  # that report was about a headers package
        ("570.195.03", "6.17.4-2-pve"),
        ("580.82.07", "6.17.4-2-pve"),
        ("470.256.02", "6.1.0-57-amd64"),
        ("580.126.18", "6.19.1-1-pve"),
        ("995.10.01", "6.17.13-2-pve"),  # a branch that nobody has seen
        ("390.157", "6.17.13-2-pve"),
        ("", "6.17.13-2-pve"),
        ("unknown", "6.17.13-2-pve"),
        ("550.163.01", "not a release"),
    ],
)
def test_what_is_not_known_is_not_refused(driver: str, kernel: str) -> None:
    assert too_old(driver, "open", kernel) is None
    assert too_old(driver, "", kernel) is None


def test_some_failures_are_of_one_flavour() -> None:
    assert too_old("570.153.02", "open", "6.15.4-1-pve") is None
    assert too_old("570.153.02", "", "6.15.4-1-pve") is None
    assert "570.169 does" in (too_old("570.153.02", "proprietary", "6.15.4-1-pve") or "")


def test_a_distributions_own_package_carries_fixes() -> None:
    """Debian 13's 550.163.01-2 is what failed in case dkms-04; a later one has more fixes under the same version."""
    target = "6.17.13-2-pve"
    assert "550.163.01-2 does not build" in (too_old("550.163.01", "open", target, "550.163.01-2") or "")
    assert too_old("550.163.01", "open", target, "550.163.01-4") is None
    assert too_old("550.163.01", "open", target, "550.163.01-0ubuntu0.24.04.1") is None
    assert too_old("470.256.02", "proprietary", "6.12.117+deb12-amd64", "470.256.02-2~deb12u1") is None


def test_the_way_out_is_right_for_the_target() -> None:
    """Several rows know 550.78: the one for the newest kernel decides."""
    assert "550.90.07 does" in (too_old("550.78", "open", "6.10.5-1-pve") or "")
    assert "550.144.03 does" in (too_old("550.78", "open", "6.13.2-1-pve") or "")
    assert "580.82.07 does" in (too_old("550.78", "open", "6.18.2-1-pve") or "")


@pytest.mark.parametrize("row", [row for row in UNBUILDABLE if not row.release], ids=lambda row: row.last)
def test_a_way_out_is_not_itself_known_to_fail(row: Unbuildable) -> None:
    kernel = f"{row.since[0]}.{row.since[1]}.5-1-pve"
    assert row.source
    assert too_old(row.last, row.flavour, kernel) is not None
    assert too_old(row.fixed, "proprietary", kernel) is None
    assert too_old(row.fixed, "open", kernel) is None


def test_rows_stand_in_the_order_of_kernels() -> None:
    """too_old takes the last that fits."""
    kernels = [row.since for row in UNBUILDABLE]
    assert kernels == sorted(kernels)


@pytest.mark.parametrize(
    ("device", "name"),
    [
        ("13c2", "Maxwell or Pascal"),  # GTX 970
        ("15f8", "Maxwell or Pascal"),  # Tesla P100
        ("1b06", "Pascal"),  # GTX 1080 Ti
        ("1db5", "Volta"),  # Tesla V100
        ("1e07", "Turing"),  # RTX 2080 Ti
        ("1eb8", "Turing"),  # Tesla T4
        ("2184", "Turing"),  # GTX 1660
        ("20b5", "Ampere"),  # A100
        ("2204", "Ampere"),  # RTX 3090
        ("25b6", "Ampere"),  # A16, A2
        ("2330", "Hopper"),  # H100
        ("0x2335", "Hopper"),  # H200
        ("10DE:26B9", "Ada"),  # L40S
        ("27b8", "Ada"),  # L4
        ("2901", "Blackwell"),  # B200
        ("2bb5", "Blackwell"),  # RTX PRO 6000
        ("2f04", "Blackwell"),  # RTX 5070
        ("3182", "Blackwell Ultra"),  # B300
    ],
)
def test_generations(device: str, name: str) -> None:
    found = generation(device)
    assert found is not None
    assert found.name == name


@pytest.mark.parametrize("device", ["22a3", "22ba", "1af1", "0fc0", "9999", "", "gpu", "10de:"])
def test_no_generation(device: str) -> None:
    """NVSwitches, audio functions, what is older than Maxwell, what nobody knows."""
    assert generation(device) is None


def test_ranges_do_not_overlap() -> None:
    ordered = sorted(GENERATIONS, key=lambda item: item.first)
    assert list(GENERATIONS) == ordered
    assert all(a.last < b.first for a, b in pairwise(ordered))


def test_flavour() -> None:
    assert [flavour_of(text) for text in (NVIDIA, f"{OPEN}\n", "GPL", "")] == ["proprietary", "open", "", ""]


@pytest.mark.parametrize(
    ("devices", "module_license", "version", "problem"),
    [
        (
            ["2bb5"],
            NVIDIA,
            "580.95.05",
            "GPU 2bb5 (Blackwell) needs the open kernel modules, these are the proprietary",
        ),
        (["2901"], OPEN, "565.77", "GPU 2901 (Blackwell) needs driver 570 or newer, this is 565.77"),
        (["1db5"], OPEN, "550.163.01", "GPU 1db5 (Volta) needs the proprietary kernel modules, these are the open"),
        (
            ["2330", "1b06"],
            OPEN,
            "580.95.05",
            "GPU 1b06 (Pascal) needs the proprietary kernel modules, these are the open",
        ),
        (["2bb5"], OPEN, "570.86.16", None),
        (["1db5"], NVIDIA, "550.163.01", None),
        (["1e07", "20b5", "2330", "26b9"], OPEN, "580.95.05", None),
        (["1e07", "20b5", "2330", "26b9"], NVIDIA, "580.95.05", None),
        (["9999"], OPEN, "580.95.05", None),
        (["2bb5"], "", "580.95.05", None),
        ([], NVIDIA, "", None),
    ],
)
def test_flavour_problem(devices: list[str], module_license: str, version: str, problem: str | None) -> None:
    assert flavour_problem(devices, module_license, version) == problem
