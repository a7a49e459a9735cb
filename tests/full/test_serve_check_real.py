"""serve-check against real servers with a tiny model of random weights, made here: nothing is downloaded.

Looked for on PATH, or in the folder that GPUHOST_TEST_SERVERS names (a virtual environment's bin): ``transformers``
(pip install 'transformers[serving]', runs on a CPU) and ``vllm`` (needs a GPU).
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gpuhost_cli.main import main
from tests.integration.serve_fixture import Result, check

FOLDER = os.environ.get("GPUHOST_TEST_SERVERS", "")
MAKE_MODEL = """
import sys
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, set_seed

set_seed(7)
names = ["<unk>", "<s>", "</s>"] + [a + b for a in "bdfgklmnprstvz" for b in
         ("a", "e", "i", "o", "u", "an", "en", "in", "on", "un", "ar", "er", "ir", "or", "ur", "al", "el", "il")]
plain = Tokenizer(models.WordLevel({name: number for number, name in enumerate(names)}, unk_token="<unk>"))
plain.pre_tokenizer = pre_tokenizers.Whitespace()
tokenizer = PreTrainedTokenizerFast(tokenizer_object=plain, unk_token="<unk>", bos_token="<s>", eos_token="</s>")
tokenizer.chat_template = "{% for m in messages %}{{ m['content'] }} {% endfor %}"
tokenizer.save_pretrained(sys.argv[1])
LlamaForCausalLM(LlamaConfig(
    vocab_size=len(names), hidden_size=128, intermediate_size=256, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2, max_position_embeddings=2048, bos_token_id=1, eos_token_id=2,
)).save_pretrained(sys.argv[1])
"""


def program(name: str) -> str:
    """The server's program; skips the test where there is none."""
    found = shutil.which(name, path=FOLDER or None)
    if not found:
        pytest.skip(f"no {name} on PATH: GPUHOST_TEST_SERVERS names the folder that has it")
    python = Path(found).resolve().with_name("python")
    probe = subprocess.run(
        [str(python), "-c", "import torch, transformers"], capture_output=True, text=True, check=False
    )
    if probe.returncode != 0:
        pytest.skip(f"{python} has no torch and transformers: {probe.stderr.strip().splitlines()[-1:]}")
    return found


@contextmanager
def served(argv: list[str], log: Path) -> Iterator[None]:
    with (
        log.open("w") as handle,
        subprocess.Popen(
            argv, stdout=handle, stderr=subprocess.STDOUT, env={**os.environ, "HF_HUB_OFFLINE": "1"}
        ) as process,
    ):
        try:
            yield
        finally:
            process.kill()


def tiny_model(python: Path, folder: Path) -> Path:
    subprocess.run([str(python), "-c", MAKE_MODEL, str(folder)], check=True, timeout=300, env=dict(os.environ))
    return folder


@pytest.mark.parametrize("server", ["transformers", "vllm"])
def test_a_real_server(server: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = program(server)
    model = tiny_model(Path(found).resolve().with_name("python"), tmp_path / "model")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    argv = [found, "serve", str(model), "--host", "127.0.0.1", "--port", str(port)]
    argv += ["--device", "cpu"] if server == "transformers" else ["--gpu-memory-utilization", "0.2"]
    golden = ["--golden", str(tmp_path / "golden.json"), "--golden-accept"]
    options = ["--concurrency", "1,2", "--requests", "10", "--max-tokens", "32", "--wait", "400", "--stall", "60"]

    def run(*more: str) -> Result:
        log = ["--log", str(tmp_path / "server.log")]
        return check(f"http://127.0.0.1:{port}", tmp_path, capsys, *options, *golden, *log, *more)

    with served(argv, tmp_path / "server.log"):
        first = run("--golden-mode", "record")
        assert first.status == 0, first.err
        (tmp_path / "out.json").rename(tmp_path / "before.json")
        second = run("--compare", str(tmp_path / "before.json"), "--tolerance", "50", "--ttft-tolerance", "300")
        assert second.status == 0, second.out + second.err
    with capsys.disabled():
        print("\n" + second.out)
    assert second.document["golden"]["cause"] is None
    for level in second.document["levels"]:
        assert {item["output_tokens"] for item in level["answers"]} == {32}
        assert level["tokens_by"] == "usage"
        assert level["tpot_ms"]["p50"] > 0
    assert main(["serve-check", f"http://127.0.0.1:{port}", "--wait", "2"]) == 2  # it is gone
