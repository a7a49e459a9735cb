"""Launch the kernels of ``ptx`` on one GPU: copies by multiprocessors, patterns and their proof, a chase, a hold."""

from __future__ import annotations

import struct
from ctypes import c_uint, c_uint64, c_void_p
from dataclasses import dataclass

from gpu_checks import ptx
from gpu_checks.cuda_async import MULTIPROCESSORS, AsyncApi

THREADS = 512
"""Of a block. One such block for each multiprocessor is what saturates a link; nvbandwidth launches the same."""

LOCAL_BLOCKS = 4
"""Blocks for each multiprocessor where local memory is to be saturated: 2048 threads are all that a large GPU takes."""

HOLD_LIMIT_S = 10.0
"""A stream that is held longer goes on by itself, so that a GPU never waits for a process that is gone."""

ELEMENT, WORD = 16, 4
"""Bytes that a thread moves at once, and that a pattern counts."""

MASK = 0xFFFFFFFF


@dataclass(frozen=True)
class Wrong:
    """What differs from a pattern: how many words, how many of these are 0, and the place of the first (in words)."""

    words: int
    zeros: int
    first: int

    def __str__(self) -> str:
        """For a message."""
        zeros = ", all of them zero" if self.zeros == self.words else f", {self.zeros} of them zero" * bool(self.zeros)
        return f"{self.words} words are wrong{zeros}, the first is word {self.first}"


def pattern_word(place: int, seed: int) -> int:
    """The 32-bit word that belongs at a place of the pattern with this seed; never 0.

    >>> hex(pattern_word(0, 1))
    '0x85efe535'
    """
    word = (place * 0x9E3779B1 + seed) & MASK
    word ^= word >> 16
    word = word * 0x85EBCA6B & MASK
    word ^= word >> 13
    return max(word, 1)


class Kernels:
    """The kernels, compiled for one retained GPU. All sizes are in bytes; everything but ``verify`` only queues."""

    def __init__(self, api: AsyncApi, ordinal: int) -> None:
        """Compile them; CudaError where the driver can't."""
        self.api, self.ordinal = api, ordinal
        api.use(ordinal)
        self.multiprocessors = api.attribute(ordinal, MULTIPROCESSORS)
        self._module, self._functions = api.load_all(ptx.module(), ptx.ENTRIES)
        self._result = api.allocate(ELEMENT)
        self._warm_up()

    def _warm_up(self) -> None:
        """Run each once: a driver may load a kernel's code at its first launch, and waits for the GPU to do so."""
        stream = self.api.stream()
        flag = self.api.host_memory(64)
        flag.write32(1)
        self.hold(flag.device_address, stream)
        self.copy(self._result, self._result, 0, stream)
        self.read(self._result, 0, stream)
        self.write(self._result, 0, 0, stream)
        self.pattern(self._result, 0, 0, stream)
        self.verify(self._result, 0, 0, stream)
        self.api.upload(self._result, struct.pack("<QQ", self._result, 0))  # it points to itself
        self.chase(self._result, 1, 0, stream)
        self.api.synchronize(stream)
        self.api.free_host(flag)
        self.api.destroy_stream(stream)

    def close(self) -> None:
        """Give everything back."""
        self.api.use(self.ordinal)
        self.api.free(self._result)
        self.api.unload(self._module)

    def hold(self, flag: int, stream: c_void_p, limit_s: float = HOLD_LIMIT_S) -> None:
        """Keep a stream waiting until the word at ``flag``, an address for the GPU, is not 0."""
        arguments = (c_uint64(flag), c_uint64(int(limit_s * 1e9)))
        self.api.launch_on(self._functions["hold"], 1, 1, stream, *arguments)

    def copy(self, target: int, source: int, size: int, stream: c_void_p, blocks: int = 1) -> None:
        """Copy with every multiprocessor, ``blocks`` blocks on each."""
        arguments = (c_uint64(target), c_uint64(source), c_uint64(_elements(size)))
        self._launch("copy", blocks, stream, *arguments)

    def read(self, source: int, size: int, stream: c_void_p, blocks: int = LOCAL_BLOCKS) -> None:
        """Only read."""
        self._launch("read", blocks, stream, c_uint64(self._result), c_uint64(source), c_uint64(_elements(size)))

    def write(self, target: int, size: int, value: int, stream: c_void_p, blocks: int = LOCAL_BLOCKS) -> None:
        """Only write: the 32-bit ``value`` everywhere."""
        self._launch("write", blocks, stream, c_uint64(target), c_uint64(_elements(size)), c_uint(value & MASK))

    def pattern(self, target: int, size: int, seed: int, stream: c_void_p) -> None:
        """Fill with words that depend on their place and the seed: see ``pattern_word``."""
        self._launch("pattern", LOCAL_BLOCKS, stream, c_uint64(target), c_uint64(_words(size)), c_uint(seed & MASK))

    def verify(self, source: int, size: int, seed: int, stream: c_void_p) -> Wrong | None:
        """Compare every word with the pattern, on the GPU; waits for the stream. None where all is right."""
        # In the stream, where nothing can overtake it: all ones, which every place is below, and two counts of 0.
        self.api.fill(self._result, 0xFF, 8, stream)
        self.api.fill(self._result + 8, 0, 8, stream)
        arguments = (c_uint64(source), c_uint64(_words(size)), c_uint(seed & MASK), c_uint64(self._result))
        self._launch("verify", LOCAL_BLOCKS, stream, *arguments)
        self.api.synchronize(stream)
        first, words, zeros = struct.unpack("<QII", self.api.download(self._result, ELEMENT))
        return Wrong(words, zeros, first) if words else None

    def chase(self, start: int, steps: int, block: int, stream: c_void_p) -> None:
        """Follow ``steps`` pointers (above 0) with one thread, on the multiprocessor that gets this block."""
        arguments = (c_uint64(start), c_uint(steps), c_uint(block), c_uint64(self._result + 8))
        self.api.launch_on(self._functions["chase"], self.multiprocessors, 1, stream, *arguments)

    def _launch(self, name: str, blocks: int, stream: c_void_p, *arguments: object) -> None:
        self.api.launch_on(self._functions[name], self.multiprocessors * blocks, THREADS, stream, *arguments)


def _elements(size: int) -> int:
    return _parts(size, ELEMENT)


def _words(size: int) -> int:
    return _parts(size, WORD)


def _parts(size: int, each: int) -> int:
    if size % each:
        raise ValueError(f"{size} bytes are no multiple of {each}")
    return size // each
