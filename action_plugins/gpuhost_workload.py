# SPDX-License-Identifier: MIT
"""Send along what the host needs to come back by itself: gpuhost's own code and the checks, in the drain's call."""

from __future__ import annotations

from ansible.errors import AnsibleActionFail

try:
    from gpuhost_cli.send_archives import SendArchives
except ImportError as error:
    raise AnsibleActionFail(f"gpuhost is not installed for the controller's Python: make install ({error})") from error


class ActionModule(SendArchives):
    """Run the module of the same name with ``program`` and ``archive`` filled in, for the drain."""

    archives = ("program", "archive")
    only_for = ("state", "drained")
