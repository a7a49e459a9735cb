"""Spans by which torch, SGLang and vLLM name their own steps, and which of those are decode steps.

Sources: torch.profiler's ``ProfilerStep#N``; SGLang's scheduler, ``step[DECODE bs=4]`` and
``step[EXTEND bs=1 toks=9]``; vLLM's worker, ``execute_context_0(0)_generation_4(4)``: requests (tokens) that are
prefilled, and that decode. In some versions it was ``execute_new_0_cached_4``: requests that come, and that were there
before; a prefill in pieces is among these, and its other kernels tell it from a decode step.
"""

from __future__ import annotations

import re

DECODE = (
    re.compile(r"^step\[DECODE\b"),
    re.compile(r"^execute_((\d+_)?context_0\(.*?\)_generation|new_0_cached)_[1-9]"),
    re.compile(r"^ProfilerStep#\d+$"),
)
"""The first that a trace has names its steps: an engine's own word is nearer to a decode step than the profiler's."""

OTHER = (
    re.compile(r"^step\[(?!DECODE\b)"),
    re.compile(r"^execute_(\d+_)?context_(?!0\(.*?\)_generation_[1-9])"),
    re.compile(r"^execute_new_(?!0_cached_[1-9])\d"),
)
"""Steps that are no decode steps: a prefill, or both at once. They end the step before them."""

NONE_TOLD = re.compile(r"(?!)")
"""Matches nothing: --step-name was not given."""


def is_mark(name: str, told: re.Pattern[str]) -> bool:
    """Whether a span's name is kept when a trace is read."""
    return bool(told.search(name)) or any(pattern.search(name) for pattern in (*DECODE, *OTHER))
