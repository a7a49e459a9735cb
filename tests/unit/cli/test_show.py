"""The line below a host's outcome: cause, what was seen, the way out, each of them once."""

from __future__ import annotations

from dataclasses import fields

import pytest

from gpuhost_cli.report_rows import FailureRow
from gpuhost_cli.show import failure_line


@pytest.mark.parametrize(
    "message",
    ["boot.x: grub: a, expected b: Look there.", "grub: a, expected b: Look there.", "grub: a, expected b"],
)
def test_cause_and_way_out_are_said_once(message: str) -> None:
    words = {field.name: "" for field in fields(FailureRow)}
    row = FailureRow(**{**words, "cause": "boot.x", "message": message, "next_step": "Look there."})
    assert failure_line(row) == "boot.x: grub: a, expected b: Look there."
