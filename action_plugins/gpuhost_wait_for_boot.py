# SPDX-License-Identifier: MIT
"""Wait until a host has booted anew, and say what it booted.

``ansible.builtin.reboot`` is not used: it takes any other answer for a reboot (roll-01: an ssh session of a host that
is going down), gives up after 600 s by default, and backs off to 13 s between its tries.
"""

from __future__ import annotations

import re
import time
from typing import Any

from ansible.errors import AnsibleConnectionFailure, AnsibleError
from ansible.plugins.action import ActionBase

BOOT_ID = re.compile(r"\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b")
ANSWERS = "ssh answers"
PAUSE_S = 2
"""A host that is back is noticed within 3 s: the pause and one ssh handshake."""


class ActionModule(ActionBase):
    """Poll the boot id through the task's own connection, whatever jump host or user it goes through."""

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Arguments: ``boot_id`` (the one before), ``timeout_s``, ``host_name``."""
        super().run(tmp, task_vars)
        before, limit = str(self._task.args["boot_id"]), float(self._task.args["timeout_s"])
        started = time.monotonic()
        answer = ""
        while time.monotonic() - started < limit:
            now, answer = self._boot_id()
            if now and now != before:
                return {"changed": True, "boot_id": now, "seconds": round(time.monotonic() - started, 1)}
            time.sleep(PAUSE_S)
        return self._failed(before, limit, answer)

    def _boot_id(self) -> tuple[str | None, str]:
        try:
            self._connection.reset()
            result = self._low_level_execute_command("cat /proc/sys/kernel/random/boot_id", sudoable=False)
        except (AnsibleConnectionFailure, AnsibleError) as error:
            return None, _last_line(str(error)) or type(error).__name__
        found = BOOT_ID.search(result.get("stdout", ""))
        # Only a text of a boot id's shape counts: a dying host may answer with anything.
        if result.get("rc") == 0 and found:
            return found.group(0), ANSWERS
        return None, _last_line(f"{result.get('stdout', '')}\n{result.get('stderr', '')}") or "no answer"

    def _failed(self, before: str, limit: float, answer: str) -> dict[str, Any]:
        host = self._task.args["host_name"]
        next_step = "Look at its console; the next power cycle boots the old kernel."
        if answer == ANSWERS:
            next_step = "It answers, but has not rebooted: look at systemctl list-jobs on the host."
        return {
            "failed": True,
            "msg": f"trial.not_back: {host}: no new boot id within {limit:.0f} s (last: {answer}): {next_step}",
            "cause": "trial.not_back",
            "object": host,
            "observed": f"boot id {before}, last answer: {answer}",
            "expected": f"a new boot id within {limit:.0f} s",
            "next_step": next_step,
        }


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else ""
