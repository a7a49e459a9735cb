# SPDX-License-Identifier: MIT
"""Send the checks along with the module's own call."""

from __future__ import annotations

from ansible.errors import AnsibleActionFail

try:
    from gpuhost_cli.send_archives import SendArchives
except ImportError as error:
    raise AnsibleActionFail(f"gpuhost is not installed for the controller's Python: make install ({error})") from error


class ActionModule(SendArchives):
    """Run the module of the same name with ``archive`` filled in."""

    archives = ("archive",)
