# SPDX-License-Identifier: MIT
"""Send along the GPU checks, and gpuhost's own code, which the host runs where a measurement was cut off."""

from __future__ import annotations

from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase


class ActionModule(ActionBase):
    """Run the module of the same name with ``program`` and ``archive`` filled in."""

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Build the archives: milliseconds, the same bytes for the same sources."""
        super().run(tmp, task_vars)
        arguments = {**self._task.args, **self._archives()}
        return dict(self._execute_module(module_args=arguments, task_vars=task_vars))

    @staticmethod
    def _archives() -> dict[str, str]:
        try:
            from gpuhost_cli.host_archives import host_archives  # noqa: PLC0415 - missing only where not installed
        except ImportError as error:
            raise AnsibleActionFail(
                f"gpuhost is not installed for the controller's Python: make install ({error})"
            ) from error
        return host_archives()
