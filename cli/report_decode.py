"""The section "where the milliseconds go" of a host: one picture and a table out of the documents that are there."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from gpuhost_cli import waterfall_words
from gpuhost_cli.report_batches import BatchRow, batch_rows
from gpuhost_cli.waterfall import Waterfall, waterfall
from gpuhost_cli.waterfall_agree import are_others, contradiction, plain, remarks
from gpuhost_cli.waterfall_before import Baseline, baseline_of, sides
from gpuhost_cli.waterfall_read import CEILING, Decode, Paper, decodes_of, is_decode, paper_of
from gpuhost_cli.waterfall_rows import Live, Term
from gpuhost_cli.waterfall_serve import SERVE, Serve, serve_of

Documents = Mapping[str, Mapping[str, Any]]

ABSENT = {
    "ceiling": "no ceiling: gpuhost ceiling --config MODEL/config.json --json > ceiling.json",
    "decode": "no measured parts: gate.yml --tags decode leaves HOST/measurements-decode.json in its run",
    "serve": "no live figures: gpuhost serve-check URL --output FILE",
}
ADD = "gpuhost report RUN --with FILE"
VERSION = 1
"""Of all three schemas. In another one the same names may mean something else."""
SAME_SIDE = "both runs of serve-check were taken {side} this run: their difference is not the roll's"


@dataclass(frozen=True)
class Source:
    """A document that the section is made from."""

    what: str
    file: str
    taken_at: str
    about: str


@dataclass(frozen=True)
class DecodePart:
    """The section. ``refused``: why there is no picture although there are documents."""

    refused: str
    picture: Waterfall | None
    lines: tuple[tuple[str, str], ...]
    """Where the milliseconds go, what changed, what is unexplained: a word and a sentence each."""
    batches: tuple[BatchRow, ...]
    sources: tuple[Source, ...]
    absent: tuple[str, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Found:
    """The documents of a host that belong here, the oldest first."""

    papers: tuple[Paper, ...]
    decodes: tuple[Decode, ...]
    serves: tuple[Serve, ...]
    left_out: tuple[str, ...]
    """Sentences on those of another version."""

    @property
    def any(self) -> bool:
        return bool(self.papers or self.decodes or self.serves or self.left_out)


def found_in(documents: Documents) -> Found:
    """Documents by their schemas, whatever their files are called."""
    papers, decodes, serves, left_out = list[Paper](), list[Decode](), list[Serve](), list[str]()
    for name, document in documents.items():
        file, schema, version = f"{name}.json", document.get("schema"), document.get("schema_version")
        ours = schema in (CEILING, SERVE) or is_decode(document)
        if ours and version != VERSION:
            left_out.append(f"{file} is left out: version {version} of {schema}, this gpuhost reads {VERSION}")
        elif schema == CEILING:
            paper = paper_of(document, file)
            papers += [] if paper is None else [paper]
        elif schema == SERVE:
            serves.append(serve_of(document, file))
        elif ours:
            decodes += decodes_of(document, file)
    return Found(
        tuple(sorted(papers, key=lambda each: each.taken_at)),
        _once(decodes, lambda each: (each.taken_at, _order(each))),
        _once(serves, lambda each: (each.taken_at, each.url)),
        tuple(left_out),
    )


Dated = TypeVar("Dated", Decode, Serve)


def _once(found: Sequence[Dated], key: Callable[[Dated], object]) -> tuple[Dated, ...]:
    """The oldest first; a file that lies there under two names counts once."""
    return tuple(sorted({key(each): each for each in found}.values(), key=lambda each: each.taken_at))


def decode_part(host: str, documents: Documents, run: Mapping[str, Any]) -> DecodePart | None:
    """The section out of a host's documents; None where none of them belongs here."""
    found = found_in(documents)
    if not found.any:
        return None
    paper = found.papers[-1] if found.papers else None
    decodes, notes = _chosen(found.decodes, paper)
    serves = tuple(dict.fromkeys((found.serves[0].file, found.serves[-1].file))) if found.serves else ()
    shown = [each for each in found.serves if each.file in serves]
    sources = list(_sources(paper, decodes, shown))
    refused = contradiction(paper, decodes, shown, host)
    if refused:
        return DecodePart(refused, None, (), (), tuple(sources), (), ())
    notes += [*found.left_out, *_more(found, paper, shown)]
    before, after = sides(shown)
    baseline = baseline_of(decodes[0], documents["verdict"]) if len(decodes) == 1 and "verdict" in documents else None
    picture = _picture(paper, decodes, baseline, before, after)
    comparable = len(shown) < 2 or not any(note.startswith("no change") for note in remarks(None, None, shown))
    decode = decodes[-1] if decodes else None
    notes += [*remarks(paper, decode, shown), *(decode.notes if decode else ())]
    notes += [*_states(shown), *_side_of_run(documents, shown, run)]
    batches = batch_rows(paper.rates if paper else {}, before, after, comparable=comparable)
    return DecodePart(
        refused="",
        picture=picture,
        lines=tuple(waterfall_words.lines(picture, _change(batches, picture.batch))),
        batches=batches,
        sources=(*sources, *_from_baseline(baseline)),
        absent=tuple(_absent(paper, decodes, shown, picture.batch)),
        notes=tuple(dict.fromkeys(notes)),
    )


def _chosen(decodes: Sequence[Decode], paper: Paper | None) -> tuple[list[Decode], list[str]]:
    """The first and the last run of one order: the ceiling's, with one stream where there is such. What else is there
    is said."""

    def fits(decode: Decode) -> tuple[bool, bool, bool, str]:
        other_model = paper is not None and are_others(decode.model, paper.title)
        return paper is not None and decode.tp != paper.tp, other_model, decode.batch != 1, decode.target

    if not decodes:
        return [], []
    best = min(reversed(decodes), key=fits)
    same = [each for each in decodes if _order(each) == _order(best)]
    several = {_order(each) for each in decodes}
    # A run before with another order than that of now is a contradiction, unless it had this one too.
    files = {each.file for each in same}
    rest = [each for each in decodes if each.file not in files]
    ends = [same[0], same[-1]] if len(same) > 1 else [*rest[:1], *same]
    notes = [f"also measured: {text}" for text in sorted(_words(each) for each in several - {_order(best)})]
    if len(same) > 2:
        notes.append(f"{len(same)} decode measurements: the first and the last are shown")
    return ends, notes if not rest else []


def _order(decode: Decode) -> tuple[str, str, int, int, int]:
    return decode.target, plain(decode.model), decode.tp, decode.batch, decode.context


def _words(order: tuple[str, str, int, int, int]) -> str:
    target, model, tp, batch, context = order
    return f"{model} with TP {tp}, batch {batch}, context {context} in {target}"


def _picture(
    paper: Paper | None,
    decodes: Sequence[Decode],
    baseline: Baseline | None,
    before: Serve | None,
    after: Serve | None,
) -> Waterfall:
    decode = decodes[-1] if decodes else None
    levels = sorted(number for number, level in (after.levels if after else {}).items() if level.tpot_ms)
    alone = 1 if 1 in levels or not levels else levels[0]
    batch = decode.batch if decode and decode.batch else alone
    two = before is not None
    return waterfall(
        batch,
        _terms(paper, batch),
        decode.measured if decode else None,
        _live(after, batch, "after" if two else ""),
        measured_before=decodes[0].measured if len(decodes) > 1 else baseline.measured if baseline else None,
        live_before=_live(before, batch, "before"),
    )


def _terms(paper: Paper | None, batch: int) -> tuple[Term, ...]:
    if paper is None or batch == 1:
        return paper.terms if paper else ()
    rate = paper.rates.get(batch)
    return (Term(f"all of it, with {batch} streams", 1e3 * batch / rate, "gpuhost ceiling"),) if rate else ()


def _live(serve: Serve | None, batch: int, side: str) -> Live | None:
    level = serve.levels.get(batch) if serve is not None else None
    if serve is None or level is None or level.tpot_ms is None:
        return None
    return Live(", ".join(filter(None, (side, serve.label))), level.tpot_ms)


def _change(batches: Sequence[BatchRow], batch: int) -> BatchRow | None:
    return next((row for row in batches if row.concurrency == batch and row.side == "after"), None)


def _absent(paper: Paper | None, decodes: Sequence[Decode], serves: Sequence[Serve], batch: int) -> Iterator[str]:
    if paper is None:
        yield f"{ABSENT['ceiling']}, then {ADD}"
    if not decodes:
        yield f"{ABSENT['decode']}, then {ADD}"
    if not serves:
        yield f"{ABSENT['serve']}, then {ADD}"
    elif len(serves) == 1 and not serves[0].changes:
        yield "nothing to compare with: one run of serve-check is there. A second one, before or after, shows a change"
    measured = sorted(each.concurrency for each in serves[-1].levels.values() if each.tpot_ms) if serves else []
    if serves and batch not in measured:
        why = ", which the parts were measured for" if decodes else ""
        known = ", ".join(map(str, measured)) or "nothing"
        yield f"no live figure with {waterfall_words.streams(batch)}{why}: serve-check measured {known}"
    if paper is not None and batch != 1 and batch not in paper.rates:
        yield f"no ceiling with {batch} streams: gpuhost ceiling --concurrency {batch}"


def _from_baseline(baseline: Baseline | None) -> Iterator[Source]:
    if baseline is not None:
        about = f"this host's baseline: kernel {baseline.kernel}, driver {baseline.driver}"
        yield Source("parts before", "verdict.json", baseline.taken_at, about)


def _sources(paper: Paper | None, decodes: Sequence[Decode], serves: Sequence[Serve]) -> Iterator[Source]:
    if paper is not None:
        about = f"{paper.title} on {paper.machine}, TP {paper.tp}, context {paper.context}, mode {paper.mode}"
        yield Source("ceiling", paper.file, paper.taken_at, about)
    for decode in decodes:
        order = f"{decode.model}, TP {decode.tp}, batch {decode.batch}, context {decode.context}"
        about = f"{order if decode.tp else decode.model or 'not measured'}, in {decode.target}"
        yield Source("parts", decode.file, decode.taken_at, about)
    for serve in serves:
        said = f"{serve.label}: " if serve.label else ""
        yield Source("live", serve.file, serve.taken_at, f"{said}{serve.model} at {serve.url}")


def _more(found: Found, paper: Paper | None, serves: Sequence[Serve]) -> list[str]:
    notes = []
    if len(found.papers) > 1 and paper is not None:
        notes.append(f"{len(found.papers)} ceilings: that of {paper.taken_at} is shown")
    if len(found.serves) > len(serves):
        notes.append(f"{len(found.serves)} runs of serve-check: the first and the last are shown")
    return notes


def _states(serves: Sequence[Serve]) -> Iterator[str]:
    for serve in serves:
        if serve.state != "complete":
            yield f"{serve.file} is {serve.state}: {serve.sentence}"
        for level in serve.levels.values():
            if not level.complete:
                yield f"{serve.file}: concurrency {level.concurrency} was broken off"


def _side_of_run(documents: Documents, serves: Sequence[Serve], run: Mapping[str, Any]) -> Iterator[str]:
    """Two runs of serve-check that are both before or both after a roll."""
    start, end = run.get("started_at"), run.get("finished_at")
    if "roll" not in documents or len(serves) < 2 or not isinstance(start, str) or not isinstance(end, str):
        return
    if serves[-1].taken_at <= start:
        yield SAME_SIDE.format(side="before")
    elif serves[0].taken_at >= end:
        yield SAME_SIDE.format(side="after")
