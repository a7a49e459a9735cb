"""``gpuhost ceiling`` as a command: text within 100 columns, JSON, exit statuses, one line for what can't be used."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from gpuhost_cli.ceiling_config import presets
from gpuhost_cli.main import main


def run(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str, str]:
    status = main(["ceiling", *argv])
    out, err = capsys.readouterr()
    return status, out, err


@pytest.mark.parametrize("preset", presets())
@pytest.mark.parametrize("mode", ["honest", "incident"])
def test_text_fits_a_terminal(capsys: pytest.CaptureFixture[str], preset: str, mode: str) -> None:
    argv = ("--preset", preset, "--mode", mode, "--context", "131072", "--measured-tok-s", "12.5")
    status, out, _ = run(capsys, *argv, "--concurrency", "48")
    assert status == 0
    assert [line for line in out.splitlines() if len(line) > 100 or line != line.rstrip()] == []
    assert "Taken for granted" in out
    assert "\n     48 " in out  # the measured concurrency stands among the batches


def test_json_has_everything(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run(capsys, "--preset", "glm-5", "--mode", "incident", "--json", "--measured-tok-s", "10.36")
    found: dict[str, Any] = json.loads(out, parse_constant=pytest.fail)
    assert status == 0
    assert (found["schema"], found["schema_version"], found["mode"]) == ("gpuhost.ceiling", 1, "incident")
    assert found["taken_at"].endswith("Z")
    assert f"{found['tok_s']:.1f} {found['overlap_tok_s']:.0f}" == "309.2 629"
    assert [step["batch"] for step in found["steps"]] == sorted([*(2**power for power in range(11)), 10])
    assert f"{found['efficiency']['share']:.4f}" == "0.0335"
    assert {item["source"] for item in found["inputs"]} == {"preset", "assumed"}
    assert all(math.isfinite(part["bytes_per_weight"]) for part in found["parts"])
    assert found["assumptions"][0] == {
        "text": "the sum that the incident's operator made: all of it NVFP4 and sharded, data sheet rates, 10 us",
        "option": "--mode",
    }


def test_a_rate_above_the_ceiling_is_a_finding(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run(capsys, "--preset", "glm-5", "--measured-tok-s", "200")
    assert status == 1
    assert "ABOVE the ceiling: one of the inputs is wrong" in out


def test_input_that_cant_be_used_is_one_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for argv in (("--config", str(tmp_path / "none.json")), ("--preset", "glm-5", "--measured", str(tmp_path))):
        status, out, err = run(capsys, *argv)
        assert (status, out) == (2, "")
        assert err.startswith("gpuhost: ")
        assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("argv", "text"),
    [
        (("--gpus", "0"), "0 is too few"),
        (("--gpus", "two"), "'two' is not a whole number"),
        (("--memory-efficiency", "1.2"), "'1.2' is more than all of it"),
        (("--gpu-memory-gb-s", "nan"), "'nan' is not a number above 0"),
        (("--measured-tok-s", "-1"), "'-1' is not a number above 0"),
        (("--flops", "fp9=1"), "'fp9' is no format"),
        (("--precision", "lm_head"), "'lm_head': a part and a format are wanted, as lm_head=bf16"),
        (("--config", "x"), "not allowed with argument --preset"),
    ],
)
def test_options_that_make_no_sense(capsys: pytest.CaptureFixture[str], argv: tuple[str, ...], text: str) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["ceiling", "--preset", "glm-5", *argv])
    assert caught.value.code == 2
    assert text in capsys.readouterr().err


def test_a_model_has_to_be_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["ceiling"])
    assert "one of the arguments --preset --config is required" in capsys.readouterr().err


def test_every_assumption_names_an_option_that_exists(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, "--preset", "glm-5", "--ep", "8", "--kv-pool-cast-tokens", "1000", "--json")
    with pytest.raises(SystemExit):
        main(["ceiling", "--help"])
    help_text = capsys.readouterr().out
    named = {name for item in json.loads(out)["assumptions"] for name in item["option"].split(", ") if name}
    assert len(named) >= 10
    assert [name for name in named if f"{name} " not in help_text] == []
