"""The command line. Exit status 0: it ran, whatever was measured; 2: it was called wrongly, or could not write."""

from __future__ import annotations

import argparse
import io
import math
import os
import signal
import sys
from typing import NoReturn

from gpu_checks import __version__
from gpu_checks.measurement import document, render_json, render_text
from gpu_checks.registry import DEFAULT_TIMEOUT_SECONDS, REGISTRY, Options
from gpu_checks.runner import run_checks

RAN, USAGE = 0, 2
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def seconds_above_zero(text: str) -> float:
    value = float(text)
    if not (math.isfinite(value) and value > 0):
        raise argparse.ArgumentTypeError(f"{text!r} is not a time above 0 s")
    return value


def count(text: str) -> int:
    value = int(text)
    if value < 0:
        raise argparse.ArgumentTypeError(f"{text} is below 0")
    return value


def at_least_one(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is below 1")
    return value


def parser() -> argparse.ArgumentParser:
    """The options, which are the whole interface."""
    made = argparse.ArgumentParser(
        prog="gpu_checks", description="Measure what the GPUs do where the workload runs; judging is done elsewhere."
    )
    made.add_argument("checks", nargs="+", metavar="check", help="checks in this order; or: all (not decode), list")
    made.add_argument("--json", action="store_true", help="write the document as JSON")
    made.add_argument("--expect-gpus", type=count, metavar="N", help="how many GPUs the workload should see")
    made.add_argument(
        "--timeout", type=seconds_above_zero, default=DEFAULT_TIMEOUT_SECONDS, metavar="S",
        help="hard limit for each check, in seconds (default: %(default)g)",
    )  # fmt: skip
    made.add_argument("--quick", action="store_true", help="only what shows within seconds that something is broken")
    defaults = Options()
    made.add_argument(
        "--model", default=defaults.model, metavar="MODEL",
        help="for decode: a preset, a config.json, or its text (default: %(default)s)",
    )  # fmt: skip
    made.add_argument("--tp", type=at_least_one, default=defaults.tp, metavar="N", help="for decode: GPUs of a replica")
    made.add_argument(
        "--context", type=at_least_one, default=defaults.context, metavar="N",
        help="for decode: tokens in the cache of each sequence (default: %(default)s)",
    )  # fmt: skip
    made.add_argument(
        "--batch", type=at_least_one, default=defaults.batch, metavar="N", help="for decode: sequences decoded together"
    )
    made.add_argument("--run-id", default="", metavar="ID", help="the run this belongs to, written into the document")
    made.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    return made


def list_text() -> str:
    """The registry for a person."""
    rows = [f"{check.name:<16} {check.summary}" for check in REGISTRY.values()]
    return "\n".join(rows) + "\n"


def _write(text: str) -> int:
    """Write everything to stdout. A reader that went away, or a full disk, is no reason for a traceback."""
    try:
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(errors="backslashreplace")  # a terminal of another encoding
        sys.stdout.write(text)
        sys.stdout.flush()
    except OSError as error:
        # The interpreter flushes once more at its end and would complain there.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        sys.stderr.write(f"gpu_checks: the result could not be written: {error}\n")
        return USAGE
    return RAN


def _end(number: int, _frame: object) -> NoReturn:
    """Turn a signal into an exit, so that a running check is ended on the way out; another one does not stop that."""
    for each in ENDING:
        signal.signal(each, signal.SIG_IGN)
    raise SystemExit(128 + number)


def _run(arguments: argparse.Namespace) -> int:
    options = Options(
        expect_gpus=arguments.expect_gpus,
        quick=arguments.quick,
        model=arguments.model,
        tp=arguments.tp,
        context=arguments.context,
        batch=arguments.batch,
        timeout_s=arguments.timeout,
    )
    checks = [REGISTRY[name] for name in dict.fromkeys(arguments.checks)]
    content = document(run_checks(checks, options), arguments.run_id)
    return _write(render_json(content) if arguments.json else render_text(content))


def main(argv: list[str] | None = None) -> int:
    """Run the command; returns the exit status."""
    made = parser()
    try:
        arguments = made.parse_args(argv)
        if arguments.checks == ["list"] and not arguments.json:
            return _write(list_text())
        if arguments.checks == ["all"]:
            arguments.checks = [name for name, check in REGISTRY.items() if not check.by_name]
        unknown = [name for name in arguments.checks if name not in REGISTRY]
        if unknown:
            made.error(f"unknown check {', '.join(unknown)}: choose from {', '.join(REGISTRY)}; or all or list, alone")
        for number in ENDING:
            signal.signal(number, _end)
        return _run(arguments)
    except SystemExit as leaving:
        return leaving.code if isinstance(leaving.code, int) else USAGE
    except Exception as error:
        # A defect of ours. The caller parses our output, and a traceback would be in its way.
        sys.stderr.write(f"gpu_checks: internal error: {type(error).__name__}: {error}\n")
        return USAGE
