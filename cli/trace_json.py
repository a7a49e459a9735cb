"""Reads a JSON file of any size piece by piece: the events one by one, the rest as values.

The decoder is the standard library's, at one value a time: on a machine of two cores it does 87 MB/s of a torch trace,
ijson with its C backend 63 MB/s. msgspec does 151 MB/s but must be told where each event ends, which only the layout
of one writer shows; 1 GB in 12 s is enough.

Most events of a torch trace are of no use here. Where the layout is Kineto's own, those are passed over without being
decoded: by their first line, and up to the brace that closes them at the same indentation.
"""

from __future__ import annotations

import codecs
import io
import json
import re
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from gpuhost_cli.trace_model import BrokenTrace, TraceError

CHUNK_BYTES = 4 << 20
LONGEST_VALUE = 64 << 20
"""Characters. A value that is longer is none of a profiler's, and reading on would take all memory."""

LONGEST_WORD = 16
"""Characters of what JSON can't read before it is whole: -Infinity, or a pair of escapes as \\ud834\\udd1e."""
LONGEST_EVENT = 1 << 16
"""Characters that are searched for the end of an event that is passed over: a kernel's name may have ten thousand."""

EVENTS = "traceEvents"
_SPACE, _BETWEEN = re.compile(r"[ \t\r\n]*"), re.compile(r"[ \t\r\n,]*")
_EVENT_BEGINS, _EVENT_ENDS = "\n  {", "\n  }"
"""Of an event in Kineto's layout. No string has a line's end in it, so neither is ever a part of a name."""
GZIP_MAGIC, GZIP_WINDOW = b"\x1f\x8b", 31
"""31 tells zlib to expect gzip's head and checksum."""
PACKED_BYTES = 1 << 18


class EventReader:
    """The values of a trace in the order of the file. Floats stay text: see ``trace_model`` for the reason."""

    def __init__(self, stream: BinaryIO, source: str, useless: re.Pattern[str] | None = None) -> None:
        """``useless`` matches the beginning of an event, its brace included, that need not be decoded."""
        self._stream, self._source, self._useless = stream, source, useless
        self.passed_over = 0
        """Events that were not decoded."""
        self._decode = codecs.getincrementaldecoder("utf-8")("surrogateescape").decode
        scanner: Any = json.JSONDecoder(strict=False, parse_float=str)
        self._scan: Callable[[str, int], tuple[Any, int]] = scanner.scan_once
        self._text, self._at, self._ended = "", 0, False
        self._before = 0
        self.header: dict[str, Any] = {}
        """What stands beside the events, as far as it was read."""

    @property
    def offset(self) -> int:
        """Bytes of the unpacked file before the place that is read now."""
        return self._before + len(self._text[: self._at].encode("utf-8", "surrogateescape"))

    def __iter__(self) -> Iterator[Any]:
        """All events. Raises BrokenTrace."""
        first = self._peek()
        if first == "[":  # Chrome's other form: nothing but the list, and its end may be missing
            yield from self._list(may_lack_end=True)
            return
        if first != "{":
            raise self._broken("this is no JSON object and no list")
        self._at += 1
        seen = False
        while (sign := self._peek()) != "}":
            if sign == ",":
                self._at += 1
                continue
            key = self._value()
            if not isinstance(key, str) or self._peek() != ":":
                raise self._broken("a key and a colon were expected")
            self._at += 1
            if key == EVENTS and self._peek() == "[":
                seen = True
                yield from self._list(may_lack_end=False)
            else:
                self.header[key] = self._value()
        self._at += 1
        while self._read():  # to the end: only there a packed file's checksum is compared
            self._at = len(self._text)
        self._at = len(self._text)
        if not seen:
            raise TraceError(
                f"{self._source}: no {EVENTS} in it: this is no trace of torch's profiler "
                "(export_chrome_trace writes one)"
            )

    def _list(self, *, may_lack_end: bool) -> Iterator[Any]:
        self._at += 1
        scan, between = self._scan, _BETWEEN.match
        useless = self._useless.match if self._useless else None
        while True:
            # The loop of millions: as little as possible for each event, and everything else in other functions.
            text = self._text
            at = between(text, self._at).end()  # type: ignore[union-attr]
            if useless and useless(text, at) and text[max(at - 3, 0) : at + 1] == _EVENT_BEGINS:
                end = text.find(_EVENT_ENDS, at, at + LONGEST_EVENT)
                if end > 0 and text.find(_EVENT_BEGINS, at, end) < 0:
                    self._at = end + len(_EVENT_ENDS)
                    self.passed_over += 1
                    continue
            self._at = at
            sign = text[at : at + 1]
            if sign == "{":
                try:
                    event, self._at = scan(text, at)
                except (json.JSONDecodeError, StopIteration):
                    event = self._value()
                yield event
            elif sign == "]":
                self._at = at + 1
                return
            elif sign:
                raise self._broken("an event was expected")
            elif not self._read():
                if may_lack_end:
                    return
                raise self._broken("the file ends within the events")

    def _peek(self) -> str:
        while True:
            self._at = _SPACE.match(self._text, self._at).end()  # type: ignore[union-attr]
            if self._at < len(self._text):
                return self._text[self._at]
            if not self._read():
                raise self._broken("the file ends here" if self.offset else "the file is empty")

    def _value(self) -> Any:
        """The value here, however much must be read for it."""
        self._peek()
        while True:
            try:
                value, end = self._scan(self._text, self._at)
                if end < len(self._text) or self._ended:  # 12 at the end of a piece may become 123
                    self._at = end
                    return value
                problem, place = "a number", end
            except StopIteration as error:
                problem, place = "a value was expected", int(error.value)
            except json.JSONDecodeError as error:
                problem, place = error.msg, error.pos
            if self._ended:
                raise self._broken("the file ends within a value that begins")
            # What is only cut off fails at the end of the text, but for a string, which fails where it begins.
            here = len(self._text) - place > LONGEST_WORD and not problem.startswith("Unterminated")
            if here or len(self._text) - self._at > LONGEST_VALUE:
                self._at = place
                raise self._broken(f"damaged ({problem})")
            self._read()

    def _read(self) -> bool:
        """More text; False at the end. What is done with goes."""
        if self._ended:
            return False
        self._before = self.offset
        self._text, self._at = self._text[self._at :], 0
        try:
            data = self._stream.read(CHUNK_BYTES)
        except (EOFError, zlib.error) as error:
            raise self._broken(f"the packed file is damaged or cut off ({error})", len(self._text)) from error
        except OSError as error:
            raise TraceError(f"{self._source}: {error.strerror or error}") from error
        self._ended = not data
        self._text += self._decode(data, self._ended)
        return bool(data)

    def _broken(self, problem: str, further: int = 0) -> BrokenTrace:
        offset = self.offset + further
        return BrokenTrace(f"{self._source}: {problem} at byte {offset:,} of the unpacked trace", offset)


def is_packed(path: Path) -> bool:
    """By its first bytes: what is called .json may be packed, and the other way round."""
    with path.open("rb") as stream:
        return stream.read(2) == GZIP_MAGIC


class Unpacked(io.RawIOBase):
    """A packed file. Other than gzip's own reader it gives all that comes before a place where the file is broken."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._stream = path.open("rb")
        self._unpack, self._rest = zlib.decompressobj(wbits=GZIP_WINDOW), b""

    def read(self, size: int = -1, /) -> bytes:
        """At least one byte, and at most ``size``; none at the end. Raises EOFError and zlib.error."""
        while True:
            data = self._rest or self._stream.read(PACKED_BYTES)
            if not data:
                if not self._unpack.eof:
                    raise EOFError("it ends before its end mark")
                return b""
            if self._unpack.eof:  # another member, as pigz and cat make them; zeros behind the last are padding
                self._rest = data.lstrip(b"\x00")
                if self._rest:
                    self._unpack = zlib.decompressobj(wbits=GZIP_WINDOW)
                continue
            found = self._unpack.decompress(data, size)
            self._rest = self._unpack.unused_data if self._unpack.eof else self._unpack.unconsumed_tail
            if found:
                return found

    def close(self) -> None:
        """The file underneath too."""
        self._stream.close()
        super().close()


def opened(path: Path) -> BinaryIO:
    """The unpacked file."""
    return Unpacked(path) if is_packed(path) else path.open("rb")  # type: ignore[return-value]
