"""The options that the modules of single checks have in common, for ansible-doc: those of check_module.arguments."""

from __future__ import annotations


class ModuleDocFragment:
    """Named ``gpuhost_check`` in a module's ``extends_documentation_fragment``."""

    DOCUMENTATION = r"""
options:
  host_name: {description: 'Name in the document; empty: the host name.', type: str, default: ''}
  run_id: {description: Name of the run in the document., type: str, default: ''}
  archive: {description: 'The checks, base64; filled in by the action plugin.', type: str, required: true}
  targets:
    description: Containers to measure in, or V(host). Empty for every running container with a GPU, else the host.
    type: list
    elements: str
    default: []
    aliases: [target]
  python: {description: 'Interpreter of the workload, a path where it runs.', type: str, default: /usr/bin/python3}
  user:
    description: 'User of the workload, a name or a uid inside the target; empty: root.'
    type: str
    default: ''
  timeout_s: {description: Seconds until the check is killed., type: int, default: 120}
  quick: {description: Only what shows within seconds that something is broken., type: bool, default: false}
  fail_on_error: {description: Whether a measurement that is an error fails the task., type: bool, default: true}
"""
