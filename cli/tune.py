"""``gpuhost tune``: the playbook over the tuning roles, or the one that puts everything back."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from typing import Any

from gpuhost import tune_effects_text
from gpuhost_cli.explain_text import printable
from gpuhost_cli.run import InputError, Request

TAGS = ("sysctl", "cpu", "gpu", "pcie")
HELP = "set kernel settings, CPU, GPU runtime and PCIe so that they hold over a boot; or put them back"
EPILOG = """\
What is right already is left alone: a second run changes nothing. What was there
before the first tune is on record on each host, and --revert restores it.
No effect on speed is claimed: docs/tuning.md has the reason for each number, and
--measure and --verify say what they do on this host. Both want it idle.

  gpuhost tune -i inventory/mine --check           what would change
  gpuhost tune -i inventory/mine --tags cpu,pcie
  gpuhost tune -i inventory/mine --measure         each setting alone, then tune without what harms
  gpuhost tune -i inventory/mine --verify          before, apply, after
  gpuhost tune -i inventory/mine --revert          as it was before the first tune

Exit status: 0 all is as wished, 1 something is left that tuning does not end, or with
--check something would change, 2 usage, input or connection.
"""
LEFT = ("security", "p0_runtime")
"""Findings that tuning should have ended, or that somebody has to look at now."""

CLAIM = "no effect on speed is claimed for what was set: none was measured"


def add_parser(commands: Any) -> argparse.ArgumentParser:
    """The command line; the caller adds what all commands have."""
    made: argparse.ArgumentParser = commands.add_parser(
        "tune", help=HELP, description=HELP, epilog=EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument("-i", "--inventory", required=True, metavar="PATH", help="inventory file or folder")
    made.add_argument("-C", "--check", action="store_true", help="show what would change, with diffs; change nothing")
    made.add_argument("--tags", type=tags, metavar="LIST", help=f"only some of: {','.join(TAGS)}")
    which = made.add_mutually_exclusive_group()
    which.add_argument("--revert", action="store_true", help="put back what was there before the first tune")
    which.add_argument("--measure", action="store_true", help="measure each setting alone (a minute each), then tune")
    which.add_argument("--verify", action="store_true", help="measure, tune, measure again")
    return made


def tags(text: str) -> str:
    """A list of concerns."""
    names = [name.strip() for name in text.split(",")]
    strange = [name for name in names if name not in TAGS]
    if strange:
        raise argparse.ArgumentTypeError(f"{', '.join(strange)!r}: it is a list out of {','.join(TAGS)}")
    return ",".join(names)


def request_of(options: argparse.Namespace, extra: tuple[str, ...]) -> Request:
    """The playbook call. Raises InputError."""
    if options.revert and options.tags:
        raise InputError("--revert puts back everything; it does not go with --tags")
    if options.measure and options.tags:
        raise InputError("--measure measures every setting; -e tune_effects_knobs=['vm.*'] chooses among them")
    chosen = [options.tags] if options.tags else []
    if options.measure or options.verify:
        chosen = [*(chosen or TAGS), "measure" if options.measure else "verify"]
    variables: dict[str, Any] = {"gpuhost_hosts": options.hosts} if options.hosts else {}
    return Request(
        "tune_revert" if options.revert else "tune",
        options.inventory,
        options.limit,
        options.check,
        options.verbose,
        (*extra, *(("--tags", ",".join(chosen)) if chosen else ())),
        variables,
        options.runs,
    )


def summary(documents: Mapping[str, Mapping[str, Mapping[str, Any]]], check: bool) -> Iterator[str]:
    """At the end of a run, for each host that was tuned: what was written, and what is left. Empty for other runs."""
    claimed = False
    for host, own in documents.items():
        measured = [item for item in own.values() if item.get("schema") == "gpuhost.effects"]
        for item in measured:
            yield f"{host}: {'before, apply, after' if item.get('mode') == 'verify' else 'what each setting does'}"
            yield from tune_effects_text.table(item).rstrip().splitlines()
        tuned = [item for item in own.values() if item.get("schema") == "gpuhost.tune"]
        if not tuned:
            continue
        states = [write.get("status") for item in tuned for write in item.get("written") or ()]
        findings = [finding for item in tuned for finding in item.get("findings") or ()]
        left = [item for item in findings if item.get("severity") in LEFT]
        reboot = sum(item.get("severity") == "p1_reboot" for item in findings)
        reverted = all(item.get("concern") == "revert" for item in tuned)
        claimed = claimed or not (reverted or check or measured)
        yield f"{host}: {', '.join(_counts(states, reverted, check))}{_rest(len(left), reboot, check)}"
        for item in [] if check else left:
            fix = f": {item.get('fix')}" if item.get("fix") else ""
            yield printable(f"          {item.get('id')}: {item.get('observed')}{fix}")
    if claimed:
        yield CLAIM


def _counts(states: list[Any], reverted: bool, check: bool) -> list[str]:
    done = "put back" if reverted else "written"
    words = [f"{states.count('written')} {'to be ' if check else ''}{done}"]
    words += [f"{states.count('refused')} refused"] if "refused" in states else []
    return [*words, f"{states.count('same')} {'as before' if reverted else 'as wished'}"]


def _rest(left: int, reboot: int, check: bool) -> str:
    if check:
        return ""
    words = [f"{left} left to do"] if left else []
    words += [f"{reboot} for the next reboot (gpuhost audit)"] if reboot else []
    return f"; {', '.join(words)}" if words else ""
