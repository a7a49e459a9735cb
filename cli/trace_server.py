"""Starts and stops the torch profiler of a running SGLang or vLLM server over HTTP, and says where the trace will be.

SGLang: POST /start_profile with output_dir, num_steps and activities; with num_steps it stops by itself.
vLLM: POST /start_profile and /stop_profile without a body. The routes exist only where the server was started with a
folder for its traces, and the second answers when all of it is written, which takes minutes.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gpuhost.causes import GOOD
from gpuhost_cli.explain_text import printable
from gpuhost_cli.trace_model import TraceError

STEPS = 10
"""SGLang's steps: enough for a median, and some MB of trace a rank."""
SECONDS = 2.0
"""vLLM's profile: it can't count steps in every version. At 10 ms a step these are 200."""
START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 900.0
"""vLLM says that 100 requests of a 70 B model took it ten minutes to write."""
SAID_CHARS = 300
"""Of a server's answer that are shown."""


@dataclass(frozen=True)
class Engine:
    """What is different between the engines."""

    name: str
    not_there: str
    """What a 404 means, and the way out."""


ENGINES = {
    "sglang": Engine(
        "SGLang",
        "SGLang has this route always: is it another server, or a router? Give the address of the worker itself",
    ),
    "vllm": Engine(
        "vLLM",
        "profiling is not enabled: start vLLM with VLLM_TORCH_PROFILER_DIR=/a/folder in its environment; versions from "
        '0.13 on want --profiler-config \'{"profiler": "torch", "torch_profiler_dir": "/a/folder", '
        '"torch_profiler_with_stack": false}\' instead',
    ),
}


def fill(group: argparse._ArgumentGroup) -> None:
    """The options."""
    group.add_argument("--server", metavar="URL", help="as http://gpu1:30000; asked directly, no proxy is used")
    group.add_argument("--engine", choices=list(ENGINES), help="what runs there")
    group.add_argument(
        "--output-dir", metavar="DIR", help="a folder on the server's machine (SGLang; its own if not given)"
    )
    group.add_argument("--num-steps", type=int, metavar="N", help=f"SGLang: steps to profile (default: {STEPS})")
    group.add_argument("--seconds", type=float, metavar="S", help=f"profile that long instead (vLLM: {SECONDS:g})")
    group.add_argument("--activities", default="CPU,GPU", metavar="LIST", help="SGLang: default CPU,GPU")
    group.add_argument(
        "--api-key-env", metavar="NAME", help="environment variable with the server's API key, where it wants one"
    )
    group.add_argument(
        "--timeout", type=float, default=STOP_TIMEOUT_S, metavar="S", help="to write the trace (default: %(default)g)"
    )


def run(options: argparse.Namespace, sleep: Callable[[float], None] = time.sleep) -> int:
    """Start, wait, stop. Raises TraceError."""
    base = _checked(options)
    engine = ENGINES[options.engine]
    by_steps = options.engine == "sglang" and options.seconds is None
    seconds = options.seconds if options.seconds is not None else SECONDS
    body: dict[str, Any] | None = None
    if options.engine == "sglang":
        body = {"activities": [item.strip() for item in options.activities.split(",") if item.strip()]}
        body |= {"output_dir": options.output_dir} if options.output_dir else {}
        body |= {"num_steps": options.num_steps or STEPS} if by_steps else {}
    headers = _headers(options.api_key_env)
    _post(base, "/start_profile", body, headers, START_TIMEOUT_S, engine)
    if by_steps:
        print(f"{engine.name} profiles its next {options.num_steps or STEPS} steps and stops by itself.")
        print("It needs requests meanwhile: without any no step runs, and nothing is written.")
    else:
        print(f"{engine.name} profiles for {seconds:g} s, which slows it down meanwhile.", flush=True)
        try:
            sleep(seconds)
        finally:  # Ctrl-C too: a profiler that is left on slows the server until it is restarted
            _stop(base, headers, options.timeout, engine)
    print(where(options.engine, options.output_dir))
    return GOOD


def where(engine: str, folder: str | None) -> str:
    """Where the server writes it, and what to do with it."""
    if engine == "sglang":
        place = folder or "the folder of SGLANG_TORCH_PROFILER_DIR in the server's environment, else /tmp"
        name, more = "TIME-TP-RANK.trace.json.gz", ""
    else:
        place = "the folder that the server was started with"
        name = "*.pt.trace.json.gz"
        more = "Those named *async_llm* are of the front end, which has no work on a GPU.\n"
    return (
        f"The traces are on the server's machine, one for each rank: {place}, named {name}.\n{more}"
        "Next: copy those of this profile here, then: gpuhost trace FILES"
    )


def _stop(base: str, headers: dict[str, str], timeout: float, engine: Engine) -> None:
    try:
        _post(base, "/stop_profile", None, headers, timeout, engine)
    except TraceError as error:
        raise TraceError(
            f"{error}\n  the profiler may still be on, which slows the server: curl -X POST {base}/stop_profile"
        ) from error


def _checked(options: argparse.Namespace) -> str:
    try:
        parts = urllib.parse.urlsplit(options.server)
        usable = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:  # a bracket or a port that is none
        usable = False
    if not usable:
        raise TraceError(f"--server {options.server}: expected an address as http://gpu1:30000")
    if parts.username is not None or parts.password is not None:
        raise TraceError("--server holds a user or a password, which every process list shows: --api-key-env NAME")
    if options.engine is None:
        raise TraceError(f"--engine is missing: {' or '.join(ENGINES)}")
    if options.engine == "vllm" and options.num_steps is not None:
        raise TraceError("--num-steps is SGLang's: vLLM profiles for --seconds S")
    if options.engine == "vllm" and options.output_dir is not None:
        raise TraceError("--output-dir is SGLang's: vLLM writes to the folder that it was started with")
    if not 0 < options.timeout < float("inf"):
        raise TraceError(f"--timeout {options.timeout:g}: expected more than 0")
    if options.num_steps is not None and options.num_steps < 1:
        raise TraceError(f"--num-steps {options.num_steps}: expected 1 or more")
    if options.num_steps is not None and options.seconds is not None:
        raise TraceError("--num-steps and --seconds: give one of them")
    if options.seconds is not None and not 0 < options.seconds <= 600:
        raise TraceError(
            f"--seconds {options.seconds:g}: expected more than 0 and at most 600: traces grow by 50 MB a second"
        )
    return f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/').removesuffix('/v1')}"


def _headers(variable: str | None) -> dict[str, str]:
    found = {"Content-Type": "application/json"}
    if variable:
        key = os.environ.get(variable, "").strip()
        if not key:
            raise TraceError(f"--api-key-env {variable}: this environment has no such variable")
        if not (key.isascii() and key.isprintable() and " " not in key):  # http.client's own message would show it
            raise TraceError(f"--api-key-env {variable}: it holds no key: one word is expected")
        found["Authorization"] = f"Bearer {key}"
    return found


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A login page that is followed would pass for a profiler that has started, and would get the key."""

    def redirect_request(self, *_: Any) -> None:
        """None: the answer is an HTTPError."""


def _post(
    base: str, path: str, body: dict[str, Any] | None, headers: dict[str, str], timeout: float, engine: Engine
) -> None:
    """One call. Raises TraceError with what it means."""
    url = f"{base}{path}"
    data = json.dumps(body).encode() if body is not None else b""
    request = urllib.request.Request(url, data, headers, method="POST")  # noqa: S310 - http and https only
    # No proxy: an inference server is inside, and a proxy's own error would be taken for the server's.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), _NoRedirect)
    try:
        with opener.open(request, timeout=timeout) as answer:
            answer.read(SAID_CHARS)
    except urllib.error.HTTPError as error:
        raise TraceError(f"{url}: {_refused(error, engine)}") from error
    except TimeoutError as error:
        more = "--timeout S waits longer" if path == "/stop_profile" else "is the server ready? curl {base}/health"
        raise TraceError(f"{url}: no answer within {timeout:g} s: {more.format(base=base)}") from error
    except (urllib.error.URLError, http.client.HTTPException, OSError) as error:
        reason = getattr(error, "reason", error)
        if isinstance(reason, TimeoutError):
            raise TraceError(f"{url}: no connection within {timeout:g} s: is the address right?") from error
        if isinstance(reason, ConnectionRefusedError):
            raise TraceError(
                f"{url}: connection refused: nothing listens there: is the server up, the port right?"
            ) from error
        raise TraceError(f"{url}: {reason}") from error


def _refused(error: urllib.error.HTTPError, engine: Engine) -> str:
    try:
        said = printable(error.read(SAID_CHARS).decode("utf-8", "replace").strip())
    except OSError:
        said = ""
    if error.code == 404:
        return f"HTTP 404: {engine.not_there}"
    if 300 <= error.code < 400:
        return (
            f"HTTP {error.code}: redirected to {printable(error.headers.get('Location', '?'))}: name the server itself"
        )
    if error.code in (401, 403):
        return f"HTTP {error.code}: the server wants an API key: --api-key-env NAME"
    runs = error.code == 409 or "progress" in said.lower()
    more = ": another profile runs, /stop_profile ends it" if runs else ""
    return f"HTTP {error.code}{more}{f' ({said})' if said else ''}"
