"""Waiting for a boot: only a new boot id counts, whatever a host that is going down answers meanwhile."""

from __future__ import annotations

import importlib.util
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from ansible.errors import AnsibleConnectionFailure
from fake_roll import REPOSITORY

OLD_ID, NEW_ID = "00000001-0000-4000-8000-000000000000", "00000002-0000-4000-8000-000000000000"
GONE = {"rc": 255, "stdout": "", "stderr": "ssh: connect to host gpu-1 port 22: Connection refused\n"}


def plugin() -> ModuleType:
    path = REPOSITORY / "action_plugins" / "gpuhost_wait_for_boot.py"
    spec = importlib.util.spec_from_file_location("gpuhost_wait_for_boot", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Clock:
    """Time that passes only by sleeping."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def wait(monkeypatch: pytest.MonkeyPatch, answers: list[Any], timeout_s: int = 60) -> dict[str, Any]:
    """Run the plugin against these answers; the last one repeats."""
    module = plugin()
    monkeypatch.setattr(module, "time", Clock())
    monkeypatch.setattr(module.ActionBase, "run", lambda *_: {})
    action = module.ActionModule.__new__(module.ActionModule)
    action._task = SimpleNamespace(args={"boot_id": OLD_ID, "timeout_s": timeout_s, "host_name": "gpu-1"})
    action._connection = SimpleNamespace(reset=lambda: None)

    def command(*_: Any, **__: Any) -> dict[str, Any]:
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        if isinstance(answer, Exception):
            raise answer
        return dict(answer)

    action._low_level_execute_command = command
    found: dict[str, Any] = action.run(None, {})
    return found


def answered(boot_id: str, **changes: Any) -> dict[str, Any]:
    return {"rc": 0, "stdout": boot_id + "\n", "stderr": "", **changes}


def test_a_new_boot_id_ends_the_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    result = wait(monkeypatch, [answered(OLD_ID), GONE, AnsibleConnectionFailure("timed out"), answered(NEW_ID)])
    assert (result["boot_id"], result["changed"]) == (NEW_ID, True)
    assert not result.get("failed")


@pytest.mark.parametrize(
    "answer",
    [
        {"rc": 255, "stdout": "", "stderr": "\n"},
        {"rc": 255, "stdout": " ", "stderr": ""},
        {"rc": 0, "stdout": "", "stderr": ""},
        {"rc": 0, "stdout": "System is going down. Unprivileged users are not permitted to log in.\n", "stderr": ""},
        {"rc": 1, "stdout": NEW_ID, "stderr": ""},
        {"rc": 255},
        AnsibleConnectionFailure(""),
    ],
)
def test_whatever_a_dying_host_answers_the_wait_goes_on(monkeypatch: pytest.MonkeyPatch, answer: Any) -> None:
    assert wait(monkeypatch, [answer, answer, answered(NEW_ID)])["boot_id"] == NEW_ID


def test_a_banner_around_the_boot_id_does_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    assert wait(monkeypatch, [answered(f"Welcome!\n{NEW_ID}")])["boot_id"] == NEW_ID


def test_a_host_that_is_not_back_names_its_last_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    result = wait(monkeypatch, [GONE], timeout_s=20)
    assert (result["failed"], result["cause"], result["object"]) == (True, "trial.not_back", "gpu-1")
    assert "Connection refused" in result["msg"]
    assert "within 20 s" in result["expected"]
    assert "console" in result["next_step"]


def test_a_host_that_never_went_down_is_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    result = wait(monkeypatch, [answered(OLD_ID)], timeout_s=20)
    assert result["failed"]
    assert "has not rebooted" in result["next_step"]
    assert "the next power cycle boots the old kernel" not in result["msg"]
