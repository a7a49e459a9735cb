"""docs/test-matrix.md says of each trial where it is booted, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.lab.full.scenarios import GRUB, GRUB_LVM, SCENARIOS, SYSTEMD_BOOT, Scenario

ROOT = Path(__file__).resolve().parents[2]
IN_MAKE_TEST = {("a", SYSTEMD_BOOT), ("b", SYSTEMD_BOOT), ("d", SYSTEMD_BOOT)}


def rows() -> dict[str, list[str]]:
    """Key of a scenario -> the cells of its row."""
    lines = (ROOT / "docs" / "test-matrix.md").read_text().splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("| ")]
    return {row[0]: row for row in cells if len(row[0]) == 1}


def test_every_scenario_has_a_row_and_every_row_a_scenario() -> None:
    assert list(rows()) == [scenario.key for scenario in SCENARIOS] == list("abcdefghi")


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda item: item.key)
def test_a_row_says_where_it_is_booted(scenario: Scenario) -> None:
    _, name, _, cause, *places = rows()[scenario.key]
    assert name.startswith(scenario.name)
    assert cause == (f"`{scenario.cause}`" if scenario.cause else "-")
    for loader, place in zip((SYSTEMD_BOOT, GRUB, GRUB_LVM), places, strict=True):
        wanted = "full" if loader in scenario.loaders else ""
        assert place == ("test" if (scenario.key, loader) in IN_MAKE_TEST else wanted)
