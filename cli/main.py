"""The ``gpuhost`` command."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gpuhost import __version__
from gpuhost.blockers import KNOWN_CHECKS
from gpuhost.causes import CAUSES, GOOD, USAGE
from gpuhost_cli import audit, capture, ceiling, explain, report, report_add, serve_options, trace, tune
from gpuhost_cli.run import InputError, Request, run

STAGE_HELP = {
    "upgrade": "roll a kernel upgrade over the hosts: all ten stages",
    "survey": "read what plan and preflight need",
    "plan": "resolve the target, name everything that is in the way",
    "prepare": "all that needs no downtime: kernel, headers, driver, boot entry, proofs",
    "drain": "stop and remember what runs (needs an open roll)",
    "trial": "boot the target once (needs an open roll)",
    "reconcile": "give containers their GPU devices by driver name",
    "gate": "measure the GPU work and judge it",
    "promote": "gate again, then make the new kernel the default (needs an open roll)",
    "hand_back": "start what ran before, close the roll",
    "rollback": "go back to an older kernel (--to), or end an open roll on the kernel that ran before it",
    "status": "where each host stands and what is armed on it: roll, one-shot, dead-man, holds",
}
WITH_TARGET = ("upgrade", "plan", "prepare")


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(
        prog="gpuhost",
        description="Roll kernel upgrades over GPU hosts; none is back in service before its GPU work was measured.",
        epilog="Exit status: 0 good or nothing to do, 1 findings or differences, 2 usage, input or connection, "
        "3 back on the old kernel, 4 needs a person, 5 stopped at a safe point.",
    )
    made.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    commands = made.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, text in STAGE_HELP.items():
        _stage_parser(commands.add_parser(name, help=text, description=text), name)
    for own in (audit.add_parser(commands), tune.add_parser(commands)):
        _shared_options(own)
    again = commands.add_parser("report", help="write a run's report again")
    again.add_argument("run", nargs="?", type=Path, help="a run's folder; the newest one if left out")
    again.add_argument(
        "--with",
        dest="added",
        nargs="+",
        action="extend",
        type=Path,
        default=[],
        metavar="FILE",
        help="show it in the picture of where the milliseconds go, and copy it into the run: "
        "JSON of ceiling, serve-check, or decode measurements",
    )
    again.add_argument("--host", metavar="NAME", help="whose the files are, in a run of several hosts")
    _runs_option(again)
    causes = commands.add_parser("causes", help="all cause codes, or one")
    causes.add_argument("code", nargs="?")
    commands.add_parser("checks", help="the checks that the gate knows")
    explain.add_parser(commands)
    ceiling.add_parser(commands)
    trace.add_parser(commands)
    serve_options.add_parser(commands)
    return made


def _stage_parser(made: argparse.ArgumentParser, name: str) -> None:
    source = made
    if name == "survey":  # of hosts, or of this machine into a file
        source = made.add_mutually_exclusive_group(required=True)  # type: ignore[assignment]
        source.add_argument(
            "--capture", type=Path, metavar="FILE", help="this machine as a test's fixture, names and secrets taken out"
        )
    source.add_argument("-i", "--inventory", required=name != "survey", metavar="PATH", help="inventory file or folder")
    made.add_argument("-C", "--check", action="store_true", help="show plan and diffs, change nothing")
    made.add_argument(
        "--batches", type=batches, metavar="N,N,..", help="hosts at a time, the last one repeats (default: 1)"
    )
    tags = "measure: only measure, without judging; decode: the parts of a decode step" if name == "gate" else None
    made.add_argument("--tags", metavar="TAGS", help=tags or argparse.SUPPRESS)
    made.add_argument("--skip-tags", metavar="STAGES", help=argparse.SUPPRESS)
    if name in WITH_TARGET:
        made.add_argument(
            "--target", default="", metavar="RELEASE", help="exact kernel release, or a prefix such as 6.12"
        )
    if name == "rollback":
        made.add_argument(
            "--to",
            type=kernel_name,
            metavar="RELEASE",
            help="older kernel to go back to: a release, or a prefix as 6.1",
        )
    if name in (*WITH_TARGET, "rollback"):
        made.add_argument("--retry-trial", action="store_true", help="one more trial boot of a kernel that came back")
    _shared_options(made)


def _shared_options(made: argparse.ArgumentParser) -> None:
    made.add_argument("-l", "--limit", metavar="HOSTS", help="only these hosts")
    made.add_argument(
        "-e", "--extra-vars", action="append", default=[], metavar="VARS", help="as ansible-playbook has it"
    )
    made.add_argument("-v", "--verbose", action="count", default=0, help="Ansible's own log becomes longer")
    made.add_argument("--hosts", metavar="GROUP", help="group or host to work on (default: gpu_hosts)")
    _runs_option(made)


def _runs_option(made: argparse.ArgumentParser) -> None:
    made.add_argument("--runs", type=Path, default=Path("runs"), metavar="FOLDER", help="run records (default: ./runs)")


def batches(text: str) -> list[int | str]:
    """Batch sizes as Ansible's ``serial`` has them: numbers, or shares of all hosts such as 25%."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.removesuffix("%").isdigit() and int(part.removesuffix("%")) > 0 for part in parts):
        raise argparse.ArgumentTypeError(f"{text!r} is not a list such as 1,2,4 or 1,25%")
    return [part if part.endswith("%") else int(part) for part in parts]


def kernel_name(text: str) -> str:
    """The kernel to go back to. An empty name, of a script's unset variable, would be the other rollback."""
    if not text.strip():
        raise argparse.ArgumentTypeError("a kernel's name is missing; without --to an open roll is ended")
    return text.strip()


def request_of(options: argparse.Namespace) -> Request:
    """The playbook call that a parsed command line asks for."""
    extra = extra_of(options)
    if options.command == "tune":
        return tune.request_of(options, extra)
    variables: dict[str, Any] = {}
    if options.hosts:
        variables["gpuhost_hosts"] = options.hosts
    if options.batches:
        variables["roll_batches"] = options.batches
    if options.command in WITH_TARGET:
        variables["target"] = options.target
    if options.command == "rollback":
        if options.retry_trial and not options.to:
            raise InputError("--retry-trial goes with --to: without it nothing is booted on trial")
        variables["rollback_to"] = options.to or ""  # said in any case: it beats the inventory's
    if getattr(options, "retry_trial", False):
        variables["boot_trial_retry"] = True
    if options.command in ("prepare", "plan"):
        variables["kernel_upgrade_needs_reboot"] = options.command == "plan"
    extra += ("--tags", options.tags) if options.tags else ()
    extra += ("--skip-tags", options.skip_tags) if options.skip_tags else ()
    return Request(
        options.command,
        options.inventory,
        options.limit,
        options.check,
        options.verbose,
        extra,
        variables,
        options.runs,
    )


def extra_of(options: argparse.Namespace) -> tuple[str, ...]:
    """The -e options, handed on as they are."""
    return tuple(item for text in options.extra_vars for item in ("-e", text))


def show_causes(code: str | None) -> int:
    """Print the registry, or one cause."""
    if code is not None and code not in CAUSES:
        print(f"gpuhost: no cause {code}; gpuhost causes lists them", file=sys.stderr)
        return USAGE
    for item in CAUSES.values():
        if code in (None, item.code):
            print(f"{item.code}\n    {item.sentence}\n    {item.next_step}")
    return 0


def write_report(folder: Path | None, runs: Path, added: Sequence[Path] = (), host: str | None = None) -> int:
    """Write a report again, with ``added`` documents of a host, and say where it is."""
    if folder is None:
        known = sorted(path.parent for path in runs.glob("*/run.json"))
        if not known:
            print(f"gpuhost: no run in {runs.absolute()}: --runs names another folder", file=sys.stderr)
            return USAGE
        folder = known[-1]
    if not (folder / "run.json").is_file():
        print(f"gpuhost: {folder} holds no run.json", file=sys.stderr)
        return USAGE
    if host and not added:
        print("gpuhost: --host goes with --with: it says whose the files are", file=sys.stderr)
        return USAGE
    try:
        if added:
            report_add.add(folder, added, host)
    except (OSError, ValueError) as error:
        print(f"gpuhost: {error}", file=sys.stderr)
        return USAGE
    try:
        print(report.write(folder))
    except (OSError, ValueError) as error:
        print(f"gpuhost: {folder}: {error}", file=sys.stderr)
        return USAGE
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point."""
    options = parser().parse_args(argv)
    if options.command == "causes":
        return show_causes(options.code)
    if options.command == "checks":
        print("\n".join(KNOWN_CHECKS))
        return 0
    if options.command == "report":
        return write_report(options.run, options.runs, options.added, options.host)
    try:
        if options.command == "explain":
            return explain.run(options)
        if options.command == "ceiling":
            return ceiling.run(options)
        if options.command == "trace":
            return trace.run(options)
        if options.command == "serve-check":
            from gpuhost_cli import serve_check  # noqa: PLC0415 - its HTTP client takes half a second to load

            return serve_check.run(options)
        if options.command == "audit":
            return audit.run(options, extra_of(options))
        if options.command == "survey" and options.capture:
            print(capture.write(options.capture))
            return GOOD
        return run(request_of(options))
    except (InputError, FileNotFoundError) as error:
        print(f"gpuhost: {error}", file=sys.stderr)
        return USAGE
    except KeyboardInterrupt:
        print(
            "gpuhost: interrupted; run the same command again: the roll file on each host knows where it stands",
            file=sys.stderr,
        )
        return 5


if __name__ == "__main__":
    sys.exit(main())
