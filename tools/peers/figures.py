"""What is compared, how near ours must be to the peer's, and the table of it. Pure; no I/O.

A reading is one number of one run: ``(figure, place) -> value``. Both sides' parsers use the same names of figures and
places, so that what belongs together finds itself. A place is a GPU (``0``) or a direction of data (``0-1``: from GPU 0
to GPU 1). Units are part of a figure's name.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

Reading = tuple[str, str]
"""A figure and a place."""

Readings = Mapping[Reading, float]
"""What one run gave."""

SMALL_BYTES = 64 << 10
"""Up to here a collective is judged by its time, as one token's hidden state is sent."""

LARGEST_BYTES = 512 << 20
"""Where its bandwidth is judged."""

OUR_SIZES = (
    8, 64, 512, 4 << 10, 12 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20, 256 << 20,
    LARGEST_BYTES,
)  # fmt: skip
"""The sizes of the check allreduce. all_reduce_perf goes through more of them, which are shown."""


@dataclass(frozen=True)
class Wanted:
    """Bounds of ours / peer, or of ours alone. ``within``: a difference in the figure's unit that will do as well."""

    low: float | None = None
    high: float | None = None
    within: float | None = None
    alone: bool = False

    def met(self, value: float, difference: float | None = None) -> bool:
        """Whether a ratio (or our figure alone) lies within the bounds.

        >>> Wanted(0.9, 1.1, within=0.2).met(1.3, 0.15), Wanted(0.98).met(0.97)
        (True, False)
        """
        if self.within is not None and difference is not None and abs(difference) <= self.within:
            return True
        return (self.low is None or value >= self.low) and (self.high is None or value <= self.high)

    def __str__(self) -> str:
        """For the table."""
        if self.low is None and self.high is None:
            return "-"
        if self.low is None:
            text = f"at most {self.high:g}"
        elif self.high is None:
            text = f"at least {self.low:g}"
        else:
            text = f"{self.low:g} to {self.high:g}"
        return text if self.within is None else f"{text}, or within {self.within:g}"


SHOWN = Wanted()
"""For figures that nothing is asked of."""

COPY_ENGINE, BY_SM = Wanted(0.98, 1.02), Wanted(0.97)
BOUNDS: dict[str, Wanted] = {
    "local copy, one way (GB/s)": Wanted(0.98),
    "local copy, share of the NVML peak": Wanted(0.88, alone=True),
    # Our copies go out from the source's engine: nvbandwidth's reads, by the target's, are shown.
    "CE write (GB/s)": COPY_ENGINE,
    "CE write, both ways at once (GB/s)": COPY_ENGINE,
    "SM write (GB/s)": BY_SM,
    "SM read (GB/s)": BY_SM,
    "latency of one read (us)": Wanted(0.9, 1.1, within=0.2),
    "seconds for the same set": Wanted(None, 0.5),
    "all checks (s)": Wanted(None, 60, alone=True),
    "quick set (s)": Wanted(None, 10, alone=True),
}
"""What the project asks for, by figure; those of allreduce and GEMV are made from their sizes, see ``wanted``."""


def collective(mode: str, size: int) -> str:
    """The name of an allreduce's time."""
    return f"allreduce, {mode}, {size} B (us)"


def collective_rate(mode: str, size: int) -> str:
    """The name of an allreduce's bus bandwidth."""
    return f"allreduce, {mode}, {size} B (busbw GB/s)"


CLEAN = ", L2 left clean"


def gemv(m: int, n: int, k: int, clean: bool = False) -> str:
    """The name of a product's rate: bytes of all three matrices over time. ``clean``: beside the peer's clean flush."""
    return f"BF16 product m{m} n{n} k{k}{CLEAN * clean} (GB/s)"


def gemv_share(m: int, n: int, k: int) -> str:
    """The name of that rate's share of what the memory can do."""
    return f"BF16 product m{m} n{n} k{k}, share of the NVML peak"


WEIGHTS_BYTES = 300e6
"""GEMV is judged from this many bytes of weights on; smaller ones are shown."""


def _of_product(figure: str) -> Wanted:
    words = {word[0]: int(word[1:].rstrip(",")) for word in figure.split() if word[1:].rstrip(",").isdigit()}
    if words.get("m") != 1 or 2 * words["n"] * words["k"] < WEIGHTS_BYTES:
        return SHOWN
    if figure.endswith("peak"):
        return Wanted(0.82, alone=True)
    # do_bench's own flush leaves its zeros to be written back within the time that it takes: shown, not judged.
    return Wanted(0.97, 1.03) if CLEAN in figure else SHOWN


def wanted(figure: str) -> Wanted:
    """What is asked of a figure.

    >>> str(wanted(collective("graph", 12288))), str(wanted(collective_rate("graph", 512 << 20)))
    ('at most 1.05', 'at least 0.98')
    >>> str(wanted(gemv(1, 6144, 24576, clean=True))), str(wanted(gemv(1, 6144, 24576)))
    ('0.97 to 1.03', '-')
    """
    if figure.startswith("BF16 product"):
        return _of_product(figure)
    if figure.startswith("allreduce"):
        _, mode, rest = figure.split(", ")
        size, unit = int(rest.split()[0]), rest.split(maxsplit=2)[2]
        if size not in OUR_SIZES:
            return SHOWN
        if unit != "(us)":
            return Wanted(0.98) if size == LARGEST_BYTES else SHOWN
        if mode == "graph":
            return Wanted(None, 1.05) if size <= SMALL_BYTES else SHOWN
        return Wanted(None, 1.10)
    return BOUNDS.get(figure, SHOWN)


@dataclass(frozen=True)
class Row:
    """A figure of ours beside a peer's: medians over rounds, then over places. ``ok``: None where nothing is asked.

    ``ratios``: of each place; every one of them has to be within the bounds.
    """

    figure: str
    peer_name: str
    ours: float | None
    peer: float | None
    ratios: dict[str, float]
    wanted: str
    ok: bool | None

    @property
    def ratio(self) -> float | None:
        """Ours over the peer's."""
        return None if self.ours is None or not self.peer else self.ours / self.peer


def over_rounds(rounds: Sequence[Readings]) -> dict[Reading, float]:
    """The median of each reading over the rounds that have it.

    >>> over_rounds([{("a", "0"): 1.0}, {("a", "0"): 4.0}, {("a", "0"): 2.0, ("b", "0"): 7.0}])
    {('a', '0'): 2.0, ('b', '0'): 7.0}
    """
    found: dict[Reading, list[float]] = {}
    for readings in rounds:
        for reading, value in readings.items():
            found.setdefault(reading, []).append(value)
    return {reading: statistics.median(values) for reading, values in found.items()}


def _middle(values: Mapping[str, float]) -> float | None:
    return statistics.median(values.values()) if values else None


def row(figure: str, ours: Mapping[str, float], peer: Mapping[str, float], peer_name: str, judged: bool = True) -> Row:
    """Compare a figure, given by place. A figure that one side lacks is not ok where something is asked of it."""
    bounds = wanted(figure) if judged else SHOWN
    asked = bounds != SHOWN
    ratios = {place: ours[place] / peer[place] for place in ours if peer.get(place)}
    if bounds.alone:
        ok = bool(ours) and all(bounds.met(value) for value in ours.values())
        return Row(figure, "", _middle(ours), None, {}, str(bounds), ok)
    complete = bool(ratios) and set(ours) == set(peer)
    near = all(bounds.met(ratio, ours[place] - peer[place]) for place, ratio in ratios.items())
    return Row(
        figure, peer_name, _middle(ours), _middle(peer), ratios, str(bounds), (complete and near) if asked else None
    )


def by_place(medians: Mapping[Reading, float], figure: str) -> dict[str, float]:
    """A figure's values by place."""
    return {place: value for (name, place), value in medians.items() if name == figure}


def rows(ours: Sequence[Readings], peers: Mapping[str, Sequence[Readings]], judged_by: Sequence[str]) -> list[Row]:
    """Every figure that a peer has, then ours that none has. ``judged_by``: the peers that bounds are meant for."""
    mine = over_rounds(ours)
    made = []
    for peer_name, rounds in peers.items():
        theirs = over_rounds(rounds)
        for figure in dict.fromkeys(name for name, _ in theirs):
            pair = by_place(mine, figure), by_place(theirs, figure)
            made.append(row(figure, *pair, peer_name, judged=peer_name in judged_by))
    # What stands alone, and what is asked for and no peer gave: that is not ok.
    shown = {one.figure for one in made}
    rest = [figure for figure in dict.fromkeys(name for name, _ in mine) if figure not in shown]
    return [*made, *(row(figure, by_place(mine, figure), {}, "") for figure in rest if wanted(figure) != SHOWN)]


def number(value: float | None) -> str:
    """A figure with four digits that count.

    >>> number(393.3126), number(0.8312), number(None), number(4188.2)
    ('393.3', '0.8312', '-', '4188')
    """
    if value is None:
        return "-"
    text = f"{value:.4g}"
    return f"{value:.0f}" if "e" in text else text


def _ratio(one: Row) -> str:
    if one.ratio is None:
        return "-"
    text = f"{one.ratio:.3f}"
    return f"{text} ({min(one.ratios.values()):.3f} to {max(one.ratios.values()):.3f})" if len(one.ratios) > 1 else text


def markdown(made: Sequence[Row]) -> str:
    """The table for people. A ratio of several places has its range behind it."""
    head = "| figure | ours | peer | ratio | wanted | ok |\n| --- | --- | --- | --- | --- | --- |\n"
    words = {True: "yes", False: "**no**", None: "-"}
    lines = []
    for one in made:
        peer = f"{number(one.peer)} ({one.peer_name})" if one.peer_name else "-"
        cells = (one.figure, number(one.ours), peer, _ratio(one), one.wanted, words[one.ok])
        lines.append(f"| {' | '.join(cells)} |\n")
    return head + "".join(lines)
