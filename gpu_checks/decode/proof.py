"""Are a decode step's values right? A sample of each part's, computed again on the CPU in float64 from the same inputs.

What is compared is one token. Of a matrix product some hundred outputs, spread over all of them. BF16 keeps 8 bits: a
result differs from the exact one by some tenths of a percent of its size (root of squares); LIMIT is far above that,
and far below what a wrong weight or a missing sum makes. NaN is below no limit.
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


def _double(tensor: Any) -> Any:
    return tensor.detach().cpu().double()


def _some(rows: int) -> slice:
    return slice(0, rows, max(1, rows // OUTPUTS))


def _product(seen: Seen, found: Tensors) -> tuple[Any, Any]:
    part = seen.place.part
    weight = seen.place.own[part.reads[0]]
    some = _some(weight.shape[0])
    expected = _double(weight[some]) @ _double(seen.values[part.source][0])
    return found[part.target][0, some], expected


def _experts(seen: Seen, found: Tensors) -> tuple[Any, Any]:
    part = seen.place.part
    weight = seen.place.own[part.reads[0]][int(seen.values["hit"][0])]
    some = _some(weight.shape[0])
    expected = _double(weight[some]) @ _double(seen.values[part.source][0])
    return found[part.target][0, some], expected


def _norm(seen: Seen, found: Tensors) -> tuple[Any, Any]:
    # Of the sum as it is stored: that it is rounded before is no fault of the norm.
    x = _double(found["residual"][0])
    size = x.pow(2).mean().add(EPSILON).sqrt()
    return found["x"][0], x / size * _double(seen.place.own["norm"])


def _attention(seen: Seen, found: Tensors) -> tuple[Any, Any]:
    own, queries = seen.place.own, _double(seen.values["queries"][0])
    keys, values = _double(own["key_cache"][0]), _double(own["value_cache"][0])
    share = queries.shape[0] // keys.shape[0]
    queries = queries.view(keys.shape[0], share, -1)
    scores = queries @ keys.transpose(1, 2) / math.sqrt(queries.shape[-1])
    return found["attended"][0], (scores.softmax(-1) @ values).reshape(-1)


def _latent(model: Model) -> Callable[[Seen, Tensors], Any]:
    form = model.latent

    def check(seen: Seen, found: Tensors) -> tuple[Any, Any]:
        assert form is not None
        cache, values = _double(seen.place.own["latent_cache"][0]), seen.values
        if form.top:
            cache = cache[values["chosen"][0].cpu()]
        scale = 1 / math.sqrt(form.turned + form.plain)
        turned, absorbed = _double(values["turned"][0, :-1]), _double(values["absorbed"][:, 0])
        scores = (turned @ cache[:, : form.turned].t() + absorbed @ cache[:, form.turned :].t()) * scale
        return found["mixed"][0].reshape(-1), (scores.softmax(-1) @ cache[:, form.turned :]).reshape(-1)

    return check


def _top(model: Model) -> Callable[[Seen, Tensors], Any]:
    def check(seen: Seen, found: Tensors) -> tuple[Any, Any]:
        # Two scores can be equal in BF16, so the chosen scores are compared, not the experts' numbers.
        logits = _double(seen.values["router_logits"][0])
        scores = logits.sigmoid() if model.sigmoid else logits.softmax(-1)
        best = scores.topk(model.used).values
        chosen = scores[found["experts"][0].cpu()].sort(descending=True).values
        return chosen, best

    return check


def checks(model: Model) -> dict[str, Callable[[Seen, Tensors], Any]]:
    """By the parts' names; of matrix products see ``wrong``."""
    return {
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
    error = error_of(*check(first, first.run()))
    if error <= limit:  # this way round NaN is wrong
        return error, None
    return None, f"{part.name} differs from float64 on the CPU by {error:.3g} of its size, more than {limit:.3g}"


def not_finite(torch: Any, values: Tensors) -> str | None:
    """Which of a step's values is no number somewhere, in words."""
    for name, tensor in values.items():
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            return f"{name} is not a number somewhere"
    return None
