"""The command line of ``gpuhost ceiling``."""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import Any

from gpuhost_cli.ceiling_config import presets
from gpuhost_cli.ceiling_formats import FORMATS, VALUE_BYTES, Format
from gpuhost_cli.ceiling_hardware import BITS, modes, sheets
from gpuhost_cli.ceiling_model import COMPONENTS

EXAMPLES = """\
examples:
  gpuhost ceiling --preset glm-5
  gpuhost ceiling --preset glm-5 --mode incident --measured-tok-s 10.36
  gpuhost ceiling --config MODEL/config.json --tp 8 --context 32768 \\
      --measured runs/RUN/HOST/measurements.json
  gpuhost ceiling --config MODEL/config.json --hardware h200 --allreduce-us 15

Numbers of the machine: what is given here goes first, then what --measured has,
then what --mode assumes, then the sheet of --hardware; the answer says which.
It is arithmetic: no GPU and no host is asked, and nothing is written.
Exit status: 0 summed up, 1 the measured rate is above the ceiling, 2 input that
is not understood, or a layout that is not possible.
"""


def add_parser(commands: Any) -> None:
    """``gpuhost ceiling`` among the commands."""
    made = commands.add_parser(
        "ceiling",
        help="how fast a model can decode on a machine, on paper",
        description="What a decode step must at least read, send and wait for, and the tokens/s that follow.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    model = made.add_mutually_exclusive_group(required=True)
    model.add_argument("--preset", choices=list(presets()), metavar="NAME", help=", ".join(presets()))
    model.add_argument("--config", type=Path, metavar="FILE", help="the model's config.json")
    made.add_argument("--mode", choices=list(modes()), default="honest", help="set of assumptions (default: honest)")
    made.add_argument("--json", action="store_true", help="everything as JSON")
    _measured(made.add_argument_group("what was measured"))
    _machine(made.add_argument_group("machine"))
    _layout(made.add_argument_group("layout"))
    _weights(made.add_argument_group("weights"))
    _step(made.add_argument_group("step"))


def _measured(group: Any) -> None:
    group.add_argument(
        "--measured-tok-s", type=positive, metavar="RATE", help="output tokens/s of all streams: what share is it?"
    )
    group.add_argument("--concurrency", type=whole, default=1, metavar="N", help="streams it was measured with")
    group.add_argument("--measured", type=Path, metavar="FILE", help="a host's measurements.json")
    group.add_argument("--measured-target", metavar="NAME", help="whose, where it was measured in several containers")


def _machine(group: Any) -> None:
    names = list(sheets())
    group.add_argument(
        "--hardware", choices=names, default="reference", help="data sheet (default: reference, the incident's machine)"
    )
    group.add_argument("--gpus", type=whole, metavar="N", help="of the machine")
    group.add_argument("--gpu-memory-gb-s", type=positive, metavar="RATE", help="of one GPU, decimal GB/s")
    group.add_argument("--gpu-memory-gb", type=positive, metavar="SIZE", help="of one GPU: which batches fit?")
    group.add_argument("--memory-efficiency", type=share, metavar="SHARE", help="what kernels get of it, above 0 to 1")
    group.add_argument("--allreduce-us", type=positive, metavar="US", help="one all-reduce of a token's hidden state")
    group.add_argument(
        "--transfer", choices=["included", "added"], help="whether that time includes the transfer of the token"
    )
    group.add_argument("--link-gb-s", type=positive, metavar="RATE", help="from one GPU to another, one way")
    group.add_argument(
        "--flops", type=rate, action="append", default=[], metavar="[FORMAT=]TFLOPS",
        help="dense rate, as fp8=1979; without a format it is FP4's; may be repeated",
    )  # fmt: skip


def _layout(group: Any) -> None:
    component = {"action": "append", "default": [], "metavar": "PART"}
    group.add_argument("--tp", type=whole, metavar="N", help="tensor parallel (default: all GPUs, by --pp)")
    group.add_argument(
        "--ep",
        type=whole,
        default=1,
        metavar="N",
        help="so many of these share out whole experts; 1: each has a slice of all (default)",
    )
    group.add_argument("--pp", type=whole, default=1, metavar="N", help="pipeline stages (default: 1)")
    choices = [*COMPONENTS, "none"]
    group.add_argument(
        "--replicate", choices=choices, help=f"every rank has all of it: {', '.join(COMPONENTS)}", **component
    )
    group.add_argument("--shard", choices=[*choices, "all"], help="cut it although engines replicate it", **component)
    group.add_argument(
        "--expert-load", choices=["fullest", "even"], default="fullest",
        help="with --ep: wait for the fullest rank, or count as if all were the same (default: fullest)",
    )  # fmt: skip


def _weights(group: Any) -> None:
    group.add_argument(
        "--weights", choices=["checkpoint", *FORMATS], help="the checkpoint's precisions, or one format for all"
    )
    group.add_argument(
        "--precision", type=precision, action="append", default=[], metavar="PART=FORMAT", help="as lm_head=bf16"
    )
    group.add_argument(
        "--leave-out", choices=[*COMPONENTS, "none"], action="append", default=[], metavar="PART",
        help="don't count it as read",
    )  # fmt: skip
    group.add_argument(
        "--accept-field", action="append", default=[], metavar="NAME", help="a field of the config that changes nothing"
    )


def _step(group: Any) -> None:
    group.add_argument("--context", type=count, default=0, metavar="TOKENS", help="in each stream's cache (default: 0)")
    group.add_argument(
        "--kv-cache-dtype",
        choices=["auto", *VALUE_BYTES],
        default="auto",
        help="default: as the checkpoint asks, or its type",
    )
    group.add_argument("--index-key-bytes", type=positive, metavar="BYTES", help="an indexer's key in each layer")
    group.add_argument(
        "--kv-pool-cast-tokens", type=count, default=0, metavar="TOKENS",
        help="an FP8 pool of so many tokens is cast to BF16 in every step: what that costs",
    )  # fmt: skip
    group.add_argument("--extra-allreduces", type=count, default=0, metavar="N", help="beside two a layer")


DIGITS, LARGEST = 12, 1e12
"""Beyond these nothing is a count, a size or a rate, and tables and quotients of such numbers would be none."""


def positive(text: str) -> float:
    """A number above 0."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value > 0):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    if not 1 / LARGEST <= value <= LARGEST:
        raise argparse.ArgumentTypeError(f"{text!r} is no size that anything has")
    return value


def share(text: str) -> float:
    """A number above 0, at most 1."""
    value = positive(text)
    if value > 1:
        raise argparse.ArgumentTypeError(f"{text!r} is more than all of it: a share is above 0 and at most 1")
    return value


def count(text: str) -> int:
    """A whole number from 0."""
    if not text.isascii() or not text.isdigit():
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number")
    if len(text) > DIGITS:
        raise argparse.ArgumentTypeError(f"{text[:DIGITS]}... is more than anything has")
    return int(text)


def whole(text: str) -> int:
    """A whole number from 1."""
    value = count(text)
    if value == 0:
        raise argparse.ArgumentTypeError("0 is too few")
    return value


def rate(text: str) -> tuple[str, float]:
    """``fp8=1979``, or 1850 for FP4."""
    name, _, value = text.rpartition("=")
    name = name or "fp4"
    if name not in BITS:
        raise argparse.ArgumentTypeError(f"{name!r} is no format; known are {', '.join(BITS)}")
    return name, positive(value)


def precision(text: str) -> tuple[str, Format]:
    """``lm_head=bf16``."""
    name, _, made = text.partition("=")
    if name not in COMPONENTS or made not in FORMATS:
        raise argparse.ArgumentTypeError(
            f"{text!r}: a part and a format are wanted, as lm_head=bf16; parts are {', '.join(COMPONENTS)}; formats "
            f"{', '.join(FORMATS)}"
        )
    return name, FORMATS[made]
