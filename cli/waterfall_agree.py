"""Whether documents are about the same thing: figures of two models, TP sizes or hosts make no picture. Pure."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Sequence

from gpuhost_cli.ceiling_config import presets
from gpuhost_cli.waterfall_read import Decode, Paper
from gpuhost_cli.waterfall_serve import Serve

MUST_AGREE = ("api", "max_tokens", "prompt_words", "prompts", "temperature")
"""What serve-check was asked for: runs that differ in any of it say nothing about each other."""
FAR, SHORT = 2.0, 1000
"""A context that is this many times another reads so much more or less of the cache that it has to be said; but not of
so few tokens."""


def plain(name: str) -> str:
    """A model's name without what people write differently.

    >>> plain("GLM-4.5-Air"), plain("zai-org/GLM-4.5-Air-FP8"), plain("glm-4_5-air")
    ('glm45air', 'glm45airfp8', 'glm45air')
    """
    return re.sub(r"[^a-z0-9]", "", name.rpartition("/")[2].lower())


def names_it(title: str, name: str) -> bool:
    """Whether a name has a model's title in it, and no other version of it.

    >>> [names_it("DeepSeek-V3", each) for each in ("org/DeepSeek-V3-0324", "deepseek_v3", "DeepSeek-V3.2")]
    [True, True, False]
    """
    words = "[^a-z0-9]*".join(re.findall("[a-z]+|[0-9]+", title.lower()))
    found = re.search(rf"(?<![a-z0-9]){words}(?![a-z0-9]|[._]\d)", name.rpartition("/")[2].lower())
    return bool(words) and found is not None


@functools.cache
def known_titles() -> tuple[str, ...]:
    """Models that are known by name."""
    return tuple(preset["title"] for preset in presets().values())


def known_model(name: str) -> str:
    """The known model that a server's name for it stands for; empty for a name that tells nothing.

    >>> known_model("zai-org/GLM-4.5-Air-FP8"), known_model("my-model")
    ('GLM-4.5-Air', '')
    """
    return max((title for title in known_titles() if names_it(title, name)), key=len, default="")


def are_others(one: str, other: str) -> bool:
    """Whether two names stand for two known models."""
    first, second = known_model(one), known_model(other)
    return bool(first and second) and first != second


def are_alike(title: str, name: str) -> bool:
    """Whether a server's name for its model needs no word beside this title."""
    return names_it(title, name) or known_model(title) == known_model(name) != ""


def contradiction(paper: Paper | None, decodes: Sequence[Decode], serves: Sequence[Serve], host: str) -> str:
    """Why they can't be in one picture, as a sentence with the way out; empty where they can."""
    return next(_contradictions(paper, decodes, serves, host), "")


def _contradictions(
    paper: Paper | None, decodes: Sequence[Decode], serves: Sequence[Serve], host: str
) -> Iterator[str]:
    ordered = [decode for decode in decodes if decode.tp]  # a check that could not begin has no order
    for decode in decodes:
        if decode.host and decode.host != host:
            yield f"{decode.file} was measured on {decode.host}, this is {host}: give it to that host's report"
    if paper is not None:
        if paper.host and paper.host != host:
            step = "gpuhost ceiling --measured with this host's measurements.json"
            yield f"{paper.file} was made from measurements of {paper.host}, this is {host}: {step}"
        yield from filter(None, (_other_step(paper, decode) for decode in ordered))
        yield from filter(None, (_other_server(paper.title, paper.file, serve) for serve in serves))
    yield from _unlike(ordered)
    for decode in ordered if paper is None else ():
        yield from filter(None, (_other_server(decode.model, decode.file, serve) for serve in serves))
    for serve in serves[1:]:
        first = serves[0]
        for what, one, other in (("model", first.model, serve.model), ("server", first.host, serve.host)):
            if one != other:
                yield f"{first.file} is of the {what} {one}, {serve.file} of {other}: leave one of them out"


def _other_step(paper: Paper, decode: Decode) -> str:
    """Why a decode step is not that of the ceiling."""
    if decode.tp != paper.tp:
        step = f"gpuhost ceiling --tp {decode.tp}, or measure with tp: {paper.tp}"
        return f"{decode.file} was measured for TP {decode.tp}, {paper.file} is for TP {paper.tp}: {step}"
    layers = decode.layers is not None and decode.layers != paper.layers
    if are_others(decode.model, paper.title) or (layers and plain(decode.model) != plain(paper.title)):
        return (
            f"{decode.file} measured a step of {decode.model}, {paper.file} is the ceiling of {paper.title}: "
            "take the ceiling of the model that was measured"
        )
    return ""


def _other_server(title: str, file: str, serve: Serve) -> str:
    """Why a server's model is not the one of this title."""
    if are_others(serve.model, title):
        return f"{serve.file}: the server has {serve.model}, {file} is about {title}: take figures of one model"
    return ""


def _unlike(decodes: Sequence[Decode]) -> Iterator[str]:
    for decode in decodes[1:]:
        first = decodes[0]
        for what, one, other in (
            ("model", plain(first.model), plain(decode.model)), ("TP", first.tp, decode.tp),
            ("batch", first.batch, decode.batch), ("context", first.context, decode.context),
        ):  # fmt: skip
            if one != other:
                yield f"{first.file} measured {what} {one}, {decode.file} {what} {other}: leave one of them out"


def remarks(paper: Paper | None, decode: Decode | None, serves: Sequence[Serve]) -> Iterator[str]:
    """What is not the same, and does not forbid a picture: said beside it."""
    if paper is not None and not paper.measured:
        yield f"the ceiling has the numbers of a sheet ({paper.machine}), not this host's: gpuhost ceiling --measured"
    if paper is not None and decode is not None and decode.tp:
        yield from _steps(paper, decode)
    title = paper.title if paper is not None else decode.model if decode is not None else ""
    for name in dict.fromkeys(serve.model for serve in serves):
        if title and name and not are_alike(title, name):
            yield f"the server calls its model {name}: taken to be {title}"
    for serve in serves[-1:]:
        tokens = round(serve.prompt_tokens or 0)
        if decode is not None and _far(tokens, decode.context):
            yield f"the server's prompts had about {tokens} tokens, the parts a context of {decode.context}"
        elif decode is None and paper is not None and _far(tokens, paper.context):
            step = f"gpuhost ceiling --context {tokens}"
            yield f"the server's prompts had about {tokens} tokens, the ceiling a context of {paper.context}: {step}"
    if len(serves) > 1:
        first, last = serves[0], serves[-1]
        for name in MUST_AGREE:
            then, now = first.parameters.get(name), last.parameters.get(name)
            if then != now:
                yield f"no change is given: {name} was {then} before and is {now} after"


def _far(tokens: int, context: int) -> bool:
    """Whether prompts are of another size than a context; what is short beside any weights is not."""
    return bool(tokens) and max(tokens, context) > max(FAR * min(tokens, context), SHORT)


def _steps(paper: Paper, decode: Decode) -> Iterator[str]:
    if paper.narrow:
        bf16 = f"{paper.bf16_ms:.2f} ms instead of {paper.weights_ms:.2f}"
        yield (
            f"the parts were measured with BF16 weights; the ceiling has {', '.join(paper.narrow)} too: all of them in "
            f"BF16 take {bf16} on paper"
        )
    if plain(decode.model) != plain(paper.title):
        yield f"the ceiling calls the model {paper.title}, the measurements {decode.model}: taken to be the same"
    if paper.context != decode.context:
        step = f"gpuhost ceiling --context {decode.context}"
        yield f"the ceiling is for a context of {paper.context} tokens, the parts had {decode.context}: {step}"
    if paper.pp > 1 or paper.ep > 1:
        yield f"the ceiling is for pp {paper.pp} and ep {paper.ep}, the parts know tensor parallelism alone"
