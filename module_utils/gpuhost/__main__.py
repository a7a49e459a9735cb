"""The host's own copy of gpuhost: ``python3 /var/lib/gpuhost/gpuhost.pyz status|return``."""

from __future__ import annotations

import json
import sys

from gpuhost import homecoming, status
from gpuhost.errors import Stop
from gpuhost.host_io import Host


def main(arguments: list[str]) -> int:
    """``return`` is what gpuhost-return.service runs; ``status`` says what is armed, for a person at the console."""
    try:
        if arguments == ["return"]:
            print(homecoming.by_itself(Host()))
            return 0
        if arguments == ["status"]:
            print(status.as_text(status.read(Host())))
            return 0
        if arguments == ["status", "--json"]:
            print(json.dumps(status.read(Host()), indent=2))
            return 0
    except Stop as error:
        print(f"{error.blocker.cause}: {error.blocker.sentence}", file=sys.stderr)
        return 1
    print("usage: gpuhost.pyz status [--json] | return", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
