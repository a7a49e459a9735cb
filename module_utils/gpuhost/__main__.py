"""The host's own copy of gpuhost: ``python3 /var/lib/gpuhost/gpuhost.pyz status|return|devices|gpu-state|pcie``.

Each command imports what it needs: a boot waits for ``devices``, and compiling an archive's modules takes its time.
"""

# ruff: noqa: PLC0415 - see above
from __future__ import annotations

import json
import sys
from collections.abc import Callable
from functools import partial

from gpuhost.errors import Stop
from gpuhost.host_io import Host

USAGE = "usage: gpuhost.pyz status [--json] | return | devices [--reconcile] | gpu-state | pcie [ADDRESS]"


def _devices(rules: bool) -> str:
    from gpuhost import devices_boot

    return devices_boot.at_boot(Host(), rules)


def _gpu_state() -> str:
    from gpuhost import gpu_state_boot

    return gpu_state_boot.at_boot(Host())


def _pcie(*address: str) -> str:
    from gpuhost import pcie

    return pcie.keep(Host(), *address)


def _return() -> str:
    from gpuhost import homecoming

    return homecoming.by_itself(Host())


def _status(as_json: bool) -> str:
    from gpuhost import status

    found = status.read(Host())
    return json.dumps(found, indent=2) if as_json else status.as_text(found)


COMMANDS: dict[tuple[str, ...], Callable[[], str]] = {
    ("devices",): lambda: _devices(False),
    ("devices", "--reconcile"): lambda: _devices(True),
    ("gpu-state",): _gpu_state,
    ("pcie",): _pcie,
    ("return",): _return,
    ("status",): lambda: _status(False),
    ("status", "--json"): lambda: _status(True),
}


def main(arguments: list[str]) -> int:
    """``status`` is for a person at the console: what is armed here. The others are for our units."""
    command = COMMANDS.get(tuple(arguments))
    if arguments[:1] == ["pcie"] and len(arguments) == 2:
        command = partial(_pcie, arguments[1])
    if command is None:
        print(USAGE, file=sys.stderr)
        return 2
    try:
        print(command())
    except Stop as error:
        print(f"{error.blocker.cause}: {error.blocker.sentence}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
