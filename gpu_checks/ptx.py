"""The kernels, in PTX for sm_50 (Maxwell), which the driver compiles for every GPU since: no compiler, no toolkit.

Every kernel goes through its data with all threads side by side: thread t takes element t, then t + threads, and so on.
"""

from __future__ import annotations

UNROLL = 12
"""Loads in flight for each thread before the first of them is stored. More than a memory's latency needs at 512 threads
for each multiprocessor; the registers for it are there."""

ENTRIES = ("hold", "copy", "read", "write", "pattern", "verify", "chase")

HEAD = """// Compiled by the driver for the GPU at hand.
.version 4.0
.target sm_50
.address_size 64
"""

# %i: this thread's first element; %t: how many threads there are.
WHO = """
    mov.u32 %r1, %ctaid.x;
    mov.u32 %r2, %ntid.x;
    mov.u32 %r3, %tid.x;
    mad.lo.u32 %r1, %r1, %r2, %r3;
    cvt.u64.u32 %i, %r1;
    mov.u32 %r3, %nctaid.x;
    mul.wide.u32 %t, %r2, %r3;
"""

REGISTERS = """
    .reg .pred %p, %q;
    .reg .b32 %r<16>, %v<4>;
    .reg .b64 %i, %t, %n, %a, %b, %s, %e, %x, %y;
"""


def _entry(name: str, parameters: str, body: str, registers: str = "") -> str:
    return f"\n.visible .entry {name}({parameters})\n{{{REGISTERS}{registers}{body}\n    ret;\n}}\n"


def _each(step: str, tail: str) -> str:
    """Go through %n elements of 16 bytes: ``step`` does UNROLL of them, %s bytes apart; ``tail`` does one.

    %e is what must be left for a whole step. Both bodies have to move %i on.
    """
    return f"""
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
{tail}
    add.u64 %i, %i, %t;
    bra TAIL;
DONE:"""


def _load(name: str, parameter: str, to_global: bool = False) -> str:
    text = f"    ld.param.u64 {name}, [{parameter}];\n"
    return text + (f"    cvta.to.global.u64 {name}, {name};\n" if to_global else "")


def _at_first(address: str) -> str:
    """Move an address to this thread's first element; %s: the bytes to its next one."""
    return f"    shl.b64 %x, %i, 4;\n    add.u64 {address}, {address}, %x;\n    shl.b64 %s, %t, 4;\n"


def _vector(number: int) -> str:
    return "{" + ", ".join(f"%c{4 * number + part}" for part in range(4)) + "}"


def _hold() -> str:
    """Wait until the word at ``flag`` is not 0, but no longer than ``limit`` nanoseconds."""
    body = f"""
{_load("%a", "flag", to_global=True)}{_load("%e", "limit")}
    mov.u64 %x, %globaltimer;
    add.u64 %e, %e, %x;
LOOP:
    ld.volatile.global.u32 %r1, [%a];
    setp.ne.u32 %p, %r1, 0;
    @%p bra DONE;
    mov.u64 %x, %globaltimer;
    setp.lt.u64 %p, %x, %e;
    @%p bra LOOP;
DONE:"""
    return _entry("hold", ".param .u64 flag, .param .u64 limit", body)


def _copy() -> str:
    """``count`` elements of 16 bytes from ``source`` to ``target``, either of which may be another GPU's memory."""
    one_load = "    ld.global.v4.u32 {0}, [%a];\n    add.u64 %a, %a, %s;"
    one_store = "    st.global.v4.u32 [%b], {0};\n    add.u64 %b, %b, %s;"
    step = "\n".join(
        [one_load.format(_vector(each)) for each in range(UNROLL)]
        + [one_store.format(_vector(each)) for each in range(UNROLL)]
    )
    tail = one_load.format(_vector(0)) + "\n" + one_store.format(_vector(0))
    begin = WHO + _load("%b", "target", True) + _load("%a", "source", True) + _load("%n", "count")
    begin += _at_first("%a") + "    add.u64 %b, %b, %x;\n"
    parameters = ".param .u64 target, .param .u64 source, .param .u64 count"
    return _entry("copy", parameters, begin + _each(step, tail), f"    .reg .b32 %c<{4 * UNROLL}>;\n")


def _read() -> str:
    """Read ``count`` elements of 16 bytes. What was read is mixed, and stored at ``target`` where it equals a sum that
    hardly ever comes out: without that the compiler would leave the loads away."""
    one_load = "    ld.global.v4.u32 {0}, [%a];\n    add.u64 %a, %a, %s;"
    mix = "\n".join(f"    xor.b32 %r8, %r8, %c{number};" for number in range(4 * UNROLL))
    step = "\n".join(one_load.format(_vector(each)) for each in range(UNROLL)) + "\n" + mix
    tail = one_load.format(_vector(0)) + "\n" + "\n".join(f"    xor.b32 %r8, %r8, %c{part};" for part in range(4))
    begin = WHO + _load("%b", "target", True) + _load("%a", "source", True) + _load("%n", "count")
    begin += _at_first("%a") + "    mov.u32 %r8, 0;\n"
    end = """
    setp.ne.u32 %p, %r8, 0x6A09E667;
    @%p bra LEAVE;
    st.global.u32 [%b], %r8;
LEAVE:"""
    parameters = ".param .u64 target, .param .u64 source, .param .u64 count"
    return _entry("read", parameters, begin + _each(step, tail) + end, f"    .reg .b32 %c<{4 * UNROLL}>;\n")


def _write() -> str:
    """Write ``count`` elements of 16 bytes, each word of them ``value``."""
    store = "    st.global.v4.u32 [%b], {%v0, %v1, %v2, %v3};\n    add.u64 %b, %b, %s;"
    begin = WHO + _load("%b", "target", True) + _load("%n", "count") + _at_first("%b")
    begin += "    ld.param.u32 %v0, [value];\n" + "".join(f"    mov.u32 %v{part}, %v0;\n" for part in (1, 2, 3))
    parameters = ".param .u64 target, .param .u64 count, .param .u32 value"
    return _entry("write", parameters, begin + _each("\n".join([store] * UNROLL), store))


# %r4 = the word that belongs at place %r5, with the seed in %r6; never 0. See kernels.pattern_word.
WORD = """
    mad.lo.u32 %r4, %r5, 0x9E3779B1, %r6;
    shr.u32 %r7, %r4, 16;
    xor.b32 %r4, %r4, %r7;
    mul.lo.u32 %r4, %r4, 0x85EBCA6B;
    shr.u32 %r7, %r4, 13;
    xor.b32 %r4, %r4, %r7;
    max.u32 %r4, %r4, 1;
"""


def _words(body: str) -> str:
    """Go through %n words at %a, one at a time: %y is its address, %r4 the word that belongs there."""
    return f"""
LOOP:
    setp.ge.u64 %p, %i, %n;
    @%p bra DONE;
    cvt.u32.u64 %r5, %i;
{WORD}
    shl.b64 %y, %i, 2;
    add.u64 %y, %a, %y;
{body}
    add.u64 %i, %i, %t;
    bra LOOP;
DONE:"""


def _pattern() -> str:
    """Write words that depend on their place and on ``seed``."""
    begin = WHO + _load("%a", "target", True) + _load("%n", "words") + "    ld.param.u32 %r6, [seed];\n"
    parameters = ".param .u64 target, .param .u64 words, .param .u32 seed"
    return _entry("pattern", parameters, begin + _words("    st.global.u32 [%y], %r4;"))


def _verify() -> str:
    """Compare words with the pattern. At ``result``: the first wrong place (u64), wrong words (u32), zeros (u32)."""
    begin = WHO + _load("%a", "source", True) + _load("%n", "words") + "    ld.param.u32 %r6, [seed];\n"
    begin += _load("%b", "result", True) + "    mov.u32 %r8, 0;\n    mov.u32 %r9, 0;\n    mov.u64 %e, -1;\n"
    # Each thread counts for itself: a healthy buffer costs no atomic operation at all.
    body = """
    ld.global.u32 %r10, [%y];
    setp.eq.u32 %q, %r10, %r4;
    @%q bra NEXT;
    add.u32 %r8, %r8, 1;
    min.u64 %e, %e, %i;
    setp.eq.u32 %q, %r10, 0;
    @%q add.u32 %r9, %r9, 1;
NEXT:"""
    end = """
    setp.eq.u32 %p, %r8, 0;
    @%p bra LEAVE;
    red.global.min.u64 [%b], %e;
    red.global.add.u32 [%b+8], %r8;
    red.global.add.u32 [%b+12], %r9;
LEAVE:"""
    parameters = ".param .u64 source, .param .u64 words, .param .u32 seed, .param .u64 result"
    return _entry("verify", parameters, begin + _words(body) + end)


def _chase() -> str:
    """In block number ``block`` alone: follow ``steps`` pointers from ``start``, each read before the next is known.

    The last one goes to ``target``, so that the loads can't be left away.
    """
    body = f"""
    mov.u32 %r1, %ctaid.x;
    ld.param.u32 %r2, [block];
    setp.ne.u32 %p, %r1, %r2;
    @%p bra DONE;
{_load("%a", "start")}{_load("%b", "target", True)}
    ld.param.u32 %r3, [steps];
LOOP:
    ld.global.u64 %a, [%a];
    sub.u32 %r3, %r3, 1;
    setp.ne.u32 %p, %r3, 0;
    @%p bra LOOP;
    st.global.u64 [%b], %a;
DONE:"""
    parameters = ".param .u64 start, .param .u32 steps, .param .u32 block, .param .u64 target"
    return _entry("chase", parameters, body)


def module() -> bytes:
    """All kernels in one text."""
    return (HEAD + _hold() + _copy() + _read() + _write() + _pattern() + _verify() + _chase()).encode() + b"\0"
