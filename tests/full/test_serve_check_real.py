"""serve-check and trace against real servers with a tiny model of random weights, made here: nothing is downloaded.

Looked for on PATH, or in the folders that GPUHOST_TEST_SERVERS names (a virtual environment's bin; several with colons
between them): ``transformers`` (pip install 'transformers[serving]') and ``vllm``, of a build for the CPU or for GPUs.
"""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from gpuhost_cli.main import main
from gpuhost_cli.serve_options import KEY_VARIABLE
from gpuhost_cli.serve_prompts import GOLDEN, built_in
from tests.integration.serve_fixture import Result

FOLDERS = os.environ.get("GPUHOST_TEST_SERVERS", "")
KEY = "key-of-the-tests"
WAIT_S = 400
BEHIND = ("nice", "-n", "5", "env")
"""The server, behind the client: its threads spin, and would leave the client no core of a small machine."""
MOST_LATE_MS = 50.0
"""At p99. Later than that it is no measurement."""
MAKE_MODEL = """
import json, sys
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM, set_seed

set_seed(7)
plain = Tokenizer(models.BPE())
plain.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
plain.decoder = decoders.ByteLevel()
plain.train_from_iterator(json.load(sys.stdin), trainers.BpeTrainer(
    vocab_size=1200, special_tokens=["<s>", "</s>"], initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    show_progress=False,
))
tokenizer = PreTrainedTokenizerFast(tokenizer_object=plain, bos_token="<s>", eos_token="</s>")
tokenizer.chat_template = "{% for m in messages %}{{ m['content'] }} {% endfor %}"
tokenizer.save_pretrained(sys.argv[1])
model = Qwen2ForCausalLM(Qwen2Config(
    vocab_size=len(tokenizer), hidden_size=256, intermediate_size=512, num_hidden_layers=4, num_attention_heads=4,
    num_key_value_heads=2, max_position_embeddings=2048, bos_token_id=0, eos_token_id=1, tie_word_embeddings=False,
))
for number in range(len(tokenizer)):  # words alone: one letter again and again would be damage, rightly
    text = tokenizer.decode([number]).strip()
    if number < 2 or len(set(text)) < 3 or not text.isalpha():
        model.lm_head.weight.data[number] = 0
model.save_pretrained(sys.argv[1])
"""
"""Each prompt has other tokens, which a tokenizer with a vocabulary of its own would not give: all the same unknown
one, or (transformers 5 makes the tokenizer after the model's type) none at all."""


@dataclass(frozen=True)
class Kind:
    """A program, and what is different between them. ``metrics``, ``profiler``, ``key``: it has these."""

    program: str
    options: tuple[str, ...]
    needs: str
    """What it can't serve without, as Python's import has it."""
    model: str = ""
    """By this name out of the cache, where a server lists nothing else; if empty, from the model's folder."""
    environment: tuple[str, ...] = ()
    metrics: bool = False
    profiler: bool = False
    key: bool = False


KINDS = (
    Kind(
        "transformers",
        ("--device", "cpu"),
        "accelerate, fastapi, uvicorn, openai",
        "tests/tiny",
        ("OMP_NUM_THREADS=1",),
    ),
    Kind(
        "vllm",
        ("--enforce-eager", "--max-model-len", "2048", "--gpu-memory-utilization", "0.2", "--api-key", KEY),
        "vllm",
        metrics=True,
        profiler=True,
        key=True,
    ),
)


@dataclass(frozen=True)
class Server:
    """One that runs, and the first check of it, which began before it listened."""

    kind: Kind
    process: subprocess.Popen[bytes]
    url: str
    folder: Path
    first: Result

    def run(self, *options: str) -> Result:
        return check(self.url, self.folder, *options)


def check(url: str, folder: Path, *options: str) -> Result:
    output = folder / "out.json"
    output.unlink(missing_ok=True)
    log = ["--log", str(folder / "server.log"), "--wait", str(WAIT_S), "-o", str(output)]
    small = ["--concurrency", "1,2", "--requests", "10", "--max-tokens", "32"]
    status, out, err = command("serve-check", url, *log, *small, *options)
    return Result(status, out, err, json.loads(output.read_text()) if output.exists() else {})


def command(*arguments: str) -> tuple[int, str, str]:
    with redirect_stdout(io.StringIO()) as out, redirect_stderr(io.StringIO()) as err:
        status = main(list(arguments))
    return status, out.getvalue(), err.getvalue()


def found(kind: Kind) -> Path:
    """The server's program; skips the tests where there is none that can serve."""
    path = shutil.which(kind.program, path=FOLDERS or None)
    if not path:
        pytest.skip(f"no {kind.program} on PATH: GPUHOST_TEST_SERVERS names the folder that has it")
    python = Path(path).with_name("python")
    probe = subprocess.run(
        [str(python), "-c", f"import torch, {kind.needs}; from transformers import Qwen2ForCausalLM"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if probe.returncode != 0:
        pytest.skip(f"{python} can't serve with {kind.program}: {probe.stderr.strip().splitlines()[-1:]}")
    return Path(path)


def make_model(python: Path, folder: Path) -> Path:
    texts = [*GOLDEN, *(built_in(1, number, 256) for number in range(200))]
    argv = [str(python), "-c", MAKE_MODEL, str(folder)]
    subprocess.run(argv, check=True, timeout=300, input=json.dumps(texts).encode(), env=dict(os.environ))
    return folder


@contextmanager
def started(argv: list[str], folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """In a process group of its own: what vLLM's server has started goes on when only the server is killed."""
    more = {
        "HF_HOME": str(folder),
        "HF_HUB_OFFLINE": "1",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_NO_USAGE_STATS": "1",
    }
    with (
        (folder / "server.log").open("wb") as handle,
        subprocess.Popen(
            argv, stdout=handle, stderr=subprocess.STDOUT, env={**os.environ, **more}, start_new_session=True
        ) as process,
    ):
        try:
            yield process
        finally:
            kill(process)


def kill(process: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


@pytest.fixture(scope="module", params=KINDS, ids=lambda kind: kind.program)
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    kind: Kind = request.param
    program = found(kind)
    folder = tmp_path_factory.mktemp(kind.program)
    model = make_model(program.with_name("python"), folder / "hub/models--tests--tiny/snapshots/0")
    ref = folder / "hub/models--tests--tiny/refs/main"
    ref.parent.mkdir()
    ref.write_text("0")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    argv = [
        *BEHIND,
        *kind.environment,
        str(program),
        "serve",
        kind.model or str(model),
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
        *kind.options,
    ]
    if kind.profiler:
        profiler = {"profiler": "torch", "torch_profiler_dir": str(folder), "torch_profiler_with_stack": False}
        argv += ["--profiler-config", json.dumps(profiler)]
    url = f"http://127.0.0.1:{port}"
    with pytest.MonkeyPatch.context() as patch, started(argv, folder) as process:
        patch.setenv(KEY_VARIABLE, KEY)
        golden = ["--golden", str(folder / "golden.json"), "--golden-accept"]
        first = check(url, folder, *golden, "--golden-mode", "record")
        assert first.status == 0, first.err
        (folder / "out.json").rename(folder / "before.json")
        yield Server(kind, process, url, folder, first)


def test_it_was_waited_for(server: Server) -> None:
    assert server.first.document["waited"][0]["state"] == "connection refused"


def test_figures_and_golden_answers(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    golden = ["--golden", str(server.folder / "golden.json")]
    compare = ["--compare", str(server.folder / "before.json"), "--tolerance", "60", "--ttft-tolerance", "400"]
    second = server.run(*golden, *compare, "--seed", "2")
    with capsys.disabled():
        print("\n" + second.out)
    assert second.status == 0, second.out + second.err
    assert second.document["golden"]["cause"] is None
    for level in second.document["levels"]:
        assert {(item["output_tokens"], item["finish"]) for item in level["answers"]} == {(32, "length")}
        assert level["tokens_by"] == "usage"
        assert level["tpot_ms"]["p50"] > 0
        assert level["prompt_tokens_median"] > 100


def test_what_is_refused(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    if server.kind.key:
        monkeypatch.setenv(KEY_VARIABLE, "another")
        wrong = server.run()
        assert (wrong.status, wrong.document["cause"]) == (2, "serve.unauthorized")
        monkeypatch.setenv(KEY_VARIABLE, KEY)
        wrong = server.run("--model", "no-such-model")
        assert (wrong.status, wrong.document["cause"]) == (2, "serve.wrong_model")
        wrong = server.run("--prompt-words", "4000")
        assert (wrong.status, wrong.document["cause"]) == (2, "serve.rejected")
        assert "maximum context length is 2048" in " ".join(wrong.err.split())


def own_figures(url: str) -> dict[tuple[str, str], float]:
    """vLLM's own histograms: sum and count."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=20) as answer:
        lines = answer.read().decode().splitlines()
    matches = (re.match(r"vllm:(\w+)_(sum|count)\{[^}]*\} (\S+)", line) for line in lines)
    return {(match[1], match[2]): float(match[3]) for match in matches if match}


def test_figures_against_the_servers_own(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    """By vLLM's clock, in its own process. Its warm-up answers are in it, which are 1 in 50 of the tokens."""
    if not server.kind.metrics:
        pytest.skip(f"{server.kind.program} has no figures of its own")
    before = own_figures(server.url)
    level = server.run("--concurrency", "2", "--requests", "30", "--max-tokens", "128", "--seed", "3").level()
    after = own_figures(server.url)
    late_ms = level["client"]["lag_p99_ms"]
    if late_ms > MOST_LATE_MS:
        pytest.skip(f"this machine is too busy: the client was {late_ms:.0f} ms late at p99")

    def mean_ms(name: str) -> float:
        return 1e3 * (after[name, "sum"] - before[name, "sum"]) / (after[name, "count"] - before[name, "count"])

    tpot, ttft = (statistics.fmean(item[name] for item in level["answers"]) for name in ("tpot_ms", "ttft_ms"))
    its_tpot, its_ttft = mean_ms("inter_token_latency_seconds"), mean_ms("time_to_first_token_seconds")
    with capsys.disabled():
        print(f"\nmean TPOT {tpot:.3f} ms, vLLM says {its_tpot:.3f}; mean TTFT {ttft:.2f} ms, vLLM says {its_ttft:.2f}")
    assert tpot == pytest.approx(its_tpot, rel=0.05)
    assert its_ttft * 0.9 < ttft < its_ttft * 1.5 + 20  # HTTP and the tokenizer are in ours alone


def test_a_profile(server: Server) -> None:
    if not server.kind.profiler:
        pytest.skip(f"{server.kind.program} has no profiler")
    code = "import sys; from gpuhost_cli.main import main; sys.exit(main(sys.argv[1:]))"
    argv = [sys.executable, "-c", code, "serve-check", server.url, "--concurrency", "2", "--max-tokens", "512"]
    with subprocess.Popen([*argv, "--seed", "4", "--stall", str(WAIT_S)], stdout=subprocess.PIPE) as load:
        assert load.stdout is not None
        time.sleep(3)
        status, out, err = command("trace", "--server", server.url, "--engine", "vllm", "--seconds", "0.5")
        load.terminate()
        load.communicate()
    assert (status, err) == (0, "")
    files = sorted(server.folder.glob("*.pt.trace.json.gz"))
    assert [".async_llm." in path.name for path in files].count(False) == 1
    assert len(files) == 2
    status, out, err = command("trace", *map(str, files))
    if status == 2:  # a build for the CPU
        assert "no work of a GPU in its" in err
        assert "a server that runs on the CPU has none" in err
    assert "the trace of vLLM's front end" in " ".join((out + err).split())


def test_it_is_killed_while_it_answers(server: Server) -> None:
    """The last one: there is no server after it."""
    killed: list[float] = []

    def end() -> None:
        killed.append(time.monotonic())
        kill(server.process)

    threading.Timer(6, end).start()
    gone = server.run("--concurrency", "2", "--requests", "200", "--max-tokens", "512", "--seed", "5")
    assert time.monotonic() - killed[0] < 5
    assert (gone.status, gone.document["cause"]) == (1, "serve.gone"), gone.err
    assert "last lines of" in gone.err
    assert main(["serve-check", server.url, "--wait", "2"]) == 2
