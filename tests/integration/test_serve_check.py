"""``gpuhost serve-check`` against a server whose every delay and fault is known."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from gpuhost.documents import json_schema
from gpuhost_cli import records
from gpuhost_cli.main import main
from gpuhost_cli.serve_documents import GoldenSet, ServeCheck
from tests.integration import plain_llm_client
from tests.integration.serve_fixture import Result, Running, check, fake_server

Check = Callable[..., Result]


@pytest.fixture(autouse=True)
def _no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GPUHOST_API_KEY", raising=False)


@pytest.fixture
def against(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Check:
    """Start a server with these options, check it with those, once."""

    def run(server: list[str], *options: str) -> Result:
        with fake_server(tmp_path / "server.log", *server) as running:
            return check(running, tmp_path, capsys, "--log", str(running.log), *options)

    return run


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Running]:
    """A server of 50 ms to the first token and 10 ms a token."""
    with fake_server(tmp_path / "server.log", "--ttft", "0.05", "--itl", "0.01") as running:
        yield running


def near(expected: float, slack_ms: float) -> Any:
    """Within 5 %, or a few ms where a busy machine is late."""
    return pytest.approx(expected, rel=0.05, abs=slack_ms)


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


# --- a healthy server


def test_figures_are_those_of_the_server(server: Running, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = check(server, tmp_path, capsys, "--concurrency", "1,4", "--requests", "8", "--max-tokens", "64")
    assert (found.status, found.document["state"], found.document["cause"]) == (0, "complete", None)
    for level, streams in zip(found.document["levels"], (1, 4), strict=True):
        assert level["tpot_ms"]["p50"] == near(10, 2)
        assert level["ttft_ms"]["p50"] == near(50, 15)
        seconds = sum(item["seconds"] for item in level["answers"])
        assert level["output_tok_s"] == pytest.approx(streams * 8 * 64 / seconds, rel=0.15)
        assert level["stream_tok_s"] == pytest.approx(1000 / level["tpot_ms"]["p50"], rel=1e-3)
        assert {(item["output_tokens"], item["tokens_by"], item["finish"]) for item in level["answers"]} == {
            (64, "usage", "length")
        }
        assert level["prompt_tokens_median"] == 260
    itl = found.level()["itl_ms"] or found.level()["gap_ms"]
    assert itl["p50"] == near(10, 4)
    assert "tiny at http://127.0.0.1" in found.out
    assert max(len(line) for line in found.out.splitlines()) <= 100


def test_the_document_has_its_schema(against: Check, tmp_path: Path) -> None:
    golden = ["--golden", str(tmp_path / "golden.json"), "--golden-mode", "record"]
    found = against([], *golden, "--json", "--label", "6.8.0-90")
    jsonschema.validate(found.document, json_schema(ServeCheck))
    jsonschema.validate(json.loads((tmp_path / "golden.json").read_text()), json_schema(GoldenSet))
    assert json.loads(found.out) == found.document
    assert (found.document["schema"], found.document["label"]) == ("gpuhost.serve_check", "6.8.0-90")


def test_an_independent_client_agrees(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In turns, against one server: what changes on this machine meanwhile changes for both. Where other work comes
    between, once more: figures that are wrong by themselves agree at no time. Strictly, and at 64: tests/full."""
    options = ["--concurrency", "4", "--requests", "8", "--max-tokens", "40"]
    ours, theirs = [], []
    with fake_server(tmp_path / "server.log", "--ttft", "0.2", "--itl", "0.02") as running:
        for turn in range(8):
            level = check(running, tmp_path, capsys, *options).level()
            ours.append((level["ttft_ms"]["p50"], level["tpot_ms"]["p50"], level["output_tok_s"]))
            other = plain_llm_client.measure(running.port, 4, 8, 40)
            theirs.append((other.ttft_ms, other.tpot_ms, other.tok_s))
            if turn and middle(ours[-2:]) == pytest.approx(middle(theirs[-2:]), rel=0.05):
                return
    pytest.fail(f"never within 5 % in two turns: {ours} and {theirs}")


def middle(turns: list[tuple[float, float, float]]) -> list[float]:
    """The mean of each figure."""
    return [statistics.fmean(values) for values in zip(*turns, strict=True)]


@pytest.mark.parametrize(
    ("options", "per_chunk", "says"),
    [
        (["--tokens-per-chunk", "4"], 3.76, "tokens, so there is no ITL; pauses between arrivals p50 "),
        (
            ["--tokens-per-chunk", "4", "--first-packed"],
            4.0,
            "a chunk carries 4.00 tokens, so there is no ITL; pauses between arrivals p50 ",
        ),
        (["--tokens-per-chunk", "4", "--usage-at-end"], 3.76, "the first chunk is taken for one token"),
    ],
)
def test_several_tokens_a_chunk_fake_no_itl(against: Check, options: list[str], per_chunk: float, says: str) -> None:
    found = against(["--itl", "0.01", *options], "--max-tokens", "64")
    level = found.level()
    assert level["itl_ms"] is None
    assert level["tokens_per_chunk"] == pytest.approx(per_chunk, abs=0.01)
    assert level["tpot_ms"]["p50"] == near(10, 2)
    assert level["gap_ms"]["p50"] == near(40, 8)
    assert says in " ".join(found.out.split())


def test_without_usage_chunks_are_counted_and_that_is_said(against: Check) -> None:
    found = against(["--itl", "0.01", "--no-usage"])
    assert found.level()["tokens_by"] == "chunks"
    assert found.level()["output_tokens"] == 96
    assert found.level()["tpot_ms"]["p50"] == near(10, 2)
    assert "no usage from this server" in found.out


@pytest.mark.parametrize(
    ("refuses", "dialect"),
    [
        ("ignore_eos", {"usage": True, "continuous_usage": True, "ignore_eos": False}),
        ("continuous_usage_stats", {"usage": True, "continuous_usage": False, "ignore_eos": True}),
        ("ignore_eos,continuous_usage_stats", {"usage": True, "continuous_usage": False, "ignore_eos": False}),
        ("ignore_eos,stream_options", {"usage": False, "continuous_usage": False, "ignore_eos": False}),
    ],
)
def test_options_that_a_server_refuses_are_left_out(against: Check, refuses: str, dialect: dict[str, bool]) -> None:
    found = against(["--refuses", refuses, "--ends-after", "20"])
    assert found.status == 0
    assert {name: found.document["dialect"][name] for name in dialect} == dialect
    assert "the server refused an option and was asked without it: Unexpected fields" in " ".join(found.out.split())
    ended = "4 of 4 answers ended before 24 tokens (the server refuses ignore_eos)" in " ".join(found.out.split())
    assert ended != dialect["ignore_eos"]


def test_a_server_that_never_says_done_is_taken_as_it_is(against: Check) -> None:
    found = against(["--fault", "no_done", "--good-first", "0"])
    assert (found.status, found.document["dialect"]["done"]) == (0, False)
    assert "ends its streams without [DONE]" in found.out


def test_completions_and_a_prompts_file(against: Check, tmp_path: Path) -> None:
    (tmp_path / "prompts.txt").write_text("one two three\nfour five\n")
    found = against([], "--api", "completions", "--prompts", str(tmp_path / "prompts.txt"))
    assert found.status == 0
    assert {item["prompt_tokens"] for item in found.level()["answers"]} == {7, 6}
    assert "2 prompts for 4 answers: repeated ones may come out" in " ".join(found.out.split())


def test_the_prefix_cache_is_seen(against: Check) -> None:
    assert "96 % of the prompts' tokens came out of the server's prefix cache" in against(["--cached", "250"]).out


def test_a_key_is_sent_and_shown_nowhere(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with fake_server(tmp_path / "server.log", "--key", "sk-0123456789") as running:
        without = check(running, tmp_path, capsys)
        monkeypatch.setenv("GPUHOST_API_KEY", "sk-0123456789")
        found = check(running, tmp_path, capsys)
    assert (without.status, without.document["cause"]) == (2, "serve.unauthorized")
    assert "HTTP 401: Incorrect API key provided" in " ".join(without.err.split())
    assert found.status == 0
    assert "sk-0123456789" not in found.out + found.err + json.dumps(found.document)


def test_a_server_that_repeats_the_key_does_not_make_us_show_it(
    against: Check, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPUHOST_API_KEY", "sk-9876543210")
    found = against(["--key", "sk-0123456789"])
    assert found.document["cause"] == "serve.unauthorized"
    assert "HTTP 401: Incorrect API key provided: Bearer (the key)" in " ".join(found.err.split())
    assert "sk-9876543210" not in found.out + found.err + json.dumps(found.document)


# --- waiting


def test_waiting_says_what_is_seen(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nobody listens, then it loads, then it answers."""
    port = free_port()
    with fake_server(tmp_path / "server.log", "--opens-after", "1.5", "--loading", "4", port=port) as running:
        found = check(running, tmp_path, capsys)
    states = {item["state"]: item["seconds"] for item in found.document["waited"]}
    assert found.status == 0
    assert list(states)[:2] == ["connection refused", "HTTP 503 (Loading model)"]
    assert states["connection refused"] >= 1
    assert states["HTTP 503 (Loading model)"] >= 1
    assert "waiting 0:00 of at most 1:00: connection refused" in found.err
    assert "HTTP 503 (Loading model), for 0:00 now" in found.err
    assert "ready after 0:0" in found.out


def test_a_server_that_never_comes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = check(f"http://127.0.0.1:{free_port()}", tmp_path, capsys, "--wait", "1.5")
    assert (found.status, found.document["state"], found.document["cause"]) == (2, "stopped", "serve.not_ready")
    assert "not ready after 0:01: connection refused for 0:0" in found.err


def test_a_server_that_loads_for_ever(against: Check) -> None:
    found = against(["--loading", "99"], "--wait", "1.5")
    assert (found.status, found.document["cause"]) == (2, "serve.not_ready")
    assert "HTTP 503 (Loading model) for 0:0" in found.err


def test_a_first_answer_that_never_comes(against: Check) -> None:
    found = against(["--fault", "stall", "--fault-at", "0", "--good-first", "0"], "--wait", "2")
    assert (found.status, found.document["cause"]) == (2, "serve.not_ready")
    assert "model listed, first answer not yet there for 0:0" in " ".join(found.err.split())


def test_a_unit_that_has_failed_ends_the_waiting(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "bin"
    folder.mkdir()
    for name, out in (("systemctl", "failed\\nfailed\\noom-kill\\n"), ("journalctl", "Killed process 7 (python)\\n")):
        (folder / name).write_text(f"#!/bin/sh\nprintf '{out}'\n")
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    begun = time.monotonic()
    found = check(f"http://127.0.0.1:{free_port()}", tmp_path, capsys, "--unit", "vllm", "--wait", "300")
    assert time.monotonic() - begun < 60
    assert (found.status, found.document["cause"]) == (1, "serve.gone")
    assert "while waiting (connection refused): unit vllm is failed (failed, oom-kill)" in " ".join(found.err.split())
    assert "last lines of unit vllm:\n  | Killed process 7 (python)" in found.err


@pytest.mark.parametrize(
    ("server", "options", "code", "says"),
    [
        (["--models", "a,b"], ["--model", "c"], "serve.wrong_model", "c is not served here; served: a, b"),
        (["--models", "a,b"], [], "serve.wrong_model", "--model has to say which one; served: a, b"),
        (["--fault", "html"], [], "serve.not_openai", "/v1/models answers '<html>It works!</html>'"),
        (["--refuses", "messages,model"], [], "serve.rejected", "HTTP 422: Unexpected fields"),
        (["--fault", "redirect"], [], "serve.rejected", "HTTP 307: to https://elsewhere.invalid/v1/models: name that"),
    ],
)
def test_what_can_not_be_asked(against: Check, server: list[str], options: list[str], code: str, says: str) -> None:
    found = against(server, *options)
    assert (found.status, found.document["cause"]) == (2, code)
    assert says in " ".join(found.err.split())


@pytest.mark.parametrize(
    ("server", "note"),
    [
        (["--fault", "no_list"], ""),
        (["--lists", "a,b"], "tiny answers, although this server lists only a, b"),
    ],
)
def test_a_model_that_is_named_is_asked_for_whatever_is_listed(against: Check, server: list[str], note: str) -> None:
    found = against(server, "--model", "tiny")
    assert found.status == 0, found.err
    assert note in " ".join(found.out.split())
    assert ("although" in found.out) == bool(note)


def test_no_list_and_no_name(against: Check) -> None:
    found = against(["--fault", "no_list"])
    assert (found.status, found.document["cause"]) == (1, "serve.server_error")
    assert "/v1/models: HTTP 500: Internal Server Error" in " ".join(found.err.split())


def test_a_name_that_is_not_known(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = check("http://no-such-host.invalid", tmp_path, capsys)
    assert (found.status, found.document["cause"]) == (2, "serve.not_ready")
    assert "the name no-such-host.invalid is not known here" in found.err


@pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl here to make a certificate")
def test_tls_is_verified(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A certificate that nobody vouches for ends the waiting at once; SSL_CERT_FILE vouches for it."""
    pem = tmp_path / "server.pem"
    make = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:prime256v1",
        "-nodes",
        "-days",
        "1",
    ]
    make += ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
    subprocess.run([*make, "-keyout", str(pem), "-out", str(tmp_path / "cert.pem")], check=True, capture_output=True)
    pem.write_text(pem.read_text() + (tmp_path / "cert.pem").read_text())
    with fake_server(tmp_path / "server.log", "--tls", str(pem)) as running:
        url = f"https://localhost:{running.port}"
        found = check(url, tmp_path, capsys)
        argv = [sys.executable, "-m", "gpuhost_cli.main", "serve-check", url, "--concurrency", "1", "--requests", "1"]
        environment = {**os.environ, "SSL_CERT_FILE": str(tmp_path / "cert.pem")}
        trusted = subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert (found.status, found.document["cause"]) == (2, "serve.not_ready")
    assert "TLS with localhost failed" in found.err
    assert trusted.returncode == 0, trusted.stderr


# --- faults: each ends the check at once, with the last log lines


@pytest.mark.parametrize(
    ("fault", "code", "says"),
    [
        ("gone", "serve.gone", "nobody listens on 127.0.0.1"),
        ("die_on_request", "serve.gone", "nobody listens on 127.0.0.1"),
        ("cut", "serve.broken_stream", "the server still answers"),
        ("endless", "serve.broken_stream", "and no end: 24 tokens were asked for"),
        ("no_done", "serve.broken_stream", "the stream ended without [DONE]"),
        ("no_finish", "serve.broken_stream", "neither a finish_reason nor [DONE] came, after 9 chunks with text"),
        ("not_json", "serve.broken_stream", "an event is no JSON"),
        ("empty", "serve.broken_stream", "the answer has no text (finish_reason length)"),
        ("stream_error", "serve.server_error", "an error in the stream: EngineCore encountered an issue"),
        ("stream_refused", "serve.rejected", "an error in the stream: HTTP 400: The prompt is empty"),
        ("http_500", "serve.server_error", "HTTP 500: CUDA error: an illegal memory access was encountered"),
        ("http_429", "serve.rejected", "HTTP 429: CUDA error"),
        ("bangs", "serve.garbled", "'!' 60 times in a row"),
        ("salad", "serve.garbled", "letters of "),
        ("replacement", "serve.garbled", "characters are replacement characters"),
    ],
)
def test_faults(against: Check, fault: str, code: str, says: str) -> None:
    begun = time.monotonic()
    found = against(["--fault", fault, "--fault-at", "9", "--good-first", "4"])
    assert time.monotonic() - begun < 15
    assert (found.document["state"], found.document["cause"]) == ("stopped", code)
    assert found.status == (2 if code == "serve.rejected" else 1)
    message = " ".join(found.err.split())
    assert says in message
    assert f"gpuhost: {code}: answer 3 of 4 at concurrency 1: " in message
    assert "| " in found.err
    assert "last lines of" in found.err
    assert found.document["log_lines"][-1].split()[1] in ("question", "the")
    assert "next: " in found.err
    assert len(found.level()["answers"]) == 2  # what was measured before it stays
    assert not found.level()["complete"]
    assert "broken off after 2 of 4 answers" in found.out


def test_the_log_says_why_the_process_is_gone(against: Check) -> None:
    found = against(["--fault", "gone", "--good-first", "3"], "--log-lines", "2")
    lines = [line for line in found.err.splitlines() if line.startswith("  | ")]
    assert len(lines) == 2
    assert lines[0].endswith("RuntimeError: CUDA error: device-side assert triggered")


@pytest.mark.parametrize("fault", ["stall", "pings"])
def test_a_stream_that_stands_still(against: Check, fault: str) -> None:
    """Comments that keep the connection open are no output."""
    begun = time.monotonic()
    found = against(["--fault", fault, "--good-first", "3"], "--stall", "1.5")
    assert time.monotonic() - begun < 15
    assert (found.status, found.document["cause"]) == (1, "serve.stalled")
    assert "then nothing for 1.5 s" in " ".join(found.err.split())
    assert found.level()["errors"] == {"stalled": 1}


def test_a_process_that_is_killed_under_many_streams(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """All of its connections break at once; one message says that it is gone."""
    with fake_server(tmp_path / "server.log", "--itl", "0.02", "--fault", "gone", "--good-first", "30") as running:
        options = ["--concurrency", "8", "--requests", "32", "--log", str(running.log)]
        found = check(running, tmp_path, capsys, *options)
    assert (found.status, found.document["cause"]) == (1, "serve.gone")
    assert found.err.count("gpuhost: ") == 1


def test_errors_are_counted_where_some_are_allowed(against: Check) -> None:
    found = against(["--fault", "http_500", "--good-first", "4"], "--max-errors", "2")
    assert (found.status, found.document["state"]) == (0, "complete")
    assert found.level()["errors"] == {"http_500": 2}
    assert "errors: 2 http_500" in found.out
    over = against(["--fault", "http_500", "--good-first", "4"], "--max-errors", "1")
    assert (over.status, over.level()["errors"]) == (1, {"http_500": 2})


# --- golden answers


@pytest.fixture
def golden(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., Result]:
    """Record with one server's options, compare with another's."""

    def run(first: list[str], second: list[str], *options: str) -> Result:
        path = tmp_path / "golden.json"
        path.unlink(missing_ok=True)
        for mode, server in (("record", first), ("compare", second)):
            with fake_server(tmp_path / "server.log", *server) as running:
                argv = ["--golden", str(path), "--golden-mode", mode, "--golden-only", *options]
                found = check(running, tmp_path, capsys, *argv)
            if mode == "record":
                assert found.status == 0
                assert "8 golden answers, 8 of them the same when asked again" in found.out
                assert path.exists()
        return found

    return run


def test_equal_answers_pass(golden: Callable[..., Result]) -> None:
    found = golden([], ["--itl", "0.002"])
    assert found.status == 0
    assert "8 of 8 golden answers are the same, logprobs have moved by 0.000 nats on average" in found.out
    assert found.document["levels"] == []


@pytest.mark.parametrize("api", ["chat", "completions"])
def test_a_near_tie_passes_and_a_sure_token_does_not(golden: Callable[..., Result], api: str) -> None:
    tie = golden([], ["--parts-at", "15"], "--api", api)
    assert (tie.status, tie.document["golden"]["rows"][0]["verdict"]) == (0, "near tie")
    sure = golden([], ["--parts-at", "16"], "--api", api)
    assert (sure.status, sure.document["cause"]) == (1, "serve.golden_differs")
    assert "parts after 16 of 64 tokens, lead 6.00 nats" in " ".join(sure.out.split())


def test_logprobs_that_have_moved_are_found(golden: Callable[..., Result]) -> None:
    found = golden([], ["--drift", "0.3"])
    assert (found.status, found.document["cause"]) == (1, "serve.golden_differs")
    assert "have moved by 0.300 nats on average, expected at most 0.125" in " ".join(found.err.split())


@pytest.mark.parametrize("fault", ["bangs", "salad", "loop", "replacement"])
def test_garbled_answers_are_found(golden: Callable[..., Result], fault: str) -> None:
    found = golden([], ["--fault", fault, "--good-first", "1"])
    assert (found.status, found.document["cause"]) == (1, "serve.garbled")
    assert "8 of 8 golden answers are garbled now" in " ".join(found.err.split())


def test_without_logprobs_the_beginnings_are_compared(golden: Callable[..., Result]) -> None:
    none = ["--fault", "refuse_logprobs", "--good-first", "0"]
    assert golden(none, none).status == 0
    found = golden(none, [*none, "--parts-at", "4"])
    assert (found.status, found.document["cause"]) == (1, "serve.golden_differs")
    assert "half of them agree for" in found.out
    assert "the server gives no logprobs" in found.out


def test_garbage_is_not_recorded_unless_it_is_accepted(against: Check, tmp_path: Path) -> None:
    path = tmp_path / "golden.json"
    options = ["--golden", str(path), "--golden-mode", "record", "--golden-only"]
    found = against(["--fault", "bangs", "--good-first", "1"], *options)
    assert (found.status, found.document["cause"], path.exists()) == (1, "serve.garbled", False)
    assert "8 of 8 answers are garbled, nothing was recorded" in found.out
    found = against(["--fault", "bangs", "--good-first", "1"], *options, "--golden-accept")
    assert found.status == 0
    assert "8 of 8 golden answers are garbled and were accepted (--golden-accept)" in found.out
    assert "nothing was recorded" not in found.out
    assert path.exists()


# --- before and after


def test_before_and_after(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    load = ["--requests", "12"]
    with fake_server(tmp_path / "server.log", "--ttft", "0.05", "--itl", "0.010") as running:
        assert check(running, tmp_path, capsys, *load).status == 0
        (tmp_path / "out.json").rename(tmp_path / "before.json")
        same = check(running, tmp_path, capsys, *load, "--compare", str(tmp_path / "before.json"))
    with fake_server(tmp_path / "server.log", "--ttft", "0.05", "--itl", "0.013") as running:
        slower = check(running, tmp_path, capsys, *load, "--compare", str(tmp_path / "before.json"))
    assert (same.status, same.document["comparison"]["worse"]) == (0, False)
    verdicts = {item["name"]: item["verdict"] for item in slower.document["comparison"]["changes"]}
    assert verdicts["tpot_median"] == verdicts["output_rate"] == "worse"
    assert (slower.status, slower.document["cause"]) == (1, "serve.slower")
    tpot = next(item for item in slower.document["comparison"]["changes"] if item["name"] == "tpot_median")
    assert tpot["low_percent"] <= tpot["change_percent"] <= tpot["high_percent"]
    assert tpot["change_percent"] == pytest.approx(30, abs=4)
    assert "TPOT, median" in slower.out
    files = ["serve-check", "--compare", str(tmp_path / "before.json"), "--after", str(tmp_path / "out.json")]
    assert main(files) == 1
    assert "TPOT, median" in capsys.readouterr().out
    assert main([*files, "--tolerance", "60"]) == 0
    assert main([*files, "--json"]) == 1
    assert '"gpuhost.serve_check"' in capsys.readouterr().out
    failed = slower.document | {"state": "stopped", "cause": "serve.gone", "sentence": "nobody listens", "levels": []}
    (tmp_path / "out.json").write_text(json.dumps(failed))
    assert main([*files, "--tolerance", "60"]) == 1
    assert "serve.gone: nobody listens" in capsys.readouterr().err


# --- broken off

# What a shell has started in the background ignores SIGINT, and its children do so too.
HEARS_INTERRUPTS = (
    "import os, signal, sys; signal.signal(signal.SIGINT, signal.SIG_DFL); os.execv(sys.argv[1], sys.argv[1:])"
)


def test_a_full_disk_does_not_take_away_what_was_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(records, "write_text", full)
    with fake_server(tmp_path / "server.log") as running:
        argv = ["serve-check", running.url, "--concurrency", "1", "--requests", "2", "--max-tokens", "8"]
        assert main([*argv, "-o", str(tmp_path / "out.json")]) == 2
        said = capsys.readouterr()
        assert "TPOT ms" in said.out
        assert "out.json: No space left on device" in said.err
        assert main([*argv, "--golden", str(tmp_path / "golden.json"), "--golden-mode", "record"]) == 2
        assert "golden.json: No space left on device" in capsys.readouterr().err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_what_was_measured_is_kept_when_it_is_interrupted(server: Running, tmp_path: Path, number: int) -> None:
    output = tmp_path / "out.json"
    argv = [sys.executable, "-m", "gpuhost_cli.main", "serve-check", server.url, "-o", str(output)]
    argv += ["--concurrency", "1,2", "--requests", "8", "--max-tokens", "60"]
    with subprocess.Popen(
        [sys.executable, "-c", HEARS_INTERRUPTS, *argv], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        end = time.monotonic() + 60
        while not output.exists() and time.monotonic() < end:  # written after each level
            time.sleep(0.05)
        assert json.loads(output.read_text())["state"] == "running"
        time.sleep(0.3)
        process.send_signal(number)
        out, err = process.communicate(timeout=30)
    found = json.loads(output.read_text())
    assert process.returncode == 5
    assert (found["state"], found["cause"]) == ("interrupted", None)
    assert [(level["concurrency"], level["complete"]) for level in found["levels"]] == [(1, True), (2, False)]
    assert "interrupted: what stands above was measured until then" in out
    assert "Traceback" not in err
