"""Reads what torch's profiler writes (Kineto's Chrome JSON, also packed), and what SGLang merges of several ranks.

Kept are the work on the GPUs, the calls of the CUDA API, spans that mark steps, and operators on the CPU that choose
tokens. All else, which is most of the file, is decoded and dropped.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from gpuhost_cli.trace_json import EventReader, is_packed, opened
from gpuhost_cli.trace_marks import is_mark
from gpuhost_cli.trace_model import (
    CORRELATION_BITS,
    KERNEL,
    MEMCPY,
    MEMSET,
    SAMPLING_OPERATORS,
    BrokenTrace,
    Gpu,
    Mark,
    Table,
    Trace,
    TraceError,
    api_kind,
)

_RANK_PREFIX = re.compile(r"^\[?([A-Za-z]+\d+(?:[-_ ][A-Za-z]+\d+)*)\]?\s")
"""SGLang's merged traces call a process ``[TP00] 4711``."""
_RANK_IN_NAME = (re.compile(r"rank[-_]?(\d+)", re.IGNORECASE), re.compile(r"(?<![A-Za-z])TP[-_](\d+)", re.IGNORECASE))
"""vLLM's ``dp0_pp0_tp1_dcp0_ep1_rank1`` and SGLang's ``TP-1``; ``tp8`` is how many there are."""
_NEVER = -1
_USELESS = re.compile(
    r'\{\s*"ph": "(?:[^X]"|X",\s*"cat": "(?:'
    r'(?:python_function|overhead|cuda_sync|cuda_profiler_range|Trace)"|'
    rf'cpu_op",\s*"name": "(?!{SAMPLING_OPERATORS.pattern[1:-1]}")))'
)
"""Events that nothing is read from, by how Kineto begins them: arrows, counters, Python's frames, most operators.

Older versions put the first keys of an event on one line; newer ones (seen in torch 2.13) give each a line."""


def read(path: Path, marks: re.Pattern[str], *, partial: bool = False) -> Trace:
    """The trace. Raises TraceError, and BrokenTrace where it is not whole: with ``partial`` that is said in it."""
    begin = time.monotonic()
    try:
        packed = is_packed(path)
        stream = opened(path)
    except OSError as error:
        raise TraceError(f"{path}: {error.strerror}: give a file that can be read") from error
    with stream:
        reader = EventReader(stream, str(path), _USELESS)
        sink = _Sink(marks, Trace(str(path), "torch profiler, packed" if packed else "torch profiler"))
        try:
            sink.take(reader)
        except BrokenTrace as error:
            if not partial:
                raise
            sink.trace.broken = str(error)
    sink.trace.size_bytes = reader.offset
    sink.trace.rank = _rank(reader.header, path)
    sink.trace.gpu_names.update(_gpu_names(reader.header, sink.trace.gpus))
    sink.trace.seconds = time.monotonic() - begin
    return sink.trace


def nanoseconds(value: Any) -> int:
    """Microseconds as the file has them, exactly: 1712195495505582.988 is no float's number."""
    if type(value) is int:
        return value * 1000
    whole, _, part = str(value).partition(".")
    if part.isdigit() and whole.isdigit():
        return int(whole) * 1000 + int((part + "00")[:3])
    return round(float(value) * 1000)  # negative, with an exponent, or text


class _Sink:
    """Sorts the events into a trace."""

    def __init__(self, marks: re.Pattern[str], trace: Trace) -> None:
        self.trace, self._marks = trace, marks
        self._names, self._gpus, self._threads, self._processes = Table(), Table(), Table(), Table()
        self._api: dict[str, int] = {}
        self._samples: dict[str, bool] = {}
        self._of_process: dict[Any, tuple[int, str]] = {}
        kinds: tuple[tuple[Callable[..., None], tuple[str, ...]], ...] = (
            (self._kernel, ("kernel", "Kernel")),
            (self._copy, ("gpu_memcpy", "Memcpy")),
            (self._set, ("gpu_memset", "Memset")),
            (self._call, ("cuda_runtime", "cuda_driver", "Runtime")),
            (self._mark, ("user_annotation",)),
            (self._gpu_mark, ("gpu_user_annotation",)),
            (self._operator, ("cpu_op", "Operator")),
        )
        self._by_category = {name: take for take, names in kinds for name in names}

    def take(self, reader: EventReader) -> None:
        """All events of the file."""
        trace, by_category, damaged, count = self.trace, self._by_category, 0, 0
        try:
            for count, event in enumerate(reader, 1):  # noqa: B007 - the count is wanted afterwards too
                try:
                    if event.get("ph") == "X" and (kind := by_category.get(event.get("cat"))) is not None:
                        begin = nanoseconds(event["ts"])
                        kind(event, begin, begin + nanoseconds(event.get("dur", 0)), event.get("args") or {})
                except (KeyError, TypeError, ValueError, OverflowError, AttributeError):
                    damaged += 1
        finally:
            trace.events = count + reader.passed_over
            trace.names = [str(name) for name in self._names.rows]
            trace.gpus = [gpu for gpu in self._gpus.rows if isinstance(gpu, Gpu)]
            if damaged:
                trace.notes.append(f"{damaged:,} events without a usable time, GPU or correlation were left out")

    def _process(self, pid: Any) -> tuple[int, str]:
        found = self._of_process.get(pid)
        if found is None:
            prefix = _RANK_PREFIX.match(pid) if isinstance(pid, str) else None
            label = prefix[1] if prefix else ""
            found = self._of_process[pid] = (self._processes.number(label), label)
        return found

    def _work(self, event: Mapping[str, Any], begin: int, end: int, args: Mapping[str, Any], kind: int) -> None:
        process, label = self._process(event["pid"])
        device = args.get("device", event["pid"])
        correlation = int(args.get("correlation", _NEVER))
        # Kineto has a graph's number since CUDA 12; for an older one see ``trace_steps.resolve_graphs``.
        graph = int(args.get("graph id", 0)) or (_NEVER if args.get("graph node id") else 0)
        self.trace.ops.add(
            begin,
            end,
            self._names.number(event["name"]),
            self._gpus.number(Gpu(label, int(device))),
            kind,
            _NEVER if correlation <= 0 else process << CORRELATION_BITS | correlation,
            graph,
            int(args.get("bytes", 0)),
        )

    def _kernel(self, event: Mapping[str, Any], begin: int, end: int, args: Mapping[str, Any]) -> None:
        self._work(event, begin, end, args, KERNEL)

    def _copy(self, event: Mapping[str, Any], begin: int, end: int, args: Mapping[str, Any]) -> None:
        self._work(event, begin, end, args, MEMCPY)

    def _set(self, event: Mapping[str, Any], begin: int, end: int, args: Mapping[str, Any]) -> None:
        self._work(event, begin, end, args, MEMSET)

    def _call(self, event: Mapping[str, Any], begin: int, end: int, args: Mapping[str, Any]) -> None:
        name = event["name"]
        kind = self._api.get(name)
        if kind is None:
            found = api_kind(name)
            kind = self._api[name] = _NEVER if found is None else found
        if kind != _NEVER:
            process = self._process(event["pid"])[0] << CORRELATION_BITS
            thread = self._threads.number((event["pid"], event["tid"]))
            self.trace.calls.add(begin, end, kind, process | int(args.get("correlation", 0)), thread)

    def _operator(self, event: Mapping[str, Any], begin: int, end: int, _args: Mapping[str, Any]) -> None:
        name = event["name"]
        wanted = self._samples.get(name)
        if wanted is None:
            wanted = self._samples[name] = bool(SAMPLING_OPERATORS.search(name))
        if wanted:
            process = self._process(event["pid"])[0] << CORRELATION_BITS
            self.trace.sampling.add(begin, end, 0, process, self._threads.number((event["pid"], event["tid"])))

    def _mark(self, event: Mapping[str, Any], begin: int, end: int, _args: Mapping[str, Any]) -> None:
        if is_mark(event["name"], self._marks):
            process = self._process(event["pid"])[0]
            self.trace.marks.append(Mark(begin, end, event["name"], process, None))

    def _gpu_mark(self, event: Mapping[str, Any], begin: int, end: int, args: Mapping[str, Any]) -> None:
        if is_mark(event["name"], self._marks):
            process, label = self._process(event["pid"])
            device = args.get("device", event["pid"])
            gpu = self._gpus.number(Gpu(label, int(str(device).split()[-1])))
            self.trace.marks.append(Mark(begin, end, event["name"], process, gpu))


def _rank(header: Mapping[str, Any], path: Path) -> str:
    """The rank by the file's own word, else by its name."""
    told = header.get("distributedInfo")
    if isinstance(told, Mapping) and isinstance(told.get("rank"), int) and told.get("world_size", 2) != 1:
        return f"rank {told['rank']}"
    found = next((match for pattern in _RANK_IN_NAME if (match := pattern.search(path.name))), None)
    return f"rank {int(found[1])}" if found else ""


def _gpu_names(header: Mapping[str, Any], gpus: list[Gpu]) -> dict[int, str]:
    listed = header.get("deviceProperties")
    names = {
        item["id"]: str(item.get("name", ""))
        for item in (listed if isinstance(listed, list) else ())
        if isinstance(item, Mapping) and isinstance(item.get("id"), int)
    }
    return {number: names[gpu.index] for number, gpu in enumerate(gpus) if gpu.index in names}
