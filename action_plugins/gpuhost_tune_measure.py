# SPDX-License-Identifier: MIT
"""Send along the GPU checks, and gpuhost's own code, which the host runs where a measurement was cut off."""

from __future__ import annotations

from ansible.errors import AnsibleActionFail

try:
    from gpuhost_cli.send_archives import SendArchives
except ImportError as error:
    raise AnsibleActionFail(f"gpuhost is not installed for the controller's Python: make install ({error})") from error


class ActionModule(SendArchives):
    """Run the module of the same name with ``program`` and ``archive`` filled in."""

    archives = ("program", "archive")
