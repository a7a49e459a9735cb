"""``gpuhost gate --tags decode`` as a user calls it after a reboot: recorded first, then compared, with both kernels.

Ansible, modules and the shipped archive are real; the measurements are a file's: there is no GPU here.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from .test_gate_native import BASELINES, Machine, measurement

TAG = "glm-5-tp8-b1-c1024"
ORDER = '{"gpu_gate_decode": {"model": "glm-5", "tp": 8, "context": 1024}}'
pytestmark = [pytest.mark.play, pytest.mark.skipif(os.geteuid() != 0, reason="bind mounts need root")]


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """Its interpreter writes down what it was asked for."""
    made = Machine(tmp_path)
    python = tmp_path / "python"
    asked = f"open({str(tmp_path / 'asked.json')!r}, 'w').write(json.dumps(words))\n"
    python.write_text(python.read_text().replace("checks = ", asked + "checks = ", 1))
    return made


def told(machine: Machine, step_us: float) -> None:
    """From now on a step takes so long."""
    found = [
        measurement(f"decode.step.{TAG}", step_us, "us"),
        measurement(f"decode.part.attention.{TAG}", 900.0, "us"),
        measurement(f"decode.probe.dispatch.eager.{TAG}", 4.0, "us_shown"),
        measurement(f"decode.unexplained.{TAG}", 55.5, "us_difference"),
        measurement(f"decode.part.all_reduce.{TAG}", None, "us", status="not_measured", cause="decode.one_gpu"),
        measurement("decode", 4, "parts"),
    ]
    (machine.folder / "answers.json").write_text(json.dumps({"decode": found}))


def test_recorded_then_compared_then_slow(machine: Machine) -> None:
    told(machine, 9000.0)
    shown = machine.gate("--tags", "decode", "--check", "-e", ORDER)
    assert shown.status == 0, shown.err
    assert "would run decode on the host" in shown.err
    assert not (machine.folder / BASELINES).exists()

    first = machine.gate("--tags", "decode", "-e", ORDER)
    assert first.status == 0, first.err
    words = json.loads((machine.folder / "asked.json").read_text())
    assert words[-6:] == ["--model", "glm-5", "--tp", "8", "--context", "1024"]
    assert f"decode.step.{TAG}: 9000 us" in first.err
    assert f"decode.part.all_reduce.{TAG}: not_measured: decode.one_gpu" in first.err
    entry = machine.baselines["targets"]["host"][f"decode.step.{TAG}"]
    assert machine.baselines["origins"][entry["origin"]]["kernel"] == os.uname().release
    assert set(machine.baselines["targets"]["host"]) == {f"decode.step.{TAG}", f"decode.part.attention.{TAG}"}

    told(machine, 9200.0)
    good = machine.gate("--tags", "decode", "-e", ORDER)
    assert good.status == 0, good.err
    assert f"kernel {os.uname().release}, now {os.uname().release}" in good.err
    assert "+2.2 %" in good.err
    assert good.document("verdict")["status"] == "pass"
    assert {path.name for path in (good.folder / "gpu1").iterdir()} >= {"measurements-decode.json", "verdict.json"}

    told(machine, 20000.0)
    slow = machine.gate("--tags", "decode", "-e", ORDER)
    assert slow.status == 3, slow.err
    assert "decode.slow" in slow.err
    assert machine.baselines["targets"]["host"][f"decode.step.{TAG}"]["value"] == 9000.0


def test_a_config_of_ones_own_arrives_as_json(machine: Machine) -> None:
    told(machine, 9000.0)
    own = '{"gpu_gate_decode": {"model": {"name": "mine", "hidden_size": 64}}}'
    done = machine.gate("--tags", "decode", "-e", own)
    assert done.status == 0, done.err
    words = json.loads((machine.folder / "asked.json").read_text())
    assert words[-2] == "--model"
    assert json.loads(words[-1]) == {"name": "mine", "hidden_size": 64}


def test_the_plain_gate_runs_no_decode_step(machine: Machine) -> None:
    done = machine.gate("-e", "gpu_gate_first_run=record")
    assert done.status == 0, done.err
    assert "decode" not in json.loads((machine.folder / "asked.json").read_text())
