"""What every module of this collection does around its one call: arguments, check mode, errors with a cause."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import Any

from ansible.module_utils.basic import AnsibleModule

from .documents import Blocker
from .errors import DEFECTS, Stop, blocker, defect
from .host_io import Host

Answer = dict[str, Any]


def run_module(
    argument_spec: dict[str, Any],
    work: Callable[[Host, dict[str, Any], bool], Answer],
    *,
    needs_root: bool = True,
) -> None:
    """Run ``work(host, params, check_mode)`` as an Ansible module.

    A Stop becomes a failure that carries ``cause``, ``observed``, ``expected`` and ``next_step`` beside its one line;
    documents that were made before it are kept.
    """
    module = AnsibleModule(argument_spec=argument_spec, supports_check_mode=True)
    host = Host(module.params.get("root") or "/")
    try:
        if needs_root and not host.is_root():
            raise Stop(blocker("host.not_root", "this connection", "an ordinary user", "root"))
        answer = work(host, module.params, module.check_mode)
    except Stop as error:
        module.fail_json(**failure(error.blocker), gpuhost_documents=list(error.documents))
    except DEFECTS as error:
        module.fail_json(**failure(defect(error)), exception=traceback.format_exc())
    module.exit_json(**answer)


def failure(found: Blocker) -> Answer:
    """A failed module's answer for a blocker."""
    return {
        "msg": f"{found.cause}: {found.sentence}",
        "cause": found.cause,
        "object": found.object,
        "observed": found.observed,
        "expected": found.expected,
        "next_step": found.next_step,
    }
