"""The check ``decode`` on a real GPU: the step is the sum of its parts, casts follow the pool, in a minute."""

import importlib.util
import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gpu_checks.build_zipapp import build

VERSION_FILE = Path("/proc/driver/nvidia/version")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not VERSION_FILE.exists(), reason=f"no NVIDIA driver: {VERSION_FILE} does not exist"),
    pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason=f"{sys.executable} has no torch"),
]
LIMIT_S = 60.0


@pytest.fixture(scope="module")
def archive(tmp_path_factory):
    path = tmp_path_factory.mktemp("build") / "gpu_checks.pyz"
    build(path)
    return path


def measure(archive, *arguments):
    """Measurements by name without the tag, and the seconds of the whole command; all of it printed."""
    begin = time.monotonic()
    command = [sys.executable, str(archive), "decode", "--json", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
    seconds = time.monotonic() - begin
    found = json.loads(done.stdout)["measurements"]
    tag = next((each["name"].rpartition(".")[2] for each in found if "-tp" in each["name"]), "")
    seen = {each["name"].removesuffix(f".{tag}"): each for each in found}
    print(f"\n{' '.join(arguments)}: {tag}, {seconds:.1f} s")
    for name, each in seen.items():
        detail = each["detail"]
        words = [f"{key} {detail[key]}" for key in (
            "us_each", "share_of_step", "read_bytes", "read_gb_s", "share", "copies", "repeats_in_graph", "gb_s",
            "of_copy",
            "relative_error", "layers_built", "tokens_per_s", "of_graph_step", "message",
        ) if detail.get(key) is not None]  # fmt: skip
        value = "-" if each["value"] is None else f"{each['value']:.2f} {each['unit']}"
        print(f"{name}: {each['status']} {each['cause'] or ''} {value} [{each['method']}] {', '.join(words)}")
    whole = seen["decode"]["detail"]
    print({key: value for key, value in whole.items() if key not in ("parts", "gpus", "missing")})
    for row in whole.get("parts", []):
        print(f"  {row['part']:<14} {row['us']:>10.1f} us  {100 * row['share_of_sum']:5.1f} %")
    return seen, seconds


def test_a_step_is_the_sum_of_its_parts(archive):
    seen, seconds = measure(archive, "--model", "qwen3-30b-a3b")
    assert (seen["decode"]["status"], seen["decode"]["cause"]) == ("measured", None)
    assert 0.9 <= seen["decode.sum_of_step"]["value"] <= 1.1
    assert seconds < LIMIT_S
    errors = [name for name, each in seen.items() if each["status"] == "error"]
    assert errors == []
    parts = {name for name in seen if name.startswith("decode.part.")}
    assert {name for name in parts if seen[name]["status"] != "measured"} == {"decode.part.all_reduce"}
    details = {name.rpartition(".")[2]: seen[name]["detail"] for name in parts - {"decode.part.all_reduce"}}
    assert {name for name, each in details.items() if each["relative_error"] is None} == {"embedding", "sampling"}
    assert {name for name, each in details.items() if each["read_gb_s"] is not None} == {
        "qkv", "attention", "o", "router", "experts_up", "experts_down", "lm_head",
    }  # fmt: skip


def test_casts_reach_the_rate_of_a_copy_and_follow_the_pool(archive):
    seen, _ = measure(archive, "--model", "qwen3-30b-a3b", "--context", "1024")
    assert seen["decode.probe.cast.kernel.of_copy"]["value"] >= 0.85
    for way in ("kernel", "torch"):
        assert seen[f"decode.probe.cast.{way}.ratio"]["detail"]["of_pool_ratio"] == pytest.approx(1, abs=0.05)
        large, context = (seen[f"decode.probe.cast.{way}.{what}"]["value"] for what in ("pool_large", "context"))
        assert large > 20 * context


def test_quick_is_the_step_alone(archive):
    seen, _ = measure(archive, "--quick")
    assert set(seen) == {"decode", "decode.step"}


@pytest.mark.parametrize(
    "arguments",
    [
        ("--model", "glm-5", "--tp", "8"),
        ("--model", "deepseek-v3", "--tp", "8", "--batch", "16"),
        ("--model", "llama-3-8b", "--batch", "64"),
        ("--model", "qwen3-30b-a3b", "--tp", "4", "--batch", "64", "--context", "2048"),
    ],
    ids=lambda each: each[1],
)
def test_other_models(archive, arguments):
    seen, seconds = measure(archive, *arguments)
    assert seen["decode"]["status"] == "measured", seen["decode"]["detail"]["message"]
    assert 0.85 <= seen["decode.sum_of_step"]["value"] <= 1.15
    assert seconds < LIMIT_S


def test_the_step_repeats(archive):
    """What a gate holds against a baseline of 15 %."""
    values = [measure(archive, "--quick")[0]["decode.step"]["value"] for _ in range(3)]
    assert max(values) / min(values) < 1.05
