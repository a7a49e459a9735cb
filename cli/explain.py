"""``gpuhost explain lxc``: what a reconciliation would do to a pasted config, offline, with the reasons."""

from __future__ import annotations

import argparse
import dataclasses
import json
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpuhost.causes import FINDINGS, GOOD
from gpuhost.lxc_config import Style, parse, vmid_of
from gpuhost.lxc_native import Migration, migrate
from gpuhost.lxc_native_access import NodeFacts
from gpuhost.lxc_reconcile import Reconciliation, reconcile
from gpuhost.proc_devices import NVIDIA_NAMES, CharacterMajors, nvidia_node, parse_character_majors
from gpuhost_cli import explain_text
from gpuhost_cli.explain_text import QUIET
from gpuhost_cli.run import InputError

NEWEST = "9999"
"""A version of pve-container that knows all options, assumed where none is given."""

CAPS_NODES = {"/dev/nvidia-caps/nvidia-cap1": 0o400, "/dev/nvidia-caps/nvidia-cap2": 0o444}
"""What the driver makes in /dev/nvidia-caps on a host without MIG, and the modes that it gives them."""

EXAMPLES = """\
examples:
  ssh HOST cat /proc/devices > devices.txt
  gpuhost explain lxc --config 141.conf --proc-devices devices.txt \\
      --recorded nvidia-uvm=502 --recorded nvidia-caps=505
  ssh HOST cat /etc/pve/lxc/141.conf | \\
      gpuhost explain lxc --config - --proc-devices devices.txt

devices.txt is /proc/devices of the host, as it is after the change of kernel
or driver. The numbers from before are in /var/lib/gpuhost/majors.json there;
without them nothing that is stale is certain. No host is asked, and nothing is
written but --output's FILE. Exit status: 0 nothing to do, 1 changes or findings
that need somebody, 2 input that can't be used.
"""


@dataclass(frozen=True)
class Explanation:
    """All that is said about one file."""

    name: str
    style: Style
    style_by: str
    config: bytes
    presumed: str
    reconciliation: Reconciliation
    includes: Mapping[str, bytes]
    migration: Migration | None
    assumptions: tuple[str, ...]

    @property
    def content(self) -> bytes:
        return self.migration.content if self.migration else self.reconciliation.content

    @property
    def exit_status(self) -> int:
        included = any(item.changed for item in self.reconciliation.included)
        todo = self.content != self.config or included or bool(self.reconciliation.held)
        refused = self.migration is not None and bool(self.migration.refusals)
        urgent = any(item.severity not in QUIET for item in self.reconciliation.findings)
        return FINDINGS if todo or refused or urgent else GOOD


def add_parser(commands: Any) -> None:
    """The command line below ``gpuhost explain``."""
    text = "say what gpuhost would do to a pasted file, offline"
    kinds = commands.add_parser("explain", help=text, description=text).add_subparsers(
        dest="kind", required=True, metavar="KIND"
    )
    made = kinds.add_parser(
        "lxc",
        help="a container's config: which device rules are stale, and why",
        description="Show what a reconciliation would change in a container's config, and why:\na diff, and per line "
        "whether it is certain that the rule is NVIDIA's.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument("--config", required=True, metavar="FILE", help="the container's config; - reads it from stdin")
    made.add_argument(
        "--proc-devices", required=True, metavar="FILE", help="the host's /proc/devices of now; - reads it from stdin"
    )
    made.add_argument(
        "--recorded",
        action="append",
        default=[],
        metavar="NAME=MAJOR",
        help="a driver's number from before, as nvidia-uvm=504; may be repeated, the newest first",
    )
    made.add_argument(
        "--include",
        action="append",
        default=[],
        metavar="PATH=FILE",
        help="what the config includes by lxc.include: its path on the host, and where a copy of it is",
    )
    made.add_argument(
        "--style", choices=["pve", "lxc"], help="/etc/pve/lxc/N.conf, or /var/lib/lxc/NAME/config (default: guessed)"
    )
    made.add_argument(
        "--presumed",
        choices=["report", "apply"],
        default="report",
        help="rules that are only presumed to be NVIDIA's, as lxc_devices_presumed (default: report)",
    )
    made.add_argument("--native", action="store_true", help="also move mounts and rules to Proxmox's devN: entries")
    made.add_argument(
        "--node",
        action="append",
        default=[],
        metavar="PATH=MODE,UID,GID",
        help="with --native: a node as stat shows it on the host, as /dev/nvidia0=0660,0,44, or PATH=missing "
        "(default: every node exists, root:root 0666)",
    )
    made.add_argument(
        "--pve-container", metavar="VERSION", help="with --native: the version on the host (default: a recent one)"
    )
    output = made.add_mutually_exclusive_group()
    output.add_argument("--json", action="store_true", help="everything as JSON")
    output.add_argument(
        "--output", metavar="FILE", help="write the resulting config; - prints it, and nothing else, to stdout"
    )


def run(options: argparse.Namespace) -> int:
    """Explain one config. Raises InputError for input that can't be used."""
    found = explain(options)
    if options.json:
        print(json.dumps(document(found), indent=2))
    elif options.output == "-":
        print("\n".join(explain_text.lines(found)), file=sys.stderr)
        sys.stdout.flush()
        sys.stdout.buffer.write(found.content)
        sys.stdout.buffer.flush()
    else:
        if options.output:
            _write(options.output, options.config, found.content)
        print("\n".join(explain_text.lines(found)))
    return found.exit_status


def explain(options: argparse.Namespace) -> Explanation:
    """Read the input and decide. Raises InputError."""
    if options.config == "-" == options.proc_devices:
        raise InputError("--config and --proc-devices can't both be -: give one of them as a file")
    config = _read("--config", options.config)
    current = majors(options.proc_devices)
    if not config.strip():
        raise InputError(f"--config {options.config}: the file is empty: give a container's config")
    if re.search(rb"^Character devices:", config, re.MULTILINE):
        raise InputError(f"--config {options.config}: this is a /proc/devices, not a config: change the two options")
    style, style_by = guess_style(options.style, options.config, config)
    if style == "lxc" and options.native:
        raise InputError("--native: devN: entries exist on Proxmox only, this is a plain LXC config: leave it out")
    if (options.node or options.pve_container) and not options.native:
        raise InputError("--node and --pve-container go with --native")
    includes = _includes(options.include)
    outcome = reconcile(
        config,
        current,
        record(options.recorded),
        style=style,
        presumed=options.presumed,
        includes=includes or None,  # without any none is followed, and the findings say so
    )
    name = "stdin" if options.config == "-" else Path(options.config).name
    native = _native(outcome.content, current, options, name) if options.native else (None, ())
    return Explanation(name, style, style_by, config, options.presumed, outcome, includes, *native)


def majors(source: str) -> CharacterMajors:
    """The table of /proc/devices. Raises InputError where it is none: every rule would look stale."""
    found = parse_character_majors(_read("--proc-devices", source).decode("utf-8", "replace"))
    if not found.entries:
        raise InputError(
            f"--proc-devices {source}: no character devices in it, expected the part that begins with "
            "'Character devices:': cat /proc/devices on the host"
        )
    return found


def record(items: list[str]) -> dict[str, tuple[int, ...]]:
    """--recorded NAME=MAJOR as a table. Raises InputError."""
    found: dict[str, tuple[int, ...]] = {}
    for item in items:
        name, equals, number = item.partition("=")
        if not equals or not re.fullmatch(r"[0-9]{1,9}", number):
            raise InputError(f"--recorded {item}: expected NAME=MAJOR, as nvidia-uvm=504")
        if name not in NVIDIA_NAMES:
            raise InputError(f"--recorded {item}: no driver of NVIDIA's is called {name}: {', '.join(NVIDIA_NAMES)}")
        found[name] = (*found.get(name, ()), int(number))
    return found


def _includes(items: list[str]) -> dict[str, bytes]:
    """--include PATH=FILE as contents by path. Raises InputError."""
    found = {}
    for item in items:
        path, equals, source = item.partition("=")
        if not equals or not path.startswith("/"):
            raise InputError(f"--include {item}: expected PATH=FILE, as /etc/lxc/gpu.conf=gpu.conf")
        found[path] = _read("--include", source)
    return found


def guess_style(told: Style | None, source: str, config: bytes) -> tuple[Style, str]:
    """The file's style, and what says so."""
    if told:
        return told, "as told"
    name = Path(source).name
    if vmid_of(name) is not None or name == "config":
        return ("lxc" if name == "config" else "pve"), "by its name"
    entries = parse(config, "pve").entries()
    # Proxmox's own keys (arch, rootfs, ...) and lxc lines with a colon are read by Proxmox only.
    pve = any(not line.key.startswith("lxc.") or line.separator.startswith(b":") for line in entries)
    return ("pve" if pve or not parse(config, "lxc").entries() else "lxc"), "by its content"


def document(found: Explanation) -> dict[str, Any]:
    """Everything as JSON. Lines of "native" count in the reconciled file, the others in the file as it was given."""
    outcome = found.reconciliation
    made: dict[str, Any] = {
        "schema": "gpuhost.explain_lxc",
        "schema_version": 1,
        "file": found.name,
        "style": found.style,
        "style_by": found.style_by,
        "presumed": found.presumed,
        "exit_status": found.exit_status,
        "changed": found.content != found.config,
        "diff": explain_text.diff(found.name, found.config, found.content),
        "changes": [{**dataclasses.asdict(change), "severity": change.severity} for change in outcome.changes],
        "included": [
            {"path": item.path, "diff": explain_text.diff(item.path, found.includes[item.path], item.content)}
            for item in outcome.included
            if item.changed
        ],
        "held": [{**dataclasses.asdict(change), "severity": change.severity} for change in outcome.held],
        "findings": [dataclasses.asdict(item) for item in outcome.findings],
        "required_paths": list((found.migration or outcome).required_paths),
        "needs_open_test": outcome.needs_open_test,
        "next_step": explain_text.next_step(found),
    }
    if found.migration:
        made["native"] = {
            "changes": [dataclasses.asdict(change) for change in found.migration.changes],
            "refusals": [dataclasses.asdict(item) for item in found.migration.refusals],
            "notes": list(found.migration.notes),
            "assumptions": list(found.assumptions),
        }
    return made


def _native(
    config: bytes, current: CharacterMajors, options: argparse.Namespace, name: str
) -> tuple[Migration, tuple[str, ...]]:
    told = dict(_node(item) for item in options.node)
    nodes: dict[str, NodeFacts] = {}
    for mount in parse(config, "pve").mounts:
        if mount.node and mount.node.is_dir:
            nodes |= {
                path: NodeFacts(mode=mode)
                for path, mode in CAPS_NODES.items()
                if path.startswith(mount.node.path + "/")
            }
        elif mount.node:
            nodes[mount.node.path] = NodeFacts(mode=CAPS_NODES.get(mount.node.path, 0o666))
    assumed = sorted(set(nodes) - set(told))
    nodes = {path: facts for path, facts in {**nodes, **told}.items() if facts is not None}
    said = [_assumed(nodes, assumed)] if assumed else []
    said += [] if options.pve_container else ["assumed: a recent pve-container (--pve-container says which)"]
    return migrate(config, current, nodes, options.pve_container or NEWEST, about=name), tuple(said)


def _assumed(nodes: Mapping[str, NodeFacts], paths: list[str]) -> str:
    modes = sorted({nodes[path].mode for path in paths}, reverse=True)
    words = ", ".join(f"{mode:04o}: {' '.join(path for path in paths if nodes[path].mode == mode)}" for mode in modes)
    return f"assumed: these nodes exist on the host, root:root, mode {words} (--node says otherwise)"


def _node(item: str) -> tuple[str, NodeFacts | None]:
    path, _, facts = item.partition("=")
    node = nvidia_node(path)
    found = re.fullmatch(r"(0[0-7]{3}),([0-9]{1,9}),([0-9]{1,9})", facts)
    if node is None or node.is_dir or not (found or facts == "missing"):
        raise InputError(f"--node {item}: expected PATH=MODE,UID,GID, as /dev/nvidia0=0660,0,44, or PATH=missing")
    return node.path, NodeFacts(int(found[2]), int(found[3]), int(found[1], 8)) if found else None


def _read(option: str, source: str) -> bytes:
    if source == "-":
        return sys.stdin.buffer.read()
    try:
        return Path(source).read_bytes()
    except OSError as error:
        raise InputError(
            f"{option} {source}: {error.strerror}: give a file that can be read, or - for stdin"
        ) from error


def _write(target: str, source: str, content: bytes) -> None:
    path = Path(target)
    try:
        if path.exists() and source != "-" and path.samefile(source):
            raise InputError(
                f"--output {target}: this is --config's own file: give another one, or run gpuhost reconcile"
            )
        path.write_bytes(content)
    except OSError as error:
        raise InputError(f"--output {target}: {error.strerror}: give a file that can be written") from error
