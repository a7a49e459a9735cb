"""What is taken for granted, and how the figures are to be read: each sentence from the case itself. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from gpuhost_cli.ceiling_model import COMPONENTS
from gpuhost_cli.ceiling_sum import PER_LAYER, Case, Efficiency, Step, Term, overlapped, terms, total

REFERENCE_US = 42.3
"""One all-reduce of 12 KiB over the reference machine's 8 GPUs, as measured there: 6.6 ms for 156."""


@dataclass(frozen=True)
class Assumption:
    """Something that the sum takes for granted, and the option that sets it (empty: nothing does)."""

    text: str
    option: str = ""


def assumptions(case: Case, mode_says: str, weights: str, left_out: frozenset[str]) -> Iterator[Assumption]:
    """All of them, but for the machine's numbers, which stand in a table of their own."""
    model, machine, layout = case.model, case.hardware, case.layout
    yield Assumption(mode_says, "--mode")
    yield Assumption(f"precisions: {weights}", "--weights, --precision")
    if layout.tp > 1:
        copied = list(dict.fromkeys(part.title for part in case.parts if part.place == "replicated"))
        text = f"on every rank in full: {', '.join(copied) or 'nothing'}; all else is cut by tp"
        yield Assumption(text, "--replicate, --shard")
    if left_out:
        names = ", ".join(COMPONENTS[name] for name in COMPONENTS if name in left_out)
        yield Assumption(f"in the table, but not counted as read: {names}", "--leave-out")
    yield from _exchange(case)
    if model.experts is not None:
        yield Assumption("each token chooses its experts evenly, and by itself; real traffic hits fewer different ones")
    if layout.ep > 1:
        kind = "the fullest rank on average" if case.expert_load == "fullest" else "the average rank"
        yield Assumption(f"ep: the step waits for {kind}; the ranks' results are joined by all-reduce", "--expert-load")
    if layout.pp > 1:
        yield Assumption("pp: a token passes the stages one after another: times and bytes are of all stages", "--pp")
    yield from _cache(case)
    yield Assumption(
        f"not counted: norms ({model.vectors / 1e6:.2f} M weights) and biases, the one row of the embedding, "
        "attention's own arithmetic, routing, sampling, kernel launches and the gaps between kernels: it is a ceiling"
    )
    mtp = f": its {model.mtp_parameters / 1e9:.1f} B weights for that are left out" if model.mtp_layers else ""
    yield Assumption(f"one token a step and stream, no speculation{mtp}")
    if machine.curve:
        yield Assumption("all-reduces take what was measured at their size, transfer included")
    elif case.allreduces:
        added = (
            "added to the latency" if machine.transfer == "added" else "in the latency; that of more tokens is added"
        )
        yield Assumption(f"the transfer of one token is {added}: {machine.transfer_why}", "--transfer")


def _exchange(case: Case) -> Iterator[Assumption]:
    if not case.allreduces:
        return
    extra = f" + {case.extra_allreduces}" if case.extra_allreduces else ""
    yield Assumption(
        f"{case.allreduces} all-reduces a step: {PER_LAYER} x {case.model.layers} layers{extra}, dense layers too; "
        "those of embedding and logits are not counted",
        "--extra-allreduces",
    )


def _cache(case: Case) -> Iterator[Assumption]:
    cache, options = case.model.cache, "--context, --kv-cache-dtype"
    text = f"{case.context} tokens in each stream's cache, of {case.kv_format.upper()}"
    if cache.index_layers:
        text += f"; a key of the indexer takes {case.index_bytes:g} B; attention reads {cache.top} tokens at most"
        options += ", --index-key-bytes"
    yield Assumption(text, options)
    if case.cast_bytes:
        text = f"an FP8 pool of {case.pool_tokens} tokens is cast to BF16 in every step, whatever the context is"
        yield Assumption(text, "--kv-pool-cast-tokens")


def readings(case: Case, steps: tuple[Step, ...], measured: Efficiency | None) -> Iterator[str]:
    """How not to misread it."""
    found = terms(case)
    everything, busiest = total(found), overlapped(found)
    yield (
        f"{1 / everything:.1f} tok/s is a sum, one term after the other. Full overlap, which no engine has, would give "
        f"{1 / busiest:.1f} tok/s."
    )
    yield from _on_terms(case, {term.key: term for term in found}, everything)
    stages = case.layout.pp
    yield (
        f"A GPU holds {case.held_bytes / 1e9:.1f} GB of weights and reads {case.token_bytes / stages / 1e9:.3f} GB for "
        "a token. Both are one GPU's: nothing is divided or multiplied by the number of GPUs again."
    )
    if stages > 1:
        yield (
            f"A token is read for by one GPU of each of the {stages} stages, one after the other: "
            f"{case.token_bytes / 1e9:.3f} GB in all, which is what the tables have."
        )
    rate = case.hardware.bytes_s
    bf16, where = 2 * case.model.active / case.layout.tp, "on a GPU" if stages == 1 else "over all stages"
    yield (
        f"If all active weights were BF16 and cut by tp, it would be {bf16 / 1e9:.2f} GB {where}, "
        f"{bf16 / rate * 1e3:.2f} ms. A check of BF16 GEMMs that is faster has read weights from a cache (L2)."
    )
    yield (
        f"A product of one row is bound by its bytes: {rate / 1e12:.2f} TFLOP/s in BF16 at most. Small ones take as "
        "long as their launch, whatever their size, so products of different size can't all show the same low rate."
    )
    if case.model.experts is not None:
        yield _on_experts(case, steps, measured)
    if measured is not None and measured.concurrency > 1:
        each = measured.measured_tok_s / measured.concurrency
        yield (
            f"{measured.measured_tok_s:g} tok/s at concurrency {measured.concurrency} are {each:.2f} tok/s for each "
            "stream: more streams give more tokens/s on any machine. Compare at the same concurrency only."
        )


def _on_terms(case: Case, found: dict[str, Term], everything: float) -> Iterator[str]:
    weights, machine = found["weights"].seconds, case.hardware
    multiply = f"Multiplying alone would take {found['arithmetic'].seconds * 1e6:.1f} us."
    if "allreduce" not in found:
        yield multiply
        return
    latency = found["allreduce"].seconds
    yield (
        f"The all-reduces' latency is {latency / weights:.0%} of the weights' time and {latency / everything:.0%} of "
        f"the sum. {multiply}"
    )
    if machine.allreduce_us.source == "assumed":
        yield (
            f"{machine.allreduce_us.value:g} us for an all-reduce is not measured. The reference machine has "
            f"{REFERENCE_US} us (no NVLink), with which it would be {at_latency(case, REFERENCE_US):.1f} tok/s. "
            "--measured takes this machine's own."
        )


def _on_experts(case: Case, steps: tuple[Step, ...], measured: Efficiency | None) -> str:
    """On the batch that was measured, or else the one where it matters most."""
    wanted = measured.concurrency if measured is not None and measured.concurrency > 1 else None
    worst = max(steps, key=lambda each: each.held_tok_s / each.tok_s)
    shown = next((each for each in steps if each.batch == wanted), worst)
    total_experts = case.model.experts.total if case.model.experts else 0
    return (
        f"* weights of 1: with {shown.batch} streams a step hits {shown.experts_hit:.1f} of {total_experts} experts a "
        f"layer and reads {shown.weight_bytes / 1e9:.1f} GB. With those of one token it would be "
        f"{shown.held_tok_s:,.1f} tok/s, {shown.held_tok_s / shown.tok_s:.1f} times too much."
    )


def at_latency(case: Case, microseconds: float) -> float:
    """Tokens/s of one stream with another latency of an all-reduce."""
    found = terms(case)
    latency = sum(term.seconds for term in found if term.key == "allreduce")
    return 1 / (total(found) - latency + case.allreduces * microseconds / 1e6)
