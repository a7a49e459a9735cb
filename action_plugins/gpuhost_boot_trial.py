# SPDX-License-Identifier: MIT
"""Send along what the host needs to come back by itself, gpuhost's own code and the checks, in the reboot's call."""

from __future__ import annotations

from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase


class ActionModule(ActionBase):
    """Run the module of the same name; for the trial boot with ``program`` and ``archive`` filled in."""

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Build both archives where they are needed."""
        super().run(tmp, task_vars)
        arguments = dict(self._task.args)
        if arguments.get("action") == "boot":
            arguments |= self._archives()
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
