"""Casting a KV pool from FP8 to BF16: a kernel of ours in PTX, beside what torch's own cast takes.

E4M3 and BF16 differ in how wide their exponent is and in where it begins: the lower seven bits of an E4M3 number,
shifted to their place, are that number times 2^-120 as BF16, the smallest ones included. One multiplication is left.
"""

from __future__ import annotations

from ctypes import c_uint64, c_void_p

from gpu_checks.cuda_async import MULTIPROCESSORS, AsyncApi
from gpu_checks.kernels import LOCAL_BLOCKS, THREADS
from gpu_checks.ptx import WHO

ELEMENT = 8
"""Numbers that a thread takes at once: 8 bytes read, 16 written, each side by side with its neighbours'."""

UNROLL = 4
SINCE = (8, 0)
"""The first compute capability that multiplies BF16."""

NOT_NUMBERS = (0x7F, 0xFF)
"""What E4M3 has instead of NaN; the kernel makes 480 of it, which no pool holds."""

SIGNS, REST, FACTOR, MINUS_ZERO = 0x80008000, 0x07F007F0, 0x7B807B80, 0x80008000
"""Of two numbers in one word: signs; exponent and mantissa where BF16 has them; 2^120; -0, which adds nothing."""

LOW, HIGH = 0x1404, 0x3424
"""Spread two bytes of a word over the upper halves of two 16-bit places: what prmt takes for that."""


def _pair(source: str, target: str, selector: int) -> str:
    return f"""
    prmt.b32 {target}, {source}, 0, {selector};
    and.b32 %r1, {target}, {SIGNS};
    shr.u32 {target}, {target}, 4;
    and.b32 {target}, {target}, {REST};
    or.b32 {target}, {target}, %r1;
    fma.rn.bf16x2 {target}, {target}, %f, %z;"""


def _load(number: int) -> str:
    return f"    ld.global.v2.u32 {{%c{2 * number}, %c{2 * number + 1}}}, [%a];\n    add.u64 %a, %a, %s;\n"


def _store(number: int) -> str:
    words = [("%c" + str(2 * number + which), "%d" + str(2 * which + half), (LOW, HIGH)[half])
             for which in range(2) for half in range(2)]  # fmt: skip
    made = "".join(_pair(*each) for each in words)
    return f"{made}\n    st.global.v4.u32 [%b], {{%d0, %d1, %d2, %d3}};\n    add.u64 %b, %b, %w;\n"


def module() -> bytes:
    """The module, ended by a zero as the driver wants it."""
    step = "".join(_load(each) for each in range(UNROLL)) + "".join(_store(each) for each in range(UNROLL))
    text = f"""// Compiled by the driver for the GPU at hand.
.version 7.0
.target sm_80
.address_size 64

.visible .entry cast(.param .u64 target, .param .u64 source, .param .u64 count)
{{
    .reg .pred %p;
    .reg .b32 %r<4>, %c<{2 * UNROLL}>, %d<4>, %f, %z;
    .reg .b64 %i, %t, %n, %a, %b, %s, %w, %e, %x;
{WHO}
    ld.param.u64 %a, [source];
    cvta.to.global.u64 %a, %a;
    ld.param.u64 %b, [target];
    cvta.to.global.u64 %b, %b;
    ld.param.u64 %n, [count];
    shl.b64 %x, %i, 3;
    add.u64 %a, %a, %x;
    shl.b64 %x, %i, 4;
    add.u64 %b, %b, %x;
    shl.b64 %s, %t, 3;
    shl.b64 %w, %t, 4;
    mov.u32 %f, {FACTOR};
    mov.u32 %z, {MINUS_ZERO};
    mul.lo.u64 %e, %t, {UNROLL - 1};
STEP:
    add.u64 %x, %i, %e;
    setp.ge.u64 %p, %x, %n;
    @%p bra TAIL;
{step}
    mad.lo.u64 %i, %t, {UNROLL}, %i;
    bra STEP;
TAIL:
    setp.ge.u64 %p, %i, %n;
    @%p bra DONE;
{_load(0)}{_store(0)}
    add.u64 %i, %i, %t;
    bra TAIL;
DONE:
    ret;
}}
"""
    return text.encode() + b"\0"


def cast_word(word: int) -> tuple[int, int]:
    """What the kernel makes of four numbers before it multiplies: two words of two; for its test.

    >>> [hex(each) for each in cast_word(0x0000B838)]
    ['0x83800380', '0x0']
    """

    def spread(low: int, high: int) -> int:
        made = low << 8 | high << 24
        return (made & SIGNS) | (made >> 4 & REST)

    first, second, third, fourth = ((word >> 8 * place) & 0xFF for place in range(4))
    return spread(first, second), spread(third, fourth)


class Cast:
    """The kernel, compiled for the current GPU."""

    def __init__(self, api: AsyncApi, ordinal: int) -> None:
        """Compile it; CudaError where the driver can't."""
        self.api = api
        self._module, functions = api.load_all(module(), ("cast",))
        self._function = functions["cast"]
        self._grid = api.attribute(ordinal, MULTIPROCESSORS) * LOCAL_BLOCKS

    def queue(self, target: int, source: int, count: int, stream: c_void_p) -> None:
        """Queue the cast of so many numbers, a multiple of ELEMENT."""
        if count % ELEMENT:
            raise ValueError(f"{count} numbers are no multiple of {ELEMENT}")
        arguments = (c_uint64(target), c_uint64(source), c_uint64(count // ELEMENT))
        self.api.launch_on(self._function, self._grid, THREADS, stream, *arguments)

    def close(self) -> None:
        """Give it back."""
        self.api.unload(self._module)
