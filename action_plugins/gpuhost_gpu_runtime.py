# SPDX-License-Identifier: MIT
"""Send gpuhost's own code along, where the host is to set something on its GPUs at every boot."""

from __future__ import annotations

from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase


class ActionModule(ActionBase):
    """Run the module of the same name with ``program`` filled in."""

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Build the archive: milliseconds, the same bytes for the same sources."""
        super().run(tmp, task_vars)
        arguments = {**self._task.args, "program": self._program()}
        return dict(self._execute_module(module_args=arguments, task_vars=task_vars))

    @staticmethod
    def _program() -> str:
        try:
            from gpuhost_cli.host_archives import host_archives  # noqa: PLC0415 - missing only where not installed
        except ImportError as error:
            raise AnsibleActionFail(
                f"gpuhost is not installed for the controller's Python: make install ({error})"
            ) from error
        return host_archives()["program"]
