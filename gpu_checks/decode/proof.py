"""Are a decode step's values right? Each part's at its first place, computed again on the CPU from the same inputs.

In float64. Of matrix products, attention and routing one token is compared, of a product some hundred outputs of it,
spread over all. Not compared: embedding, indexer, sampling, which look something up, choose or draw. BF16 keeps 8 bits:
a result differs from the exact one by some tenths of a percent of its size (root of squares); LIMIT is far above that,
and far below what a wrong product or a missing sum makes. NaN is below no limit.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Callable

from gpu_checks.decode.attention import EPSILON, MM
from gpu_checks.decode.models import Model
from gpu_checks.decode.part import Seen, Tensors

LIMIT = 2.0**-6
LATENT_LIMIT = 2.0**-5
"""Of latent attention, whose scores are kept in BF16 before they are scaled: near 100 that is 0.5 apart, and moves a
share by one percent."""
OUTPUTS = 512


Pairs = list[tuple[Any, Any]]
"""What a part gave, and what it should have given, in float64."""

Check = Callable[[Seen, Tensors], Pairs]


def _double(tensor: Any) -> Any:
    return tensor.detach().cpu().double()


def _exact(tensor: Any) -> Any:
    return _double(tensor) if tensor.is_floating_point() else tensor.cpu()


def _some(rows: int) -> slice:
    return slice(0, rows, max(1, rows // OUTPUTS))


def _product(seen: Seen, found: Tensors) -> Pairs:
    part = seen.place.part
    weight = seen.place.own[part.reads[0]]
    some = _some(weight.shape[0])
    expected = _double(weight[some]) @ _double(seen.values[part.source][0])
    return [(found[part.target][0, some], expected)]


def _experts(seen: Seen, found: Tensors) -> Pairs:
    part = seen.place.part
    weight = seen.place.own[part.reads[0]][int(seen.values["hit"][0])]
    some = _some(weight.shape[0])
    expected = _double(weight[some]) @ _double(seen.values[part.source][0])
    return [(found[part.target][0, some], expected)]


def _norm(seen: Seen, found: Tensors) -> Pairs:
    # Of the sum as it is stored: that it is rounded before is no fault of the norm.
    x = _double(found["residual"][0])
    size = x.pow(2).mean().add(EPSILON).sqrt()
    return [(found["x"][0], x / size * _double(seen.place.own["norm"]))]


def _attention(seen: Seen, found: Tensors) -> Pairs:
    own, queries = seen.place.own, _double(seen.values["queries"][0])
    keys, values = _double(own["key_cache"][0]), _double(own["value_cache"][0])
    share = queries.shape[0] // keys.shape[0]
    queries = queries.view(keys.shape[0], share, -1)
    scores = queries @ keys.transpose(1, 2) / math.sqrt(queries.shape[-1])
    return [(found["attended"][0], (scores.softmax(-1) @ values).reshape(-1))]


def _latent(model: Model) -> Check:
    form = model.latent

    def check(seen: Seen, found: Tensors) -> Pairs:
        assert form is not None
        cache, values = _double(seen.place.own["latent_cache"][0]), seen.values
        if form.top:
            cache = cache[values["chosen"][0].cpu()]
        scale = 1 / math.sqrt(form.turned + form.plain)
        turned, absorbed = _double(values["turned"][0, :-1]), _double(values["absorbed"][:, 0])
        scores = (turned @ cache[:, : form.turned].t() + absorbed @ cache[:, form.turned :].t()) * scale
        return [(found["mixed"][0].reshape(-1), (scores.softmax(-1) @ cache[:, form.turned :]).reshape(-1))]

    return check


def _top(model: Model) -> Check:
    def check(seen: Seen, found: Tensors) -> Pairs:
        # Two scores can be equal in BF16, so the chosen scores are compared, not the experts' numbers.
        logits = _double(seen.values["router_logits"][0])
        scores = logits.sigmoid() if model.sigmoid else logits.softmax(-1)
        best = scores.topk(model.used).values
        chosen = scores[found["experts"][0].cpu()].sort(descending=True).values
        return [(chosen, best)]

    return check


def _permuted(seen: Seen, found: Tensors) -> Pairs:
    # Rows of one expert may come in any order: which row is where says "order", which has to hold each once.
    experts, x = seen.values["experts"].cpu(), _double(seen.values["x"])
    order, hit, ends = (found[name].cpu() for name in ("order", "hit", "ends"))
    right = (
        order.sort().values.equal(order.new_ones(len(order)).cumsum(0) - 1)
        and hit.equal(experts.view(-1)[order])
        and hit.equal(hit.sort().values)
        and ends.long().equal(hit.bincount(minlength=len(ends)).cumsum(0))
    )
    return [(found["rows"], x[order // experts.shape[1]] * (1 if right else math.nan))]


def _written(seen: Seen, _found: Tensors) -> Pairs:
    own, values = seen.place.own, seen.values
    if "latent_cache" in own:
        row, turned = own["latent_cache"][0, -1], values["turned"][0, -1]
        return [(row[: len(turned)], _double(turned)), (row[len(turned) :], _double(values["latent"][0]))]
    keys, new = own["key_cache"][0, :, -1], own["value_cache"][0, :, -1]
    return [(keys, _double(values["keys"][0])), (new, _double(values["qkv"][0, -new.numel() :]).view(new.shape))]


SMALL = ("qk_norm", "latent_norm", "rope", "absorb_k", "absorb_v", "mlp_act", "expert_act", "shared_act", "combine")
"""Parts that are so small that the CPU computes all of them again."""


def _again(seen: Seen, found: Tensors) -> Pairs:
    part = seen.place.part
    own, values = ({name: _exact(tensor) for name, tensor in those.items()}
                   for those in ({name: seen.place.own[name] for name in part.reads}, seen.values))  # fmt: skip
    return [(found[name], expected) for name, expected in part.run(own, values).items()]


def checks(model: Model) -> dict[str, Check]:
    """By the parts' names; of matrix products see ``wrong``."""
    return {
        **dict.fromkeys(SMALL, _again),
        "kv_write": _written,
        "permute": _permuted,
        "rms_norm": _norm,
        "attention": _latent(model) if model.latent else _attention,
        "top_k": _top(model),
        "experts_up": _experts,
        "experts_down": _experts,
    }


def error_of(got: Any, expected: Any) -> float:
    """The relative error of all elements together."""
    difference = (_double(got) - expected).pow(2).sum().sqrt()
    return float(difference / expected.pow(2).sum().sqrt())


def wrong(model: Model, seen: Sequence[Seen]) -> tuple[float | None, str | None]:
    """The relative error of a part at its first place, and what is wrong, in words; both None where nobody knows."""
    first = seen[0]
    part = first.place.part
    check = _product if part.how == MM else checks(model).get(part.name)
    if check is None:
        return None, None
    limit = LATENT_LIMIT if model.latent and part.name == "attention" else LIMIT
    errors = [error_of(*each) for each in check(first, first.run())]
    bad = next((error for error in errors if not error <= limit), None)  # this way round NaN is wrong
    if bad is None:
        return max(errors), None
    return None, f"{part.name} differs from float64 on the CPU by {bad:.3g} of its size, more than {limit:.3g}"


def not_finite(torch: Any, values: Tensors) -> str | None:
    """Which of a step's values is no number somewhere, in words."""
    for name, tensor in values.items():
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            return f"{name} is not a number somewhere"
    return None
