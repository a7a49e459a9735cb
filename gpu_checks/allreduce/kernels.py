"""Two kernels for data of an all-reduce: write a rank's values, and compare a sum bit by bit. See collective_math."""

from __future__ import annotations

from gpu_checks import ptx
from gpu_checks.allreduce.arithmetic import RANK_STEP, STEP

ENTRIES = ("values", "compare")

# %r4 = the value that belongs at place %r5, where the rank's values begin at %r6; from 1 to 256.
VALUE = f"""
    mad.lo.u32 %r4, %r5, {STEP:#x}, %r6;
    shr.u32 %r4, %r4, 24;
    add.u32 %r4, %r4, 1;
"""


def _entry(name: str, parameters: str, begin: str, body: str, end: str = "") -> str:
    """A kernel that goes through %n elements at %a: %y is the address of the one in turn, %r5 its place."""
    return f"""
.visible .entry {name}({parameters})
{{{ptx.REGISTERS}
    .reg .f32 %f<4>;
{ptx.WHO}
    ld.param.u64 %a, [data];
    cvta.to.global.u64 %a, %a;
    ld.param.u64 %n, [count];
{begin}
LOOP:
    setp.ge.u64 %p, %i, %n;
    @%p bra DONE;
    cvt.u32.u64 %r5, %i;
    shl.b64 %y, %i, 2;
    add.u64 %y, %a, %y;
{body}
    add.u64 %i, %i, %t;
    bra LOOP;
DONE:
{end}
    ret;
}}
"""


def _values() -> str:
    """Write ``count`` float32 values that begin at ``start``."""
    body = f"""{VALUE}
    cvt.rn.f32.u32 %f1, %r4;
    st.global.f32 [%y], %f1;"""
    parameters = ".param .u64 data, .param .u64 count, .param .u32 start"
    return _entry("values", parameters, "    ld.param.u32 %r6, [start];", body)


def _compare() -> str:
    """Compare with the sum over ``world`` ranks, the first of which begins at ``start``, times ``factor``.

    At ``result``: the first wrong place (u64), how many are wrong (u32).
    """
    begin = """
    ld.param.u64 %b, [result];
    cvta.to.global.u64 %b, %b;
    ld.param.u32 %r10, [start];
    ld.param.u32 %r11, [world];
    ld.param.f32 %f2, [factor];
    mov.u32 %r8, 0;
    mov.u64 %e, -1;"""
    # Bits are compared: a NaN is unlike everything, and -0 is not 0.
    body = f"""
    mov.u32 %r6, %r10;
    mov.u32 %r12, 0;
    mov.u32 %r13, %r11;
RANK:{VALUE}
    add.u32 %r12, %r12, %r4;
    add.u32 %r6, %r6, {RANK_STEP:#x};
    sub.u32 %r13, %r13, 1;
    setp.ne.u32 %q, %r13, 0;
    @%q bra RANK;
    cvt.rn.f32.u32 %f1, %r12;
    mul.rn.f32 %f1, %f1, %f2;
    mov.b32 %r12, %f1;
    ld.global.u32 %r13, [%y];
    setp.eq.u32 %q, %r12, %r13;
    @%q bra NEXT;
    add.u32 %r8, %r8, 1;
    min.u64 %e, %e, %i;
NEXT:"""
    end = """
    setp.eq.u32 %p, %r8, 0;
    @%p bra LEAVE;
    red.global.min.u64 [%b], %e;
    red.global.add.u32 [%b+8], %r8;
LEAVE:"""
    parameters = (
        ".param .u64 data, .param .u64 count, .param .u32 start, .param .u32 world, .param .f32 factor, "
        ".param .u64 result"
    )
    return _entry("compare", parameters, begin, body, end)


def module() -> bytes:
    """Both kernels in one text."""
    return (ptx.HEAD + _values() + _compare()).encode() + b"\0"
