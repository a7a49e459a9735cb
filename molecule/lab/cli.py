"""Command line of the lab: `python -m gpuhost_lab COMMAND`."""

import argparse
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from . import guest, lifecycle
from .errors import LabError
from .image import ensure_image
from .image_recipe import Loader
from .image_root import customize
from .machine import known

# Exit status as everywhere in gpuhost: 2 is usage, input, connection.
EXIT_ERROR = 2
# What a shell shows for a program ended by ctrl-C.
EXIT_INTERRUPTED = 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="gpuhost_lab", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    image = commands.add_parser("image", help="build the base image if it is not there; print its folder")
    image.add_argument("--loader", type=Loader, choices=list(Loader), default=Loader.SYSTEMD_BOOT)
    commands.add_parser("status", help="list machines and snapshots")
    texts = {
        "up": "make a machine, boot it, wait for ssh, write the inventory",
        "start": "boot a machine that is off",
        "stop": "shut a machine down cleanly, keep its disk",
        "kill": "cut a machine's power, keep its disk",
        "down": "throw a machine away",
        "save": "keep a machine's state under a name; the machine is stopped",
        "ssh": "run a command in a machine: ssh --name NAME -- argv",
    }
    named = {name: commands.add_parser(name, help=text) for name, text in texts.items()}
    for each in named.values():
        each.add_argument("--name", required=True)
    named["up"].add_argument("--from", dest="origin", metavar="SNAPSHOT")
    named["up"].add_argument("--loader", type=Loader, choices=list(Loader), help="systemd-boot where nothing is said")
    named["up"].add_argument("--memory-mib", type=int, default=lifecycle.MEMORY_LIMIT_MIB)
    named["up"].add_argument("--no-workload", dest="workload", action="store_false")
    named["save"].add_argument("--as", dest="snapshot", required=True, metavar="SNAPSHOT")
    named["ssh"].add_argument("--user", default="root", choices=("root", "operator"))
    named["ssh"].add_argument("argv", nargs="*")
    forget = commands.add_parser("forget", help="remove a saved state")
    forget.add_argument("--snapshot", required=True)
    hidden = commands.add_parser("customize")
    hidden.add_argument("root", type=Path)
    hidden.add_argument("loader", type=Loader)
    hidden.add_argument("public_key", type=Path)
    return parser


def _dispatch(options: argparse.Namespace) -> int:
    """Run one command; gives back the exit status."""
    match options.command:
        case "image":
            print(ensure_image(options.loader).folder)
        case "status":
            print(lifecycle.status())
        case "up":
            lifecycle.up(
                options.name,
                origin=options.origin,
                loader=options.loader,
                memory_mib=options.memory_mib,
                workload=options.workload,
            )
        case "save":
            print(lifecycle.save(options.name, options.snapshot))
        case "forget":
            lifecycle.forget(options.snapshot)
        case "customize":
            customize(options.root, options.loader, options.public_key.read_text())
        case "ssh":
            argv = guest.ssh_argv(known(options.name), options.argv, options.user)
            # no limit: a person's own command, ended by ctrl-C
            return subprocess.run(argv, check=False).returncode
        case "start" | "stop" | "kill" | "down":
            getattr(lifecycle, options.command)(options.name)
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; an error is one text on stderr."""
    options = _parser().parse_args(arguments)
    try:
        return _dispatch(options)
    except LabError as error:
        print(f"lab: error: {error}", file=sys.stderr)
        return EXIT_ERROR
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
