"""What is known while the check ``p2p`` goes on: of the host, of every step, of the pairs that are out. Pure.

The check has one, and every worker goes on from a copy of it, so that a worker that replaces a killed one repeats
nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from gpu_checks.kernels import Wrong
from gpu_checks.p2p.links import Link
from gpu_checks.p2p.plan import ARRIVE, CE, LATENCY, SM_READ, SM_WRITE, TOGETHER, Step, plan

Pair = tuple[int, int]

WRONG, HANG, FAILED = "p2p.wrong_data", "p2p.hang", "p2p.failed"
WORST = (WRONG, HANG, FAILED)
"""Causes of errors, the worst first: data that is wrong and not noticed does the most harm."""


@dataclass(frozen=True)
class Opened:
    """What a worker found before it moved anything. ``in_use``: who else uses the GPUs, in words.

    ``addresses``: PCI, by ordinal. ``before``: the GPUs' clocks, temperatures and so on.
    """

    addresses: list[str]
    pairs: list[Pair]
    access: list[list[bool]]
    links: dict[Pair, Link]
    buffer_bytes: int
    in_use: str | None = None
    before: list[dict[str, Any]] = field(default_factory=list)

    def steps(self, quick: bool) -> list[Step]:
        """What there is to do."""
        return plan(self.pairs, self.access, quick, speeds=self.in_use is None)

    @property
    def shared(self) -> dict[Pair, bool]:
        """Whether a pair's link shares the GPUs' ports with other pairs'."""
        return {pair: link.shared for pair, link in self.links.items()}

    def plain(self) -> dict[str, Any]:
        """For the way through the pipe."""
        links = [[i, j, link.plain()] for (i, j), link in self.links.items()]
        return {**vars(self), "links": links}

    @classmethod
    def from_plain(cls, plain: dict[str, Any]) -> Opened:
        """Back from ``plain``."""
        links = {(i, j): Link(**link) for i, j, link in plain["links"]}
        pairs = [(i, j) for i, j in plain["pairs"]]
        return cls(**{**plain, "links": links, "pairs": pairs})


@dataclass
class Known:
    """Everything so far. ``results``: by the step's key; ``bad``: cause and words for each pair that has failed in
    something; ``out``: pairs that are not touched any more, because they have cost a worker."""

    opened: Opened | None = None
    results: dict[str, dict[str, Any]] = field(default_factory=dict)
    bad: dict[Pair, tuple[str, str]] = field(default_factory=dict)
    out: set[Pair] = field(default_factory=set)
    speeds: dict[tuple[str, Pair], float] = field(default_factory=dict)
    broken_reads: set[Pair] = field(default_factory=set)

    def note(self, step: Step, result: dict[str, Any]) -> None:
        """Take in what came of a step."""
        self.results[step.key] = result
        if "error" in result:
            self._bad(step.pairs, FAILED, result["error"])
            if step.what == ARRIVE and step.engine == SM_READ:
                self.broken_reads.update(step.pairs)
        for pair, wrong in wrong_of(step, result):
            self._bad((pair,), WRONG, words_of(wrong))
            if step.engine == SM_READ:
                self.broken_reads.add(pair)
        if step.what in (CE, SM_WRITE, SM_READ):
            for pair, flow in zip(step.pairs, result.get("flows", ())):
                self.speeds[step.what, pair] = flow["gb_s"]

    def lose(self, step: Step, cause: str, message: str) -> None:
        """A worker was lost at a step: a single pair is out from now on, a pattern is only not tried again."""
        self.results[step.key] = {"error": message, "cause": cause}
        self._bad(step.pairs if step.what != TOGETHER else (), cause, message)
        self.leave(step)

    def leave(self, step: Step) -> None:
        """Touch a step's pairs no more; of a pattern nobody knows which pair it was."""
        if step.what != TOGETHER:
            self.out.update(step.pairs)

    def _bad(self, pairs: tuple[Pair, ...], cause: str, words: str) -> None:
        for pair in pairs:
            before = self.bad.get(pair)
            if before is None or WORST.index(cause) < WORST.index(before[0]):
                self.bad[pair] = (cause, words)

    def alone(self, engine: str) -> dict[Pair, float]:
        """What each pair moves when nothing else does."""
        return {pair: gb_s for (what, pair), gb_s in self.speeds.items() if what == engine}

    def hinders(self, step: Step) -> str | None:
        """Why a step must not, or need not, be done; None where it is to be done."""
        hung = next((pair for pair in step.pairs if pair in self.out), None)
        if hung is not None:
            return f"the pair {name_of(hung)} is left alone: {self.bad[hung][1]}"
        if step.what == LATENCY and (step.pairs[0][1], step.pairs[0][0]) in self.broken_reads:
            return "what is read over this link is wrong, so that no pointer can be followed"
        if step.what == TOGETHER:
            bad = next((pair for pair in step.pairs if pair in self.bad), None)
            return None if bad is None else f"the pair {name_of(bad)} does not work alone: {self.bad[bad][1]}"
        if step.what == ARRIVE:
            return None
        errors = (self.first(pair, step.engine).get("error") for pair in step.pairs)
        return next((f"the first small copy failed: {error}" for error in errors if error), None)

    def first(self, pair: Pair, engine: str) -> dict[str, Any]:
        """What came of a pair's first small copy; empty where there was none."""
        return self.results.get(Step(ARRIVE, (pair,), engine).key, {})

    def left(self, quick: bool) -> list[Step]:
        """What is still to be done."""
        steps = self.opened.steps(quick) if self.opened else []
        return [step for step in steps if step.key not in self.results and self.hinders(step) is None]


def name_of(pair: Pair) -> str:
    """A pair as in the names of measurements."""
    return f"{pair[0]}-{pair[1]}"


def wrong_of(step: Step, result: dict[str, Any]) -> list[tuple[Pair, dict[str, int]]]:
    """The pairs whose data was wrong in a step, and how."""
    if step.what == ARRIVE:
        return [(step.pairs[0], result["wrong"])] if result.get("wrong") else []
    flows = result.get("flows", ())
    if step.what == TOGETHER:
        return [((flow["source"], flow["target"]), flow["wrong"]) for flow in flows if flow["wrong"]]
    return [(pair, flow["wrong"]) for pair, flow in zip(step.pairs, flows) if flow["wrong"]]


def words_of(wrong: dict[str, int]) -> str:
    """What is wrong, for a message."""
    return str(Wrong(**wrong))
