"""Reading and changing the ESPs that proxmox-boot-tool manages: one process a call, whatever it has to do there."""

from __future__ import annotations

import errno
import inspect
import json
import sys
from collections.abc import Mapping, Sequence

from . import esp_agent, proxmox_esps
from .errors import stop
from .host_io import Host
from .proxmox_esps import EspContent

LIMIT_S = 300
Change = tuple[str, ...]
"""``copy``, source on the host, path; ``write``, path, text; ``remove``, path; ``remove_folder``, path."""


def read(host: Host, uuids: Sequence[str]) -> tuple[EspContent, ...]:
    """What lies on each ESP, in the order given. One that can't be read has a problem."""
    if not uuids:
        return ()
    answers, error = _ask(host, dict.fromkeys(uuids, ()))
    missing = {"problem": error or "nothing was read"}
    return tuple(proxmox_esps.content(uuid, answers.get(uuid, missing)) for uuid in uuids)


def change(host: Host, changes: Mapping[str, Sequence[Change]]) -> None:
    """Do these changes, UUID -> changes. Raises Stop for the first ESP that did not take all of them.

    The others are done all the same: the more of them are right, the better.
    """
    order = {uuid: items for uuid, items in changes.items() if items}
    if not order:
        return
    answers, error = _ask(host, order)
    for uuid in order:
        answer = answers.get(uuid, {"problem": error or "nothing was done"})
        if "problem" in answer:
            full = answer.get("errno") == errno.ENOSPC
            code = "boot.no_space" if full else "boot.esp_unreachable"
            raise stop(code, f"ESP {uuid}", str(answer["problem"]), "written")


def _ask(host: Host, order: Mapping[str, Sequence[Change]]) -> tuple[dict[str, dict[str, object]], str]:
    """The agent's answers, and an error where there are none. It gets its own text on stdin: no file is left."""
    python = [sys.executable or "python3", "-I", "-", json.dumps(order)]
    argv = ["unshare", "--mount", "--propagation", "private", *python]
    result = host.run(argv, timeout_s=LIMIT_S, stdin=inspect.getsource(esp_agent).encode())
    if result.rc != 0:
        return {}, result.last_line
    try:
        return json.loads(result.stdout), ""
    except ValueError as error:
        return {}, f"the ESPs' reader gave no answer: {error}"
