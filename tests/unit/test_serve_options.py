"""The command line: what it means, and what it refuses before anything is asked or measured."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from gpuhost.documents import make_head
from gpuhost_cli.main import main, parser
from gpuhost_cli.run import InputError
from gpuhost_cli.serve_check import plan_of
from gpuhost_cli.serve_client import Ask, Endpoint, base_url, body_of
from gpuhost_cli.serve_documents import Dialect, GoldenAnswer, GoldenSet, Parameters, ServeCheck
from gpuhost_cli.serve_read import as_json, load
from gpuhost_cli.serve_session import Plan

URL = "http://gpu-a:8000"
SECRET = "sk-very-secret-7"


def plan(*argv: str, **environment: str) -> Plan:
    return plan_of(parser().parse_args(["serve-check", *argv]), environment)


@pytest.fixture
def golden(tmp_path: Path) -> Path:
    path = tmp_path / "golden.json"
    head = make_head("serve_golden", "h", "r")
    path.write_text(as_json(GoldenSet(head, "m", "chat", 64, (GoldenAnswer("a", "b", "stop"),))))
    return path


@pytest.fixture
def before(tmp_path: Path) -> Path:
    path = tmp_path / "before.json"
    parameters = Parameters("chat", 128, 256, "built-in 1", 1, 0.0, 0, 60.0)
    head = make_head("serve_check", "h", "r")
    document = ServeCheck(head, "", URL, "m", "complete", None, "", parameters, Dialect(), (), ())
    path.write_text(as_json(document))
    return path


def test_defaults() -> None:
    made = plan(URL)
    assert str(made.endpoint.url) == "http://gpu-a:8000/v1"
    assert (made.concurrency, made.wait_s, made.max_errors, made.golden) == ((1, 2, 10, 64), 900.0, 0, None)
    assert made.parameters == Parameters("chat", 128, 256, "built-in 1", 1, 0.0, 0, 60.0)


@pytest.mark.parametrize(
    ("given", "base"),
    [
        ("http://h:8000", "http://h:8000/v1"),
        ("http://h:8000/", "http://h:8000/v1"),
        ("https://h/llm/v1/", "https://h/llm/v1"),
        ("http://h/v1/chat/completions", "http://h/v1"),
        ("http://h/v1/models", "http://h/v1"),
        ("http://[::1]:8000", "http://[::1]:8000/v1"),
    ],
)
def test_urls(given: str, base: str) -> None:
    assert str(base_url(given)) == base


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("gpu-a:8000", "is no URL such as"),
        ("ftp://gpu-a", "is no URL such as"),
        (f"http://me:{SECRET}@gpu-a", "the URL holds a password"),
        ("http://gpu-a/v1?x=1", "leave out what follows the path"),
    ],
)
def test_urls_that_are_none(given: str, says: str) -> None:
    with pytest.raises(InputError) as caught:
        plan(given)
    assert says in str(caught.value)
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["--concurrency", "1,0"], "has to be 1 at least"),
        (["--concurrency", "1,1"], "has a number twice"),
        (["--concurrency", "a"], "is no whole number"),
        (["--wait", "0"], "0 s is no time to wait"),
        (["--stall", "nan"], "'nan' is no number from 0 on"),
        (["--tolerance", "-1"], "is no number from 0 on"),
        (["--log", "a", "--unit", "b"], "not allowed with"),
        (["--api-key", SECRET], "ambiguous option: --api-key"),
    ],
)
def test_usage(argv: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        parser().parse_args(["serve-check", URL, *argv])
    assert caught.value.code == 2
    assert says in capsys.readouterr().err


def test_keys(tmp_path: Path) -> None:
    (tmp_path / "key").write_text(SECRET + "\n")
    assert plan(URL, "--api-key-file", str(tmp_path / "key")).endpoint.key == SECRET
    assert plan(URL, GPUHOST_API_KEY=SECRET).endpoint.key == SECRET
    assert plan(URL, "--api-key-env", "OTHER", OTHER=SECRET, GPUHOST_API_KEY="x").endpoint.key == SECRET
    assert plan(URL, OPENAI_API_KEY=SECRET).endpoint.key == ""  # not for every server on the network
    assert SECRET not in repr(plan(URL, GPUHOST_API_KEY=SECRET))


@pytest.mark.parametrize("text", ["", "two words", "line\nline", "schlüssel", "tab\there"])
def test_what_is_no_key(tmp_path: Path, text: str) -> None:
    (tmp_path / "key").write_text(text)
    with pytest.raises(InputError, match="key") as caught:
        plan(URL, "--api-key-file", str(tmp_path / "key"))
    assert not text or text not in str(caught.value)


def test_keys_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"\$OTHER is not set"):
        plan(URL, "--api-key-env", "OTHER")
    with pytest.raises(InputError, match="No such file"):
        plan(URL, "--api-key-file", str(tmp_path / "none"))


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (lambda d: ["--golden", str(d / "none.json")], "does not exist: record it while the server is good"),
        (lambda d: ["--golden", str(d / "golden.json"), "--golden-mode", "record"], "exists: compare with it"),
        (lambda d: ["--golden", str(d / "golden.json"), "--api", "completions"], "was recorded with --api chat"),
        (lambda d: ["--golden", str(d / "x/new.json"), "--golden-mode", "record"], "can't be written: there is no fo"),
        (lambda d: ["--golden-only"], "--golden-only needs --golden FILE"),
        (lambda d: ["-o", str(d)], "can't be written"),
        (lambda d: ["-o", str(d / "x/out.json")], "there is no folder"),
        (lambda d: ["-o", str(d / "before.json"), "--compare", str(d / "before.json")], "would overwrite"),
        (lambda d: ["--prompts", str(d / "none.txt")], "No such file"),
        (lambda d: ["--log-command", "ssh 'x"], "No closing quotation"),
    ],
)  # fmt: skip
def test_input(argv: Callable[[Path], list[str]], says: str, tmp_path: Path, golden: Path, before: Path) -> None:
    assert golden.exists()
    assert before.exists()
    with pytest.raises(InputError) as caught:
        plan(URL, *argv(tmp_path))
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (lambda d: [], "the server's URL is missing"),
        (lambda d: [URL, "--compare", str(d / "before.json")], "it has measured at concurrency none"),
        (lambda d: [URL, "--compare", str(d / "before.json"), "--max-tokens", "9"], "max_tokens was 128 then and is 9"),
        (lambda d: [URL, "--compare", str(d / "golden.json")], "schema is gpuhost.serve_golden, expected gpuhost"),
        (lambda d: [URL, "--golden", str(d / "before.json")], "schema is gpuhost.serve_check, expected gpuhost"),
        (lambda d: ["--after", str(d / "before.json")], "--after AFTER goes with --compare BEFORE"),
        (lambda d: [URL, "--after", "x", "--compare", "y"], "and without a URL"),
        (lambda d: [URL, "--golden", str(d / "golden.json"), "--golden-only", "--compare", str(d / "before.json")],
         "--golden-only leaves it out"),
    ],
)  # fmt: skip
def test_the_command_refuses_before_it_asks(
    argv: Callable[[Path], list[str]],
    says: str,
    tmp_path: Path,
    golden: Path,
    before: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert golden.exists()
    assert before.exists()
    assert main(["serve-check", *argv(tmp_path)]) == 2
    assert says in capsys.readouterr().err


def test_questions() -> None:
    chat = Endpoint(base_url(URL), "chat", "m")
    assert body_of(chat, Ask("hi", 5, Dialect())) == {
        "model": "m", "max_tokens": 5, "temperature": 0, "stream": True,
        "messages": [{"role": "user", "content": "hi"}],
        "stream_options": {"include_usage": True, "continuous_usage_stats": True}, "ignore_eos": True,
    }  # fmt: skip
    least = Dialect(usage=False, continuous_usage=False, ignore_eos=False)
    assert body_of(replace(chat, api="completions"), Ask("hi", 5, least, logprobs=True)) == {
        "model": "m", "max_tokens": 5, "temperature": 0, "stream": True, "prompt": "hi", "logprobs": 2,
    }  # fmt: skip
    golden = body_of(chat, Ask("hi", 5, Dialect(), past_the_end=False, logprobs=True))
    assert "ignore_eos" not in golden
    assert (golden["logprobs"], golden["top_logprobs"]) == (True, 2)


def test_documents_come_back(golden: Path) -> None:
    found, _ = load(golden, GoldenSet, "gpuhost.serve_golden")
    assert as_json(found) == golden.read_text()


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"schema_version": 2}, "version 2 of gpuhost.serve_golden, this gpuhost reads 1"),
        ({"max_tokens": "64"}, "max_tokens is '64'"),
        ({"answers": [{"prompt": "a"}]}, "answers[0] has no text"),
        ({"answers": {}}, "answers is {}"),
        ({"answers": [1]}, "answers[0] is no object"),
        ({"head": 1, "schema": "other"}, "the schema is other"),
    ],
)
def test_documents_that_are_none(golden: Path, change: dict[str, object], says: str) -> None:
    golden.write_text(json.dumps({**json.loads(golden.read_text()), **change}))
    with pytest.raises(ValueError) as caught:
        load(golden, GoldenSet, "gpuhost.serve_golden")
    assert says in str(caught.value)


@pytest.mark.parametrize("text", ["{", "[]", "7"])
def test_files_that_are_no_document(golden: Path, text: str) -> None:
    golden.write_text(text)
    with pytest.raises(ValueError, match=r"no JSON|the schema is"):
        load(golden, GoldenSet, "gpuhost.serve_golden")


def test_nan_is_refused() -> None:
    head = make_head("serve_golden", "h", "r")
    with pytest.raises(ValueError, match="not JSON compliant"):
        as_json(GoldenSet(head, "m", "chat", 64, (GoldenAnswer("a", "b", "stop", logprobs=(float("nan"),)),)))
