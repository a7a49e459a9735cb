# SPDX-License-Identifier: MIT
"""Send the checks along with the module's own call: one connection instead of copy's five."""

from __future__ import annotations

import base64
import tempfile
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase


class ActionModule(ActionBase):
    """Build the archive (milliseconds, always the same bytes for the same sources) and run the module with it."""

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Run the module of the same name with its ``archive`` filled in."""
        super().run(tmp, task_vars)
        arguments = {**self._task.args, "archive": base64.b64encode(self._archive()).decode()}
        return dict(self._execute_module(module_args=arguments, task_vars=task_vars))

    @staticmethod
    def _archive() -> bytes:
        try:
            from gpu_checks.build_zipapp import build  # noqa: PLC0415 - missing only where gpuhost is not installed
        except ImportError as error:
            raise AnsibleActionFail(
                f"gpu_checks is not installed for the controller's Python: make install ({error})"
            ) from error
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "gpu_checks.pyz"
            build(path)
            return path.read_bytes()
