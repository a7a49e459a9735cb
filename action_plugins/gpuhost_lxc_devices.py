# SPDX-License-Identifier: MIT
"""Send gpuhost's own code along, which the host runs at every boot before its containers start."""

from __future__ import annotations

from ansible.errors import AnsibleActionFail

try:
    from gpuhost_cli.send_archives import SendArchives
except ImportError as error:
    raise AnsibleActionFail(f"gpuhost is not installed for the controller's Python: make install ({error})") from error


class ActionModule(SendArchives):
    """Run the module of the same name with ``program`` filled in."""
