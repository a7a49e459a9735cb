"""Kernel names for people: what is the same in all of them goes."""

from __future__ import annotations

import re

from gpuhost_cli.explain_text import printable

_NOISE = re.compile(
    r"^void |\(anonymous namespace\)::|at::native::|at::cuda::|c10::|std::|cutlass::device_kernel<|"
    r"(?:::)?operator\(\)\(\)(?: const)?(?:::)?|(?:::)?\{lambda\([^)]*\)#\d+\}(?:::)?|\(at::TensorIteratorBase ?&\)"
)


def short(name: str, width: int) -> str:
    """At most ``width`` characters, no control characters, the telling part first."""
    text = printable(_NOISE.sub("", name.encode("utf-8", "replace").decode()))
    return text if len(text) <= width else f"{text[: width - 1]}…"
