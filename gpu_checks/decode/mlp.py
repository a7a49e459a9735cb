"""The parts of a decode step behind attention: routing, experts, dense layers. Calls of torch, which is handed in."""

from __future__ import annotations

from typing import Any

from gpu_checks.decode.attention import linear
from gpu_checks.decode.models import Model
from gpu_checks.decode.part import Part, Tensors, Values, stored_bytes

GROUPED = "torch._grouped_mm"
GATHERED = "torch.bmm of copies of the experts' weights, one for each row (each is read, written and read again)"
ACTIVATION = "torch.nn.functional.silu, mul_"


def gated(torch: Any, name: str, source: str, target: str) -> Part:
    """silu(gate) x up, of rows that have both, gate first."""
    silu = torch.nn.functional.silu

    def run(own: Tensors, values: Values) -> Tensors:
        both = values[source]
        width = both.shape[-1] // 2
        return {target: silu(both[..., :width]).mul_(both[..., width:])}

    return Part(name, ACTIVATION, (), run)


def dense(torch: Any) -> list[Part]:
    """A layer without experts."""
    return [
        linear(torch, "mlp_up", "mlp_up", "x", "mlp_both"),
        gated(torch, "mlp_act", "mlp_both", "mlp_inner"),
        linear(torch, "mlp_down", "mlp_down", "mlp_inner", "delta"),
    ]


def sparse(torch: Any, model: Model, grouped: bool) -> list[Part]:
    """A layer with experts. ``grouped``: torch has a kernel for all of them at once on this GPU."""
    used = model.used

    def top(own: Tensors, values: Values) -> Tensors:
        logits = values["router_logits"]
        if model.sigmoid:
            scores = torch.sigmoid(logits.to(torch.float32))
        else:
            scores = torch.softmax(logits, -1, dtype=torch.float32)
        weights, experts = torch.topk(scores, used, sorted=False)
        if model.normalised:
            weights = weights / weights.sum(-1, keepdim=True)
        return {"weights": weights.to(logits.dtype), "experts": experts}

    def permute(own: Tensors, values: Values) -> Tensors:
        ordered, order = torch.sort(values["experts"].view(-1))
        ends = torch.searchsorted(ordered, own["numbers"], right=True, out_int32=True)
        rows = torch.index_select(values["x"], 0, torch.div(order, used, rounding_mode="floor"))
        return {"hit": ordered, "order": order, "ends": ends, "rows": rows}

    def combine(own: Tensors, values: Values) -> Tensors:
        found = values["expert_rows"]
        back = torch.empty_like(found).index_copy_(0, values["order"], found)
        weights = values["weights"]
        mixed = torch.bmm(weights.unsqueeze(1), back.view(-1, used, back.shape[-1])).squeeze(1)
        return {"delta": torch.add(mixed, values["shared"]) if model.shared_width else mixed}

    shared = [
        linear(torch, "shared_up", "shared_up", "x", "shared_both"),
        gated(torch, "shared_act", "shared_both", "shared_inner"),
        linear(torch, "shared_down", "shared_down", "shared_inner", "shared"),
    ]
    score = "sigmoid" if model.sigmoid else "softmax"
    return [
        linear(torch, "router", "router", "x", "router_logits"),
        Part("top_k", f"torch.{score}, torch.topk", (), top),
        Part("permute", "torch.sort, searchsorted, index_select", (), permute),
        experts(torch, "experts_up", "expert_up", "rows", "expert_both", grouped),
        gated(torch, "expert_act", "expert_both", "expert_inner"),
        experts(torch, "experts_down", "expert_down", "expert_inner", "expert_rows", grouped),
        *(shared if model.shared_width else []),
        Part("combine", "index_copy_, torch.bmm" + (", add" if model.shared_width else ""), (), combine),
    ]


def experts(torch: Any, name: str, weight: str, source: str, target: str, grouped: bool) -> Part:
    """Rows that are sorted by expert, each times its own expert's weights (experts x output x input)."""

    def run(own: Tensors, values: Values) -> Tensors:
        return {target: torch._grouped_mm(values[source], own[weight].transpose(1, 2), offs=values["ends"])}

    def gathered(own: Tensors, values: Values) -> Tensors:
        chosen = torch.index_select(own[weight], 0, values["hit"])
        return {target: torch.bmm(chosen, values[source].unsqueeze(-1)).squeeze(-1)}

    how, work = (GROUPED, run) if grouped else (GATHERED, gathered)
    return Part(name, how, (weight,), work, hit_bytes, source, target)


def hit_bytes(part: Part, own: Tensors, values: Values) -> int:
    """Bytes of the experts that at least one row goes to. Reads from the GPU: not for a graph."""
    whole = own[part.reads[0]]
    return int(values["hit"].unique().numel()) * stored_bytes(whole) // int(whole.shape[0])


def has_grouped(torch: Any, device: str, capability: tuple[int, int]) -> bool:
    """Whether torch multiplies all experts in one kernel here: on SM90, and on SM100 since 2.9, so that it is tried.

    On other GPUs it asks how many rows each expert has, which can't be recorded in a graph, or refuses. Its code for
    CPUs does for tests.
    """
    if not hasattr(torch, "_grouped_mm") or (device != "cpu" and capability[0] not in (9, 10)):
        return False
    rows, weights = (torch.zeros(shape, dtype=torch.bfloat16, device=device) for shape in ((8, 64), (2, 64, 64)))
    ends = torch.tensor([4, 8], dtype=torch.int32, device=device)
    try:
        torch._grouped_mm(rows, weights.transpose(1, 2), offs=ends)
    except (RuntimeError, TypeError):
        return False
    return True
