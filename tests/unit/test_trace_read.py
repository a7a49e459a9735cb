"""Reading traces: piece by piece, exact times, damaged files. All traces are synthetic."""

from __future__ import annotations

import io
import json
import re

import fake_trace
import pytest
from fake_trace import Plan, write
from hypothesis import given
from hypothesis import strategies as st

from gpuhost_cli import trace_json, trace_torch
from gpuhost_cli.trace_marks import NONE_TOLD, is_mark
from gpuhost_cli.trace_model import KERNEL, MEMCPY, BrokenTrace, TraceError, api_kind

FALSE_FRIENDS = 'kernel "x" \\ {lambda(int)#1}::operator()}, {\n  } [ü, 𝄞] \u2028'


def events_of(data: bytes, monkeypatch, chunk=7, useless=None):
    monkeypatch.setattr(trace_json, "CHUNK_BYTES", chunk)
    reader = trace_json.EventReader(io.BytesIO(data), "t.json", useless)
    return list(reader), reader


@pytest.mark.parametrize("chunk", [1, 2, 3, 5, 8, 13, 64, 1 << 20])
@pytest.mark.parametrize("indent", [None, 1, 2])
def test_a_value_may_be_cut_anywhere(monkeypatch, chunk, indent):
    document = {
        "schemaVersion": 12345,
        "x": {"deep": [1, {"y": "traceEvents"}]},
        "traceEvents": [{"name": FALSE_FRIENDS, "ts": 12}, {}, {"a": [{"b": "]"}]}],
        "after": -1234567,
    }
    found, reader = events_of(json.dumps(document, indent=indent, ensure_ascii=False).encode(), monkeypatch, chunk)
    assert found == document.pop("traceEvents")
    assert reader.header == document


@given(st.lists(st.dictionaries(st.text(), st.one_of(st.text(), st.integers(), st.none(), st.booleans()))), st.data())
def test_it_reads_what_json_reads(events, data):
    text = json.dumps({"before": 1, "traceEvents": events}, indent=data.draw(st.sampled_from([None, 2])))
    old, trace_json.CHUNK_BYTES = trace_json.CHUNK_BYTES, data.draw(st.integers(1, 40))
    try:
        assert list(trace_json.EventReader(io.BytesIO(text.encode()), "t")) == events
    finally:
        trace_json.CHUNK_BYTES = old


def test_a_list_without_an_end_is_chromes_other_form(monkeypatch):
    assert events_of(b'[{"a": 1},\n{"a": 2},\n', monkeypatch)[0] == [{"a": 1}, {"a": 2}]


def test_bytes_that_are_no_utf8_do_not_end_it(monkeypatch):
    data = b'{"traceEvents": [{"name": "\xff\xfe"}]}'
    found, reader = events_of(data, monkeypatch)
    assert len(found) == 1
    assert reader.offset == len(data)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "the file is empty at byte 0"),
        (b"hello", "this is no JSON object and no list at byte 0"),
        (b'{"traceEvents": [{"a": 1}, 7]}', "an event was expected at byte 27"),
        (b'{"traceEvents": [{"a": 1}, {"a": nan}, {"abc": 1}]}', "damaged (a value was expected) at byte 33"),
        (b'{"traceEvents": [{"a": 1}, {"a" 1}, {"aaaaaaaaaaaaa": 1}]}', "damaged (Expecting ':' delimiter) at byte 32"),
        (b'{"traceEvents": [{"a": 1}, {"a": "ends', "the file ends within a value that begins at byte 27"),
        (b'{"traceEvents": [{"a": 1}, ', "the file ends within the events at byte 27"),
        ('{"traceEvents": [{"ü": 1}, 7]}'.encode(), "an event was expected at byte 28"),
        (b'{"a" 1}', "a key and a colon were expected at byte 5"),
    ],
)
def test_a_damaged_file_is_told_with_its_byte(monkeypatch, data, words):
    with pytest.raises(BrokenTrace, match=re.escape(f"t.json: {words} of the unpacked trace")):
        events_of(data, monkeypatch)


def test_another_json_is_no_trace(monkeypatch):
    with pytest.raises(TraceError, match="no traceEvents in it: this is no trace of torch's profiler"):
        events_of(b'{"a": [1, 2]}', monkeypatch)


@pytest.mark.parametrize("chunk", [50, 333, 1 << 20])
def test_passing_over_loses_nothing_that_is_wanted(tmp_path, monkeypatch, chunk):
    """The same with every event decoded, in Kineto's layout and in others."""
    plan = Plan(steps=3, graph=False, marks="ProfilerStep#{}")
    writer = fake_trace.Writer()
    for number in range(40):
        writer.host("cpu_op", f"aten::mm_{number} {FALSE_FRIENDS}", fake_trace.BASE_NS + number, 5)
        writer.host("cpu_op", "aten::argmax", fake_trace.BASE_NS + number, 5)
        writer.flow(fake_trace.BASE_NS)
    text = fake_trace.text(plan, writer)
    every = json.loads(text)["traceEvents"]
    wanted = [event for event in every if event.get("cat") != "ac2g" and "mm_" not in event["name"]]
    monkeypatch.setattr(trace_json, "CHUNK_BYTES", chunk)
    for layout, passed in (
        (text, True),
        (re.sub(r', "(cat|name|pid|tid|dur)"', r',\n    "\1"', text), True),  # torch 2.13
        (json.dumps(json.loads(text)), False),
        (json.dumps(json.loads(text), indent=2), False),
    ):
        reader = trace_json.EventReader(io.BytesIO(layout.encode()), "t", trace_torch._USELESS)
        found = [event["name"] for event in reader if event.get("cat") != "ac2g" and "mm_" not in event["name"]]
        assert found == [event["name"] for event in wanted]
        assert bool(reader.passed_over) is passed or chunk < 1000


@pytest.mark.parametrize(
    ("value", "ns"),
    [
        ("1712195495505582.988", 1712195495505582988),
        (1712195495505582, 1712195495505582000),
        ("4.9", 4900),
        ("0.000", 0),
        ("7.1234", 7123),
        ("-2.5", -2500),
        ("1e3", 1000000),
    ],
)
def test_times_are_exact(value, ns):
    assert trace_torch.nanoseconds(value) == ns


def test_a_torch_trace(tmp_path):
    plan = Plan(steps=3, rank=2, gpu=5, marks="step[DECODE bs={}]")
    plain = trace_torch.read(write(tmp_path, plan), NONE_TOLD)
    packed = trace_torch.read(write(tmp_path, plan, "anything.gz"), NONE_TOLD)
    assert plain.ops == packed.ops
    assert (plain.format, packed.format) == ("torch profiler", "torch profiler, packed")
    assert len(plain.ops) == 3 * len(plan.kernels())
    assert plain.ops.begin[0] == fake_trace.BASE_NS
    assert (plain.rank, plain.gpus[0].label, plain.gpu_names) == ("rank 2", "GPU 5", {0: "synthetic GPU"})
    assert [mark.name for mark in plain.marks] == [f"step[DECODE bs={n}]" for n in range(3)]
    assert plain.size_bytes == packed.size_bytes == len(fake_trace.text(plan))
    assert plain.events == len(json.loads(fake_trace.text(plan))["traceEvents"])
    assert {plain.ops.kind[row] for row in range(len(plain.ops))} == {KERNEL, MEMCPY}


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("1764520000-TP-3.trace.json.gz", "rank 3"),
        ("dp1_pp0_tp0_dcp0_ep1_rank5.1764.pt.trace.json", "rank 5"),
        ("model-tp8-bs1.json", ""),
        ("http2.json", ""),
    ],
)
def test_a_rank_by_the_files_name(tmp_path, name, rank):
    assert trace_torch.read(write(tmp_path, Plan(steps=3), name), NONE_TOLD).rank == rank


def test_ranks_of_a_merged_trace_stay_apart(tmp_path):
    """SGLang's merger puts the rank before each process; correlations count anew in each."""
    events = []
    for rank in (0, 1):
        args = {"device": 0, "stream": 7, "correlation": 9}
        events.append(
            {
                "ph": "X",
                "cat": "kernel",
                "name": "k",
                "pid": f"[TP0{rank}] 0",
                "tid": 7,
                "ts": 10,
                "dur": 5,
                "args": args,
            }
        )
        events.append(
            {
                "ph": "X",
                "cat": "cuda_runtime",
                "name": "cudaLaunchKernel",
                "pid": f"[TP0{rank}] 44",
                "tid": 1,
                "ts": 1,
                "dur": 1,
                "args": args,
            }
        )
    path = tmp_path / "merged.json"
    path.write_text(json.dumps({"traceEvents": events}))
    trace = trace_torch.read(path, NONE_TOLD)
    assert [gpu.label for gpu in trace.gpus] == ["TP00 GPU 0", "TP01 GPU 0"]
    assert len(set(trace.ops.correlation)) == 2
    assert list(trace.ops.correlation) == list(trace.calls.correlation)


def test_events_that_can_not_be_used_are_counted(tmp_path):
    good = {"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": 1, "dur": 1, "args": {"device": 0}}
    call = {**good, "cat": "cuda_runtime", "name": "cudaLaunchKernel"}
    bad = [{**good, "ts": "soon"}, {**good, "args": {"device": "x"}}, {"ph": "X", "cat": "kernel"}]
    bad += [{**item, **more} for item in (good, call) for more in ({"dur": 1e300}, {"args": {"correlation": 10**20}})]
    bad += [{**good, "cat": ["kernel"]}]
    path = tmp_path / "t.json"
    path.write_text(json.dumps({"traceEvents": [*bad, good, call]}))
    trace = trace_torch.read(path, NONE_TOLD)
    # Half a row of a damaged one would shift the columns of all that follow.
    assert {len(column) for table in (trace.ops, trace.calls) for column in vars(table).values()} == {1}
    assert trace.notes == ["8 events without a usable time, GPU or correlation were left out"]


@pytest.mark.parametrize("name", ["cut.json", "cut.json.gz"])
def test_what_comes_before_the_break_is_kept(tmp_path, name):
    path = write(tmp_path, Plan(steps=30), name)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(BrokenTrace, match=r"at byte [0-9,]+ of the unpacked trace") as caught:
        trace_torch.read(path, NONE_TOLD)
    trace = trace_torch.read(path, NONE_TOLD, partial=True)
    assert trace.broken == str(caught.value)
    assert caught.value.offset > 10_000
    assert 300 < len(trace.ops) < 30 * len(Plan().kernels())


def test_a_packed_file_with_a_damaged_middle(tmp_path):
    path = write(tmp_path, Plan(steps=30), "t.json.gz")
    data = bytearray(path.read_bytes())
    data[len(data) // 2 : len(data) // 2 + 40] = b"\x00" * 40
    path.write_bytes(bytes(data))
    with pytest.raises(BrokenTrace, match=r"the packed file is damaged or cut off|damaged \("):
        trace_torch.read(path, NONE_TOLD)


@pytest.mark.parametrize(
    ("name", "kept"),
    [
        ("ProfilerStep#17", True),
        ("step[DECODE bs=4]", True),
        ("step[EXTEND bs=1 toks=107]", True),
        ("execute_context_0(0)_generation_4(4)", True),
        ("execute_context_1(512)_generation_0(0)", True),
        ("execute_new_0_cached_4", True),
        ("execute_new_2_cached_4", True),
        ("execute_new_request", False),
        ("nccl:all_reduce", False),
        ("mine 3", True),
    ],
)
def test_marks(name, kept):
    assert is_mark(name, re.compile("^mine")) is kept


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("cudaLaunchKernel", 0), ("cudaLaunchKernelExC_v11060", 0), ("cuLaunchKernelEx", 0),
        ("hipExtModuleLaunchKernel", 0),
        ("cudaGraphLaunch_v10000", 1), ("cudaMemcpyAsync", 2), ("cudaMemsetAsync", 2), ("cudaStreamSynchronize", 3),
        ("cudaEventQuery", None), ("cudaStreamWaitEvent", None), ("cudaFuncSetAttribute", None),
    ],
)  # fmt: skip
def test_calls(name, kind):
    assert api_kind(name) == kind


def test_the_writer_of_these_tests_writes_json():
    plan = Plan(cast=1000, quantise=5, all_reduce=9)
    document = json.loads(fake_trace.text(plan))
    assert len([event for event in document["traceEvents"] if event.get("cat") == "kernel"]) == 12 * (
        len(plan.kernels()) - 1
    )
