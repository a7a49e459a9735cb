"""Samples, rotation, the pattern in Python; and the Timer against a driver that counts instead of computing."""

from __future__ import annotations

import re
from contextlib import contextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_checks import ptx, timing
from gpu_checks.kernels import Wrong, _elements, pattern_word
from gpu_checks.timing import QUEUE_LIMIT, HoldEnded, Timer, quantile, rotation, summary


def test_summary_of_known_samples():
    found = summary([5.0, 1.0, 4.0, 2.0, 3.0])
    assert (found.n, found.median, found.p20, found.p80) == (5, 3.0, pytest.approx(1.8), pytest.approx(4.2))


def test_one_sample_is_its_own_distribution():
    found = summary([7.0])
    assert (found.n, found.median, found.p20, found.p80) == (1, 7.0, 7.0, 7.0)


def test_no_samples_are_no_measurement():
    with pytest.raises(ValueError, match="no samples"):
        summary([])


@given(st.lists(st.floats(0, 1e9), min_size=1, max_size=50), st.floats(0, 1))
def test_a_quantile_lies_among_the_samples(values, share):
    ordered = sorted(values)
    assert ordered[0] - 1e-6 <= quantile(ordered, share) <= ordered[-1] + 1e-6


@pytest.mark.parametrize(("size", "l2", "buffers"), [(64 << 20, 50 << 20, 3), (512 << 20, 50 << 20, 1), (1, 1, 4)])
def test_rotation_is_more_than_three_times_the_cache(size, l2, buffers):
    assert rotation(size, l2) == buffers
    assert buffers * size > 3 * l2
    assert (buffers - 1) * size <= 3 * l2


def test_the_pattern_has_no_zero_and_no_repetition_nearby():
    words = [pattern_word(place, 99) for place in range(10_000)]
    assert 0 not in words
    assert len(set(words)) == len(words)
    assert (
        sum(one == other for one, other in zip(words, map(pattern_word, range(10_000), [100] * 10_000), strict=True))
        == 0
    )


def test_a_size_that_is_no_whole_number_of_elements_is_refused():
    with pytest.raises(ValueError, match="no multiple of 16"):
        _elements(24)


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        (Wrong(3, 3, 5), "3 words are wrong, all of them zero, the first is word 5"),
        (Wrong(3, 1, 5), "3 words are wrong, 1 of them zero, the first is word 5"),
        (Wrong(3, 0, 5), "3 words are wrong, the first is word 5"),
    ],
)
def test_what_is_wrong_in_words(wrong, text):
    assert str(wrong) == text


def test_the_module_has_every_kernel_and_ends_as_c_expects():
    text = ptx.module()
    assert text.endswith(b"}\n\0")
    assert re.findall(rb"\.entry (\w+)\(", text) == [name.encode() for name in ptx.ENTRIES]
    # Labels are local to a kernel in PTX; each is defined once there, and every jump has its target.
    for body in text.decode().split(".visible")[1:]:
        labels = re.findall(r"^(\w+):", body, re.MULTILINE)
        assert sorted(labels) == sorted(set(labels))
        assert set(re.findall(r"bra (\w+);", body)) == set(labels)


class FakeApi:
    """A driver whose stream runs only when it is synchronized, and whose work takes 5 us plus its number."""

    def __init__(self):
        self.log, self.pending, self.clock, self.done, self.events = [], [], 0.0, {}, 0

    def use(self, ordinal):
        assert ordinal == 3

    def host_memory(self, size):
        api = self

        class Flag:
            device_address = 0x1000

            def write32(self, value):
                api.log.append(f"flag {value}")

        return Flag()

    def free_host(self, memory):
        self.log.append("freed")

    def event(self):
        self.events += 1
        return f"e{self.events}"

    def destroy_event(self, event):
        self.events -= 0
        self.log.append("destroyed")

    def record(self, event, stream):
        self.pending.append(("record", event))

    def work(self, number):
        self.pending.append(("work", number))

    def synchronize(self, stream):
        held = False
        for kind, what in self.pending:
            if kind == "hold":
                held = "flag 1" not in self.log[self.log.index("flag 0") :] if "flag 0" in self.log else True
                assert not held, "the stream would never end"
            elif kind == "work":
                self.clock += 5 + what
            else:
                self.done[what] = self.clock
        self.pending = []

    def elapsed_us(self, first, last):
        return self.done[last] - self.done[first]


class FakeKernels:
    def __init__(self, api):
        self.api = api

    def hold(self, flag, stream):
        assert flag == 0x1000
        self.api.pending.append(("hold", flag))


def test_each_iteration_has_its_own_time_and_every_event_goes():
    api = FakeApi()
    timer = Timer(api, FakeKernels(api), 3)
    times = timer.each("s", api.work, count=4, warm_up=2)
    assert times == [5.0, 6.0, 7.0, 8.0]
    assert api.log.count("destroyed") == api.events
    timer.close()
    assert api.log[-1] == "freed"


def test_many_iterations_go_in_batches_that_a_queue_can_take():
    api = FakeApi()
    longest = []
    kernels = FakeKernels(api)
    timer = Timer(api, kernels, 3)
    real = timer._batch

    def batch(stream, work, first, count):
        longest.append(count)
        return real(stream, work, first, count)

    timer._batch = batch
    assert len(timer.each("s", api.work, count=2 * QUEUE_LIMIT + 1)) == 2 * QUEUE_LIMIT + 1
    assert longest == [QUEUE_LIMIT, QUEUE_LIMIT, 1]


def test_work_that_fails_releases_the_stream():
    api = FakeApi()
    timer = Timer(api, FakeKernels(api), 3)

    @contextmanager
    def failing():
        with timer.held("s"):
            yield

    with pytest.raises(RuntimeError), failing():
        raise RuntimeError
    assert api.log[-1] == "flag 1"


@pytest.mark.parametrize(("seconds", "ends"), [(9.9, False), (12.25, True)])
def test_a_stream_that_went_on_by_itself_gives_no_figures(monkeypatch, seconds, ends):
    """A call that waits for the GPU behind a held stream returns only once the hold has given up."""
    api, clock = FakeApi(), [100.0]
    monkeypatch.setattr(timing.time, "monotonic", lambda: clock[0])
    timer = Timer(api, FakeKernels(api), 3)

    def work(turn):
        api.work(turn)
        clock[0] += seconds if turn == 3 else 0

    if not ends:
        assert timer.each("s", work, count=4, warm_up=2) == [5.0, 6.0, 7.0, 8.0]
        return
    with pytest.raises(HoldEnded, match=r"took 12\.2 s, a stream is held for 10 s at most: a call waited"):
        timer.each("s", work, count=4, warm_up=2)
    assert api.log.count("destroyed") == api.events
