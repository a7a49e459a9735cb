"""The trigger, against a small server of the tests' own on this machine."""

from __future__ import annotations

import argparse
import json
import socket
import threading
import time
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from gpuhost_cli import main as command
from gpuhost_cli import trace_server


@contextmanager
def server(answers=None, delay=0.0):
    """Answers by path, as (status, text); what was asked is in ``asked``."""
    answers = answers or {}

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            asked.append((self.path, json.loads(body) if body else None, self.headers.get("Authorization")))
            time.sleep(delay)
            status, text = answers.get(self.path, (200, "ok"))
            self.send_response(status)
            if 300 <= status < 400:
                self.send_header("Location", "/login")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            with suppress(BrokenPipeError):  # the client gave up, which is what a test is about
                self.wfile.write(text.encode())

        def do_GET(self):
            self.do_POST()

        def log_message(self, *_):
            pass

    asked: list[tuple[str, object, str | None]] = []
    made = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=made.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{made.server_port}", asked
    finally:
        made.shutdown()
        made.server_close()


def run(capsys, *arguments):
    status = command.main(["trace", *map(str, arguments)])
    said = capsys.readouterr()
    return status, said.out, said.err


def test_sglang_stops_by_itself(capsys):
    with server() as (url, asked):
        status, out, err = run(
            capsys, "--server", f"{url}/v1/", "--engine", "sglang", "--output-dir", "/data/traces", "--num-steps", 7
        )
    assert (status, err) == (0, "")
    body = {"activities": ["CPU", "GPU"], "output_dir": "/data/traces", "num_steps": 7}
    assert asked == [("/start_profile", body, None)]
    assert "SGLang profiles its next 7 steps and stops by itself." in out
    assert "It needs requests meanwhile" in out
    assert "one for each rank: /data/traces, named TIME-TP-RANK.trace.json.gz" in out
    assert "gpuhost trace FILES" in out


def test_sglang_for_some_time(capsys):
    with server() as (url, asked):
        run(capsys, "--server", url, "--engine", "sglang", "--seconds", "0.05", "--activities", "GPU")
    assert asked == [("/start_profile", {"activities": ["GPU"]}, None), ("/stop_profile", None, None)]


def test_vllm_is_started_and_stopped(capsys, monkeypatch):
    monkeypatch.setenv("OUR_KEY", "secret-1")
    with server() as (url, asked):
        status, out, _ = run(
            capsys, "--server", url, "--engine", "vllm", "--seconds", "0.05", "--api-key-env", "OUR_KEY"
        )
    assert status == 0
    assert asked == [("/start_profile", None, "Bearer secret-1"), ("/stop_profile", None, "Bearer secret-1")]
    assert "the folder that the server was started with, named *.pt.trace.json.gz" in out
    assert "Those named *async_llm* are of the front end, which has no work on a GPU." in out
    assert "secret-1" not in out


@pytest.mark.parametrize(
    ("engine", "answer", "words"),
    [
        ("vllm", (404, "{}"), "profiling is not enabled: start vLLM with VLLM_TORCH_PROFILER_DIR=/a/folder"),
        ("vllm", (404, "{}"), '"torch_profiler_dir": "/a/folder", "torch_profiler_with_stack": false}'),
        ("sglang", (404, "{}"), "HTTP 404: SGLang has this route always: is it another server, or a router?"),
        ("sglang", (302, ""), "HTTP 302: redirected to /login: name the server itself"),
        ("sglang", (401, "no"), "HTTP 401: the server wants an API key: --api-key-env NAME"),
        (
            "sglang",
            (400, "Profiling is already in progress."),
            "HTTP 400: another profile runs, /stop_profile ends it (Profiling is already in progress.)",
        ),
        (
            "vllm",
            (409, '{"error":{"message":"A profiling session is already active."}}'),
            "HTTP 409: another profile runs, /stop_profile ends it (",
        ),
        ("vllm", (500, "boom\x1b[31m" + 999 * "x"), "HTTP 500 (boom\\x1b[31mxxx"),
    ],
)
def test_what_the_server_refuses(capsys, engine, answer, words):
    with server({"/start_profile": answer}) as (url, asked):
        status, out, err = run(capsys, "--server", url, "--engine", engine, "--seconds", "0.05")
    assert (status, out) == (2, "")
    assert words in err
    assert f"{url}/start_profile: HTTP {answer[0]}" in err
    assert len(err) < 700
    assert len(asked) == 1  # nothing was started, so nothing is stopped


def test_a_profiler_that_can_not_be_stopped_is_told(capsys):
    with server({"/stop_profile": (500, "worker died")}) as (url, _):
        status, _, err = run(capsys, "--server", url, "--engine", "vllm", "--seconds", "0.05")
    assert status == 2
    assert "HTTP 500 (worker died)" in err
    assert f"the profiler may still be on, which slows the server: curl -X POST {url}/stop_profile" in err


def test_it_is_stopped_after_ctrl_c(capsys):
    made = argparse.ArgumentParser()
    trace_server.fill(made.add_argument_group())

    def interrupted(_):
        raise KeyboardInterrupt

    with server() as (url, asked):
        options = made.parse_args(["--server", url, "--engine", "vllm"])
        with pytest.raises(KeyboardInterrupt):
            trace_server.run(options, interrupted)
    assert [path for path, *_ in asked] == ["/start_profile", "/stop_profile"]


def test_no_answer(capsys, monkeypatch):
    with server(delay=1.5) as (url, _):
        monkeypatch.setattr(trace_server, "START_TIMEOUT_S", 0.2)
        status, _, err = run(capsys, "--server", url, "--engine", "vllm", "--seconds", "0.05")
        assert (status, err) == (
            2,
            f"gpuhost: {url}/start_profile: no answer within 0.2 s: is the server ready? curl {url}/health\n",
        )
        monkeypatch.setattr(trace_server, "START_TIMEOUT_S", 10)
        status, _, err = run(capsys, "--server", url, "--engine", "vllm", "--seconds", "0.05", "--timeout", "0.2")
        assert f"{url}/stop_profile: no answer within 0.2 s: --timeout S waits longer" in err
        assert "the profiler may still be on" in err


def test_nobody_listens(capsys):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
        status, _, err = run(capsys, "--server", url, "--engine", "sglang")
    assert status == 2
    assert f"{url}/start_profile: connection refused: nothing listens there: is the server up, the port right?" in err


def test_something_that_is_no_http_server(capsys):
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def answer():
            connection, _ = listening.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(b"SSH-2.0-OpenSSH\r\n")

        threading.Thread(target=answer, daemon=True).start()
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        status, _, err = run(capsys, "--server", url, "--engine", "sglang")
    assert status == 2
    assert f"gpuhost: {url}/start_profile: " in err


def test_a_proxy_is_not_asked(capsys, monkeypatch):
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    with server() as (url, _):
        assert run(capsys, "--server", url, "--engine", "sglang")[0] == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--server", "gpu1:30000"], "--server gpu1:30000: expected an address as http://gpu1:30000"),
        (["--server", "file:///etc/passwd", "--engine", "vllm"], "expected an address as http://gpu1:30000"),
        (["--server", "http://[::1", "--engine", "vllm"], "expected an address as http://gpu1:30000"),
        (["--server", "http://gpu1:99999999", "--engine", "vllm"], "expected an address as http://gpu1:30000"),
        (["--server", "http://gpu1:1", "--engine", "vllm", "--output-dir", "/x"], "--output-dir is SGLang's"),
        (["--server", "http://gpu1:1", "--engine", "vllm", "--timeout", "-1"], "--timeout -1: expected more than 0"),
        (["--server", "http://gpu1:1"], "--engine is missing: sglang or vllm"),
        (["--server", "http://gpu1:1", "--engine", "vllm", "--num-steps", "3"], "--num-steps is SGLang's"),
        (["--server", "http://gpu1:1", "--engine", "sglang", "--num-steps", "0"], "--num-steps 0: expected 1 or more"),
        (
            ["--server", "http://gpu1:1", "--engine", "sglang", "--num-steps", "3", "--seconds", "1"],
            "--num-steps and --seconds: give one of them",
        ),
        (["--server", "http://gpu1:1", "--engine", "vllm", "--seconds", "601"], "more than 0 and at most 600"),
        (
            ["--server", "http://gpu1:1", "--engine", "vllm", "--api-key-env", "NO_SUCH_KEY_HERE"],
            "--api-key-env NO_SUCH_KEY_HERE: this environment has no such variable",
        ),
    ],
)
def test_options_that_do_not_go_together(capsys, arguments, words):
    status, _, err = run(capsys, *arguments)
    assert status == 2
    assert words in err


@pytest.mark.parametrize("key", ["sk-hidden two", "sk-hidden\u20ac", "sk-hidden\nX-Other: 1"])
def test_a_key_that_is_none_is_refused_without_showing_it(capsys, monkeypatch, key):
    monkeypatch.setenv("OUR_KEY", key)
    with server() as (url, asked):
        status, out, err = run(capsys, "--server", url, "--engine", "vllm", "--api-key-env", "OUR_KEY")
    assert (status, asked) == (2, [])
    assert "--api-key-env OUR_KEY: it holds no key: one word is expected" in err
    assert "sk-hidden" not in out + err


def test_the_line_end_of_a_key_is_no_part_of_it(capsys, monkeypatch):
    monkeypatch.setenv("OUR_KEY", "secret-1\n")
    with server() as (url, asked):
        assert run(capsys, "--server", url, "--engine", "sglang", "--api-key-env", "OUR_KEY")[0] == 0
    assert asked[0][2] == "Bearer secret-1"


def test_a_password_in_the_address_is_refused_without_showing_it(capsys):
    status, _, err = run(capsys, "--server", "http://me:hidden@gpu1:1", "--engine", "vllm")
    assert status == 2
    assert "--server holds a user or a password" in err
    assert "hidden" not in err


def test_where_is_said_for_each_engine():
    assert "SGLANG_TORCH_PROFILER_DIR in the server's environment, else /tmp" in trace_server.where("sglang", None)
