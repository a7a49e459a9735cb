"""Questions to ``gpuhost ceiling`` as a user asks them, and small configs to ask about."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from gpuhost_cli import ceiling
from gpuhost_cli.ceiling_report import Ceiling
from gpuhost_cli.ceiling_sum import Step, Term

TAKEN_AT = "2026-01-31T12:00:00Z"

DENSE: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 1024,
    "num_hidden_layers": 4,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "intermediate_size": 4096,
    "vocab_size": 32000,
    "torch_dtype": "bfloat16",
}
EXPERTS: dict[str, Any] = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "hidden_size": 1024,
    "num_hidden_layers": 4,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "head_dim": 64,
    "vocab_size": 32000,
    "torch_dtype": "bfloat16",
    "num_experts": 16,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 512,
}


def options(*argv: str) -> argparse.Namespace:
    """What the command line makes of these arguments."""
    made = argparse.ArgumentParser()
    ceiling.add_parser(made.add_subparsers(dest="command"))
    return made.parse_args(["ceiling", *argv])


def ask(*argv: str) -> Ceiling:
    """The answer to a question."""
    return ceiling.answer(options(*argv), TAKEN_AT)


def glm(*argv: str) -> Ceiling:
    return ask("--preset", "glm-5", *argv)


def of_config(folder: Path, config: dict[str, Any], *argv: str, quant: dict[str, Any] | None = None) -> Ceiling:
    """The answer for a config.json (and a hf_quant_config.json beside it)."""
    path = folder / "config.json"
    path.write_text(json.dumps(config))
    if quant is not None:
        (folder / "hf_quant_config.json").write_text(json.dumps(quant))
    return ask("--config", str(path), *argv)


def term(found: Ceiling, key: str) -> Term:
    return next(each for each in found.terms if each.key == key)


def batch(found: Ceiling, size: int) -> Step:
    return next(each for each in found.steps if each.batch == size)


def read_gb(found: Ceiling) -> dict[tuple[str, str], float]:
    """GB that one GPU reads for a token, by component and format."""
    return {(part.component, part.format): part.token_bytes / 1e9 for part in found.parts}
