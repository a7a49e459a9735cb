"""Which modules an entry of an ignore list names: exact names, parents, globs, regular expressions. Pure."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

FUSED = {
    "q_proj": "qkv_proj", "k_proj": "qkv_proj", "v_proj": "qkv_proj",
    "gate_proj": "gate_up_proj", "up_proj": "gate_up_proj",
    "q_a_proj": "fused_qkv_a_proj_with_mqa", "kv_a_proj_with_mqa": "fused_qkv_a_proj_with_mqa",
}  # fmt: skip
"""Matrices that engines join, and whose joint name some checkpoints list."""

ALIASES = {"indexer.weights_proj": "indexers_proj"}
"""Names of another writer for the same matrix (GLM-5's FP8 checkpoint)."""

LAYER = re.compile(r"layers\.(\d+)\.")
"""An entry of a single layer; without one it may be about any. Checkpoints list tens of thousands of modules, and each
is looked for among the entries of its own layer alone."""

EXPERT_NUMBER = re.compile(r"experts\\?\.\d")
"""An entry that tells one expert from another; without one, the first expert stands for all."""


def variants(module: str) -> list[str]:
    """The names under which a checkpoint may list a module."""
    names = [module]
    stem, _, last = module.rpartition(".")
    if last in FUSED:
        names.append(f"{stem}.{FUSED[last]}")
    names += [module.replace(old, new) for old, new in ALIASES.items() if old in module]
    wrapped = [f"language_model.{name}" for name in names]
    return names + wrapped + [name.replace("model.", "model.language_model.", 1) for name in names]


@dataclass(frozen=True)
class Entries:
    """The entries of a list. An entry covers the module of that name, and what is below it; * is any text; re: begins
    a regular expression. ``mlp.gate`` names no ``mlp.gate_proj``."""

    entries: tuple[str, ...]

    def __post_init__(self) -> None:
        """Compile once; an expression that is none is a ValueError with the entry in it."""
        patterns: dict[str, list[tuple[str, re.Pattern[str]]]] = defaultdict(list)
        for entry in dict.fromkeys(self.entries):
            if entry.startswith("re:"):
                try:
                    patterns[""].append((entry, re.compile(entry[3:])))
                except re.error as error:
                    raise ValueError(f"{entry}: no regular expression: {error}") from error
            elif "*" in entry:
                end = "" if entry.endswith("*") else r"(?:\.|$)"
                body = ".*".join(re.escape(part) for part in entry.split("*"))
                patterns[_layer(entry)].append((entry, re.compile(rf"(?:.*\.)?{body}{end}")))
        literal: dict[str, set[str]] = defaultdict(set)
        lengths: dict[str, set[int]] = defaultdict(set)
        for entry in self.entries:
            if "*" not in entry and not entry.startswith("re:"):
                first, count = entry.partition(".")[0], entry.count(".") + 1
                literal[first].add(entry)
                lengths[first].add(count)
        object.__setattr__(self, "_patterns", dict(patterns))
        object.__setattr__(self, "_literal", dict(literal))
        object.__setattr__(self, "_lengths", dict(lengths))

    @property
    def by_expert(self) -> bool:
        """Whether an entry is about a single expert."""
        return any(EXPERT_NUMBER.search(entry) for entry in self.entries)

    def covering(self, module: str) -> list[str]:
        """The entries that cover a module."""
        patterns: dict[str, list[tuple[str, re.Pattern[str]]]] = self._patterns  # type: ignore[attr-defined]
        literal: dict[str, set[str]] = self._literal  # type: ignore[attr-defined]
        lengths: dict[str, set[int]] = self._lengths  # type: ignore[attr-defined]
        names, own = variants(module), _layer(module)
        near = [*patterns.get("", ()), *(patterns.get(own, ()) if own else ())]
        found = [entry for entry, pattern in near if any(pattern.match(name) for name in names)]
        for name in names if literal else ():
            parts = name.split(".")
            for begin, first in enumerate(parts):
                if first in literal:
                    runs = (".".join(parts[begin : begin + count]) for count in lengths[first])
                    found += [run for run in runs if run in literal[first]]
        return list(dict.fromkeys(found))


def _layer(name: str) -> str:
    match = LAYER.search(name)
    return match[1] if match else ""


def grouped(entries: Iterable[str]) -> list[str]:
    """Entries that differ in their numbers only as one, with N for a number, and how many there are.

    >>> grouped(["layers.0.norm", "layers.1.norm", "layers.78*"])
    ['layers.N.norm (2)', 'layers.78*']
    """
    alike: dict[str, list[str]] = {}
    for entry in entries:
        alike.setdefault(re.sub(r"\d+", "N", entry), []).append(entry)
    return [found[0] if len(found) == 1 else f"{name} ({len(found)})" for name, found in alike.items()]
