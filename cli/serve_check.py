"""``gpuhost serve-check``: from the options to the exit status."""

from __future__ import annotations

import argparse
import asyncio
import os
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gpuhost.causes import FINDINGS, GOOD, SAFE_STOP, cause
from gpuhost.documents import SCHEMA_PREFIX
from gpuhost_cli import records, serve_compare, serve_prompts, serve_read, serve_text
from gpuhost_cli.run import InputError
from gpuhost_cli.serve_client import Endpoint, base_url
from gpuhost_cli.serve_documents import GoldenSet, Parameters, ServeCheck
from gpuhost_cli.serve_golden import Limits
from gpuhost_cli.serve_load import answers_of
from gpuhost_cli.serve_logs import LogSource
from gpuhost_cli.serve_options import KEY_VARIABLE
from gpuhost_cli.serve_progress import Ticker
from gpuhost_cli.serve_session import GOLDEN_SCHEMA, Golden, Plan, Session

SCHEMA = SCHEMA_PREFIX + "serve_check"


def run(options: argparse.Namespace) -> int:
    """Check one server, or compare two files. Raises InputError."""
    if options.after:
        return _compare_files(options)
    if not options.url:
        raise InputError("the server's URL is missing, as http://gpu-a:8000")
    plan = plan_of(options, os.environ)
    before = _before(options, plan.parameters)
    session = Session(plan, Ticker(sys.stderr))
    interrupted = False
    try:
        asyncio.run(session.check())
    except (KeyboardInterrupt, asyncio.CancelledError):
        interrupted = True
    finally:
        session.ticker.clear()
    found = session.document("interrupted" if interrupted else session.end_state)
    if before is not None and found.state == "complete":
        found = session.with_comparison(before, options.compare.name, tolerance_of(options))
    sys.stdout.write(serve_read.as_json(found) if options.json else serve_text.render(found))
    if options.output:  # what was measured has been shown by now, if the disk is full
        _write(options.output, found)
    if found.cause:
        print(serve_text.fault(found), file=sys.stderr)
    return exit_status(found)


def exit_status(found: ServeCheck) -> int:
    """What a document ends with."""
    if found.state == "interrupted":
        return SAFE_STOP
    return cause(found.cause).exit_status if found.cause else GOOD


def plan_of(options: argparse.Namespace, environment: Mapping[str, str]) -> Plan:
    """What is to be done. Raises InputError."""
    try:
        url = base_url(options.url)
        lines = serve_prompts.load(options.prompts) if options.prompts else ()
        command = tuple(shlex.split(options.log_command))
        golden = _golden(options)
    except ValueError as error:
        raise InputError(str(error)) from error
    prompts = serve_prompts.Prompts(options.seed, options.prompt_words, lines)
    parameters = Parameters(
        options.api, options.max_tokens, options.prompt_words, prompts.name, options.seed, 0.0, options.requests,
        options.stall,
    )  # fmt: skip
    for path in (options.output, golden.path if golden and golden.known is None else None):
        _check_writable(path)
    if options.output and options.compare and options.output.resolve() == options.compare.resolve():
        raise InputError(f"--output would overwrite {options.compare}, which is compared with")
    if options.golden_only and not golden:
        raise InputError("--golden-only needs --golden FILE")
    return Plan(
        Endpoint(url, options.api, options.model, api_key(options, environment)),
        parameters,
        prompts,
        () if options.golden_only else options.concurrency,
        options.wait,
        options.max_errors,
        LogSource(options.log, options.unit, options.container, command),
        options.log_lines,
        options.label,
        golden,
        options.output,
    )


def _check_writable(path: Path | None) -> None:
    """Said before twenty minutes of measuring, not after them. Raises InputError."""
    if path is None:
        return
    folder = path.absolute().parent
    if path.is_dir() or not os.access(path if path.exists() else folder, os.W_OK):
        raise InputError(f"{path} can't be written" + ("" if folder.is_dir() else f": there is no folder {folder}"))


def api_key(options: argparse.Namespace, environment: Mapping[str, str]) -> str:
    """The key, or nothing. Raises InputError; no message holds any of it."""
    if options.api_key_file:
        try:
            key = options.api_key_file.read_text(encoding="ascii").strip()
        except (OSError, ValueError) as error:
            raise InputError(f"{options.api_key_file}: {getattr(error, 'strerror', None) or 'no key'}") from error
        where = str(options.api_key_file)
    else:
        where = f"${options.api_key_env or KEY_VARIABLE}"
        key = environment.get(options.api_key_env or KEY_VARIABLE, "").strip()
        if options.api_key_env and not key:
            raise InputError(f"{where} is not set")
    if not (key.isascii() and key.isprintable() and " " not in key) or (options.api_key_file and not key):
        raise InputError(f"{where} holds no key: one word is expected")
    return key


def _golden(options: argparse.Namespace) -> Golden | None:
    path: Path | None = options.golden
    if path is None:
        return None
    limits = Limits(options.golden_near_tie, options.golden_logprob, options.golden_common)
    if options.golden_mode == "record":
        if path.exists():
            raise ValueError(f"{path} exists: compare with it (--golden-mode compare), or remove it first")
        return Golden(path, None, limits, options.golden_accept)
    if not path.exists():
        raise ValueError(f"{path} does not exist: record it while the server is good, with --golden-mode record")
    known, _ = serve_read.load(path, GoldenSet, GOLDEN_SCHEMA)
    if known.api != options.api:
        raise ValueError(f"{path} was recorded with --api {known.api}")
    return Golden(path, known, limits)


def _before(options: argparse.Namespace, parameters: Parameters) -> ServeCheck | None:
    """The earlier run, checked before anything is measured. Raises InputError."""
    if not options.compare:
        return None
    if options.golden_only:
        raise InputError("--compare compares the load, --golden-only leaves it out")
    found, data = _load(options.compare)
    why = serve_compare.incomparable(data, parameters, options.concurrency) or serve_compare.too_few(
        found, {number: answers_of(options.requests, number) for number in options.concurrency}
    )
    if why:
        raise InputError(f"{options.compare} can't be compared: {why}")
    return found


def _load(path: Path) -> tuple[ServeCheck, dict[str, Any]]:
    try:
        return serve_read.load(path, ServeCheck, SCHEMA)
    except ValueError as error:
        raise InputError(str(error)) from error


def tolerance_of(options: argparse.Namespace) -> serve_compare.Tolerance:
    """What may be worse."""
    return serve_compare.Tolerance(options.tolerance, options.ttft_tolerance)


def _compare_files(options: argparse.Namespace) -> int:
    if options.url or not options.compare:
        raise InputError("--after AFTER goes with --compare BEFORE, and without a URL")
    (before, data), (after, _) = _load(options.compare), _load(options.after)
    answers = {level.concurrency: len(level.answers) if level.complete else 0 for level in after.levels}
    why = serve_compare.incomparable(data, after.parameters, list(answers)) or serve_compare.too_few(before, answers)
    if after.cause not in (None, "serve.slower"):  # a server that has failed is not as good as before
        print(serve_text.fault(after), file=sys.stderr)
        return exit_status(after)
    if why:
        raise InputError(f"{options.compare} can't be compared with {options.after}: {why}")
    found = serve_compare.compare(before, after, options.compare.name, tolerance_of(options))
    if options.json or options.output:
        text = serve_read.as_json(serve_compare.with_comparison(after, found))
        if options.output:
            _write_text(options.output, text)
        if options.json:
            sys.stdout.write(text)
    if not options.json:
        print("\n".join(serve_text.comparison(found)))
    return FINDINGS if found.worse else GOOD


def _write(path: Path, found: ServeCheck) -> None:
    _write_text(path, serve_read.as_json(found))


def _write_text(path: Path, text: str) -> None:
    try:
        records.write_text(path, text)
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from error
