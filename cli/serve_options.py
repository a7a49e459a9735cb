"""The command line of ``gpuhost serve-check``. Apart from the command, so that reading it does not load the client."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from gpuhost_cli.serve_compare import TOLERANCE_PERCENT, TTFT_TOLERANCE_PERCENT
from gpuhost_cli.serve_golden import Limits

KEY_VARIABLE = "GPUHOST_API_KEY"
HELP = "measure what a running inference server really does, and whether its answers are still right"
EPILOG = f"""\
URL is the server's base, as http://gpu-a:8000 (/v1 is added). It is waited for: after
a change of kernel or driver a server compiles its GPU kernels again, which takes minutes.

  gpuhost serve-check http://gpu-a:8000 --golden good.json --golden-mode record -o before.json
  gpuhost serve-check http://gpu-a:8000 --golden good.json --compare before.json
  gpuhost serve-check http://gpu-a:8000 --concurrency 1,2 --unit vllm
  gpuhost serve-check http://gpu-a:8000 --log-command "ssh gpu-a journalctl -u vllm -n 20"
  gpuhost serve-check --after after.json --compare before.json    asks no server

The API key comes from ${KEY_VARIABLE}, --api-key-env or --api-key-file. OPENAI_API_KEY is
not read unless named: it is not for every server on the network.

Exit status: 0 good; 1 the server failed, answers are not what they were, or a figure
is worse than before; 2 usage, input, or no server came; 5 interrupted (what was
measured until then is in the JSON).
"""


def add_parser(commands: Any) -> argparse.ArgumentParser:
    """The command line."""
    made: argparse.ArgumentParser = commands.add_parser(
        "serve-check", help=HELP, description=HELP, epilog=EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument("url", nargs="?", metavar="URL", help="base URL of the server")
    server = made.add_argument_group("the server")
    server.add_argument("--model", default="", metavar="NAME", help="default: the one that is served")
    server.add_argument("--api", choices=["chat", "completions"], default="chat", help="default: chat")
    server.add_argument("--wait", type=_seconds, default=900.0, metavar="S", help="for the first answer (default: 900)")
    keys = server.add_mutually_exclusive_group()
    keys.add_argument("--api-key-env", metavar="NAME", help=f"variable with the key (default: {KEY_VARIABLE})")
    keys.add_argument("--api-key-file", type=Path, metavar="FILE", help="file with the key")
    load = made.add_argument_group("the load")
    load.add_argument(
        "--concurrency", type=_levels, default=(1, 2, 10, 64), metavar="N,N,..", help="streams (default: 1,2,10,64)"
    )
    load.add_argument(
        "--requests", type=_whole, default=0, metavar="N", help="answers each, at least (default: 12, or 2 a stream)"
    )
    load.add_argument("--max-tokens", type=_whole, default=128, metavar="N", help="of an answer (default: 128)")
    load.add_argument("--prompt-words", type=_whole, default=256, metavar="N", help="of a built-in one (default: 256)")
    load.add_argument("--seed", type=int, default=1, metavar="N", help="of the built-in prompts (default: 1)")
    load.add_argument("--prompts", type=Path, metavar="FILE", help="one a line; *.jsonl: a text or {'prompt': ..}")
    load.add_argument("--stall", type=_seconds, default=60.0, metavar="S", help="a stream without output (default: 60)")
    load.add_argument("--max-errors", type=_count, default=0, metavar="N", help="count so many first (default: 0)")
    _golden_options(made.add_argument_group("golden answers"))
    _compare_options(made.add_argument_group("comparison and output"))
    log_group = made.add_argument_group("the server's log, shown when it fails")
    logs = log_group.add_mutually_exclusive_group()
    logs.add_argument("--log", default="", metavar="FILE", help="a file here")
    logs.add_argument("--unit", default="", metavar="NAME", help="a systemd unit here")
    logs.add_argument("--container", default="", metavar="NAME", help="of Docker or Podman here")
    logs.add_argument("--log-command", default="", metavar="COMMAND", help="anything else, as over ssh or pct")
    log_group.add_argument("--log-lines", type=_whole, default=20, metavar="N", help="last lines (default: 20)")
    return made


def _golden_options(made: argparse._ArgumentGroup) -> None:
    limits = Limits()
    made.add_argument("--golden", type=Path, metavar="FILE", help="greedy answers of when it was known to be good")
    made.add_argument("--golden-mode", choices=["record", "compare"], default="compare", help="default: compare")
    made.add_argument("--golden-only", action="store_true", help="no load")
    made.add_argument("--golden-accept", action="store_true", help="record what looks garbled, as of a random model")
    made.add_argument(
        "--golden-near-tie",
        type=_number,
        default=limits.near_tie_nats,
        metavar="NATS",
        help=f"lead at which greedy decoding may part (default: {limits.near_tie_nats:g})",
    )
    made.add_argument(
        "--golden-logprob",
        type=_number,
        default=limits.logprob_difference,
        metavar="NATS",
        help=f"mean change of the logprobs in common (default: {limits.logprob_difference:g})",
    )
    made.add_argument(
        "--golden-common",
        type=_number,
        default=limits.common_share,
        metavar="SHARE",
        help=f"without logprobs: share that agrees in half of the answers (default: {limits.common_share:g})",
    )


def _compare_options(made: argparse._ArgumentGroup) -> None:
    made.add_argument("--compare", type=Path, metavar="BEFORE", help="JSON of an earlier run")
    made.add_argument("--after", type=Path, metavar="AFTER", help="with --compare: JSON of a later run, no server")
    made.add_argument(
        "--tolerance",
        type=_number,
        default=TOLERANCE_PERCENT,
        metavar="PERCENT",
        help=f"by which TPOT and rates may be worse (default: {TOLERANCE_PERCENT:g})",
    )
    made.add_argument(
        "--ttft-tolerance",
        type=_number,
        default=TTFT_TOLERANCE_PERCENT,
        metavar="PERCENT",
        help=f"by which TTFT may be worse (default: {TTFT_TOLERANCE_PERCENT:g})",
    )
    made.add_argument("-o", "--output", type=Path, metavar="FILE", help="the JSON, for a later --compare")
    made.add_argument("--json", action="store_true", help="print the JSON, not the table")
    made.add_argument("--label", default="", metavar="TEXT", help="what this run is, as the kernel's name")


def _number(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < 1e6:
        raise argparse.ArgumentTypeError(f"{text!r} is no number from 0 on")
    return value


def _seconds(text: str) -> float:
    value = _number(text)
    if value <= 0:
        raise argparse.ArgumentTypeError("0 s is no time to wait")
    return value


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number")
    return int(text)


def _whole(text: str) -> int:
    value = _count(text)
    if value == 0:
        raise argparse.ArgumentTypeError("has to be 1 at least")
    return value


def _levels(text: str) -> tuple[int, ...]:
    levels = [_whole(part.strip()) for part in text.split(",")]
    if len(set(levels)) < len(levels):
        raise argparse.ArgumentTypeError(f"{text!r} has a number twice")
    return tuple(levels)
