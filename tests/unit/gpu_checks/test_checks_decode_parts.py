"""What the check ``decode`` is made of: timing of parts, and their values; arithmetic by hand."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from decode_fake import GQA, SPARSE, CpuClock, a_run, torch

from gpu_checks.decode.attention import angles, turn
from gpu_checks.decode.graph import Timed, copies_of, host_us, in_graph, repeats_for, time_part
from gpu_checks.decode.mlp import GATHERED, GROUPED, experts, has_grouped
from gpu_checks.decode.models import for_rank, model_of
from gpu_checks.decode.part import Part, Place, Seen
from gpu_checks.decode.proof import error_of, wrong
from gpu_checks.decode.stack import Maker, build, fitting
from gpu_checks.decode.step import attention_of
from gpu_checks.measurement import Samples

MIB = 1 << 20


def attend(queries, keys, values):
    return torch.nn.functional.scaled_dot_product_attention(queries, keys, values, enable_gqa=True)


def a_stack(config=GQA, batch=2, grouped=True):
    model = for_rank(model_of(config, "x"), 1)
    generator = torch.Generator()
    generator.manual_seed(0)
    order = fitting(model, batch, 24, 1 << 30)
    return model, build(Maker(torch, "cpu", generator), order, attend, "sdpa", grouped)


# Timing. ----------------------------------------------------------------------------------------------------------


class Told(CpuClock):
    """A device on which every call of a part takes ``us``, and a launch ``gap`` more."""

    l2_bytes = 60 * MIB

    def __init__(self, us, gap=0.0):
        super().__init__()
        self.us, self.gap, self.calls = us, gap, []

    def times(self, launch, count):
        self.calls.clear()
        launch()
        return [self.us * len(self.calls) + self.gap] * count


def a_place(clock, size, addresses):
    def run(own, _values):
        clock.calls.append(1)
        addresses.append(own["w"].data_ptr())
        return {}

    return Seen(Place(Part("x", "x", ("w",), run), {"w": torch.zeros(size, dtype=torch.uint8)}), {})


def test_a_part_goes_through_all_places_and_copies():
    """48 routers of 524,288 bytes: 25 MB, which has to be there 8 times to be more than 180 MiB."""
    clock, addresses = Told(us=2.0, gap=7.0), []
    seen = [a_place(clock, 524288, addresses) for _ in range(48)]
    timed = time_part(clock, seen)
    assert (timed.places, timed.copies, timed.read_bytes, timed.cold) == (48, 8, 48 * 524288, True)
    assert len(set(addresses)) == 48 * 8
    # 384 calls take 768 us, so twice in a graph: 1536 us and one gap of 7.
    assert timed.repeats == 2
    assert timed.samples.median == pytest.approx(1543 / 16)
    assert timed.each_us == pytest.approx(1543 / 768)
    assert timed.scaled(96).median == pytest.approx(2 * 1543 / 16)


def test_what_is_in_the_cache_is_said():
    clock = Told(us=20.0)
    timed = time_part(clock, [a_place(clock, 4096, []) for _ in range(2)])
    assert (timed.copies, timed.cold, timed.repeats) == (1, False, 25)
    assert timed.samples.median == pytest.approx(40.0)


def test_copies_and_repeats_by_hand():
    assert copies_of(8 * MIB, 8 * MIB, 60 * MIB) == 23
    assert copies_of(200 * MIB, 200 * MIB, 60 * MIB) == 1
    assert copies_of(MIB - 1, MIB - 1, 60 * MIB) == 1
    assert copies_of(9 * MIB, 40 * MIB, 60 * MIB) == 1  # experts that are not hit
    assert [repeats_for(each) for each in (999.0, 1000.0, 10.0, 0.1)] == [2, 1, 64, 64]
    assert Timed(Samples(1, 10.0, 8.0, 14.0), 4, 1, 1, 0, False).scaled(6) == Samples(1, 15.0, 12.0, 21.0)


def test_works_in_a_graph():
    clock = Told(us=5.0)
    assert in_graph(clock, [lambda: clock.calls.append(1)] * 4).median == pytest.approx(5.0)


def test_time_of_the_host(monkeypatch):
    said = []
    ticks = iter([10.0, 10.003])
    monkeypatch.setattr("time.perf_counter", lambda: next(ticks))
    assert host_us(lambda: said.append("launch"), 3, lambda: said.append("wait")) == pytest.approx(1000.0)
    assert said == ["wait", "launch", "launch", "launch", "wait"]


def test_a_part_alone_gives_what_it_gave_in_the_step():
    """Part by part, each at all of its places, as they are timed; then their results in the order of the step."""
    _, stack = a_stack(SPARSE)
    seen, values = stack.watch()
    alone = {name: [each.run() for each in places] for name, places in seen.items()}
    together = dict(stack.start)
    for place in stack.places:
        together.update(alone[place.part.name].pop(0))
    for name in set(values) - {"next"}:  # a draw
        assert torch.equal(together[name], values[name]), name


# Values. ----------------------------------------------------------------------------------------------------------


def test_both_ways_of_experts_agree():
    model, grouped = a_stack()
    _, gathered = a_stack(grouped=False)
    assert error_of(gathered.run()["logits"], grouped.run()["logits"].double()) < 0.02
    assert [experts(torch, "x", "w", "s", "t", each).how for each in (True, False)] == [GROUPED, GATHERED]
    places, _ = gathered.watch()
    assert wrong(model, places["experts_up"])[0] < 2**-6


def a_torch(product):
    """torch whose GPU is the CPU."""

    def zeros(shape, dtype, device):
        return torch.zeros(shape, dtype=dtype)

    def tensor(values, dtype, device):
        return torch.tensor(values, dtype=dtype)

    return SimpleNamespace(bfloat16=torch.bfloat16, int32=torch.int32, zeros=zeros, tensor=tensor, _grouped_mm=product)


@pytest.mark.parametrize(("capability", "there"), [((9, 0), True), ((10, 0), True), ((8, 9), False), ((12, 0), False)])
def test_where_torch_has_grouped_products(capability, there):
    assert has_grouped(a_torch(torch._grouped_mm), "cuda:0", capability) is there
    assert has_grouped(object(), "cuda:0", capability) is False
    assert has_grouped(torch, "cpu", (0, 0)) is True


def test_a_torch_whose_grouped_products_are_of_another_gpu():
    """Up to 2.8 on a B200."""

    def refused(*_, **__):
        raise RuntimeError("torch._grouped_mm is only supported on CUDA devices with compute capability = 9.0")

    assert has_grouped(a_torch(refused), "cuda:0", (10, 0)) is False


def test_attention_without_what_torch_has_only_since_2_5(monkeypatch):
    real = torch.nn.functional.scaled_dot_product_attention

    def of_2_4(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None):
        assert query.shape[:2] == key.shape[:2]
        return real(query, key, value, attn_mask, dropout_p, is_causal, scale=scale)

    run, _ = a_run()
    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", of_2_4)
    ours, how = attention_of(run, 3, 24)
    monkeypatch.undo()
    assert how.startswith("torch scaled_dot_product_attention, ")
    queries, keys, values = (torch.randn(3, heads, size, 16) for heads, size in ((4, 1), (2, 24), (2, 24)))
    got, expected = (way(queries, keys, values).reshape(3, -1) for way in (ours, attend))
    assert torch.allclose(got, expected, atol=1e-5)


def test_rope_is_a_turn():
    cos, sin = angles(torch, 8, 3, "cpu")
    whole = torch.randn(2, 3, 12, dtype=torch.bfloat16)
    out = turn(torch, whole, cos, sin)
    assert torch.equal(out[..., 8:], whole[..., 8:])
    as_complex = torch.complex(whole[..., :4].float(), whole[..., 4:8].float())
    turned = as_complex * torch.polar(torch.ones(4), 3 / 1e4 ** (torch.arange(4) / 4))
    expected = torch.cat((turned.real, turned.imag), -1)
    assert torch.allclose(out[..., :8].float(), expected, atol=0.05)


def test_attention_is_compared_with_all_of_the_context():
    model, stack = a_stack()
    seen, _ = stack.watch()
    attention = seen["attention"][0]
    assert wrong(model, [attention])[1] is None
    broken = Part("attention", "x", (), lambda own, values: {"attended": attention.run()["attended"].roll(1, 1)})
    assert "differs from float64" in wrong(model, [Seen(Place(broken, attention.place.own), attention.values)])[1]
