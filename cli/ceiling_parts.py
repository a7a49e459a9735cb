"""The weights that one rank holds and reads, by component, format and place. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from gpuhost_cli.ceiling_formats import Format
from gpuhost_cli.ceiling_match import grouped
from gpuhost_cli.ceiling_model import COMPONENTS, NEVER_READ, Experts, Matrix, Model, distinct_experts
from gpuhost_cli.ceiling_parallel import Layout, fullest_rank, place_of
from gpuhost_cli.ceiling_quant import Scheme

Load = str
"""How experts fall on ranks under expert parallelism: ``fullest`` (the step waits for that rank), or ``even``."""


@dataclass(frozen=True)
class Precision:
    """Which format each component has: the checkpoint's, one for all, and those of single components."""

    scheme: Scheme
    all: Format | None = None
    single: Mapping[str, Format] = field(default_factory=dict)

    def formats(self, matrix: Matrix, seen: set[str]) -> Iterator[tuple[Format, int]]:
        """The formats of a matrix's copies in all its layers, and how many have each. ``seen`` takes the entries of
        the checkpoint's lists that named something."""
        count = matrix.copies * len(matrix.layers)
        fixed = self.single.get(matrix.component) or self.all
        if fixed is not None:
            yield fixed, count
            return
        apart = self.scheme.by_expert and matrix.copies > 1
        each = 1 if apart else matrix.copies
        for layer in matrix.layers:
            for expert in range(matrix.copies if apart else 1):
                found, entries = self.scheme.format_of(
                    matrix.component, matrix.module.format(layer=layer, expert=expert)
                )
                seen.update(entries)
                yield found, each


@dataclass(frozen=True)
class Part:
    """What one rank has of a component in one format. Bytes are of all layers, scales included.

    ``held_bytes``: in its memory. Of routed experts a step reads a share of them, of all other parts everything
    (nothing of the embedding). ``flops``: for one token.
    """

    component: str
    format: str
    format_words: str
    peak: str
    bytes_per_weight: float
    place: str
    parameters: float
    active: float
    held_bytes: float
    token_bytes: float
    """Read for a step of one token."""
    flops: float

    @property
    def title(self) -> str:
        return COMPONENTS[self.component]

    @property
    def routed(self) -> bool:
        return self.component == "routed_experts"

    def read_bytes(self, share: float) -> float:
        """What a step reads, where it reads this share of the routed experts."""
        return self.held_bytes * share if self.routed else self.token_bytes


def parts_of(
    model: Model, precision: Precision, layout: Layout, left_out: frozenset[str], load: Load = "fullest"
) -> tuple[tuple[Part, ...], tuple[str, ...]]:
    """All parts, in the table's order, and the entries of the checkpoint's lists that named nothing.

    A component that is left out stays in the table, with its parameters and without any bytes.
    """
    sums: dict[tuple[str, Format, str], list[float]] = defaultdict(lambda: [0.0] * 6)
    seen: set[str] = set()
    for matrix in model.matrices:
        place = place_of(matrix, model, layout)
        counted = 0 if matrix.component in left_out else place.share
        for made, copies in precision.formats(matrix, seen):
            row = sums[matrix.component, made, place.words]
            weights, stored = matrix.one * copies, made.stored_bytes(matrix.rows, matrix.columns) * copies
            used = matrix.used / matrix.copies
            row[0] += weights
            row[1] += weights * used
            row[2] += stored * counted
            row[3] += 0 if matrix.component in NEVER_READ else stored * counted * used
            row[4] += 2 * weights * used * counted
            row[5] += stored
    share, hit = routed_share(model.experts, layout, 1, load)
    uneven = share * model.experts.total / hit if model.experts else 1.0
    for (component, _, _), row in sums.items():
        row[3] *= uneven if component == "routed_experts" else 1
    order = list(COMPONENTS)
    parts = [
        Part(component, made.name, made.words, made.peak, row[5] / row[0], place, *row[:5])
        for (component, made, place), row in sums.items()
    ]
    parts.sort(key=lambda part: (order.index(part.component), -part.parameters))
    return tuple(parts), _unmatched(precision, seen)


def narrow(model: Model, precision: Precision, layout: Layout) -> list[str]:
    """Slices of MLPs that end within a group of weights with one scale: some engines refuse those."""
    found = {}
    for matrix in model.matrices:
        if not matrix.module.endswith("down_proj"):
            continue
        ways = layout.tp // layout.ep if matrix.split == "expert_width" else layout.tp
        for made, _ in precision.formats(matrix, set()):
            group, cut = made.group[1] if made.group else 0, matrix.columns // ways
            if group and cut % group:
                found[matrix.component] = (
                    f"{COMPONENTS[matrix.component]}: a rank's slice is {cut} wide, no multiple of the {group} weights "
                    f"that share a scale in {made.name}: some engines refuse that"
                )
    return list(found.values())


def _unmatched(precision: Precision, seen: set[str]) -> tuple[str, ...]:
    if precision.all is not None:
        return ()
    scheme = precision.scheme
    named = [scheme.ignored, *(rule.entries for rule in scheme.rules if rule.entries is not None)]
    return tuple(grouped(entry for entries in named for entry in dict.fromkeys(entries.entries) if entry not in seen))


def routed_share(experts: Experts | None, layout: Layout, tokens: float, load: Load) -> tuple[float, float]:
    """Which share of a rank's routed experts a step with so many tokens reads, and how many experts it hits in all.

    Sliced experts (ep 1) are read by every rank alike. Whole ones are not: the fullest rank reads more than its share.
    """
    if experts is None:
        return 0.0, 0.0
    hit = distinct_experts(experts, tokens)
    if layout.ep == 1 or load == "even":
        return hit / experts.total, hit
    return fullest_rank(experts.total, layout.ep, hit) / (experts.total / layout.ep), hit
