"""Run a playbook by ansible-runner. Progress and records are the callback's; this adds the exit status."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

import ansible_runner

from gpuhost.causes import FINDINGS, GOOD, USAGE, cause
from gpuhost_cli import paths, records
from gpuhost_cli.expectations import read_json

PROGRESS_FILE = "progress.log"
INVENTORY_TIMEOUT_S = 120  # an inventory script may ask a cloud


@dataclass(frozen=True)
class Request:
    """One call of a playbook, as the command line asks for it."""

    playbook: str
    inventory: str | None = None
    limit: str | None = None
    check: bool = False
    verbosity: int = 0
    extra: tuple[str, ...] = ()
    variables: dict[str, Any] = field(default_factory=dict)
    runs_dir: Path = Path("runs")


class InputError(Exception):
    """The question itself can't be used: one line with the way out, exit status 2."""


def environment(run_id: str, runs_dir: Path) -> dict[str, str]:
    """What the playbook's process gets on top of ours."""
    return {
        "ANSIBLE_CONFIG": str(paths.ROOT / "ansible.cfg"),
        "ANSIBLE_NOCOLOR": "1",
        # ansible-runner sets this variable for its own callback, and with it hides the configuration's folder
        "ANSIBLE_CALLBACK_PLUGINS": str(paths.ROOT / "callback_plugins"),
        "GPUHOST_RUN_ID": run_id,
        "GPUHOST_RUNS_DIR": str(runs_dir),
        "GPUHOST_COMMAND": shlex.join(["gpuhost", *sys.argv[1:]]),
        # ansible-playbook of the same environment that this command runs in, whatever PATH says
        "PATH": f"{Path(sys.executable).parent}:{os.environ.get('PATH', '')}",
    }


def check_inventory(request: Request) -> None:
    """Read the inventory first: an error there is one line, not a play that matches nobody. Raises InputError."""
    inventory = Path(str(request.inventory))
    if "," not in str(request.inventory) and not inventory.exists():
        raise InputError(_line("inventory.unreadable", str(inventory), "no such file or folder"))
    argv = [str(Path(sys.executable).parent / "ansible-inventory"), "-i", str(request.inventory), "--list"]
    result = subprocess.run(
        argv,
        env={**os.environ, **environment("", request.runs_dir)},
        stdin=subprocess.DEVNULL,  # ours may be set not to block, by whoever shares it: Ansible refuses that
        capture_output=True,
        text=True,
        timeout=INVENTORY_TIMEOUT_S,
        check=False,
    )
    if result.returncode != 0:
        raise InputError(_line("inventory.unreadable", str(inventory), _first_error(result.stderr)))
    group = str(request.variables.get("gpuhost_hosts", "gpu_hosts"))
    data = json.loads(result.stdout)
    if (
        group not in data
        and group not in data.get("_meta", {}).get("hostvars", {})
        and group not in ("all", "localhost")
    ):
        raise InputError(_line("inventory.no_hosts", str(inventory), f"no group or host {group}"))


def _line(code: str, about: str, observed: str) -> str:
    return f"{code}: {about}: {observed}: {cause(code).next_step}"


def _first_error(stderr: str) -> str:
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    errors = [line for line in lines if "ERROR" in line or "rror" in line]
    return records.one_line((errors or lines or ["no reason given"])[0].replace("[ERROR]:", "").strip(), 300)


def run(request: Request) -> int:
    """Run the playbook; the exit status as docs/architecture.md "Exit status" has it."""
    return execute(request)[0]


def execute(request: Request) -> tuple[int, Path]:
    """Run the playbook; exit status, and the folder of its records."""
    if request.inventory is not None:
        check_inventory(request)
    run_id = records.new_run_id()
    runs_dir = request.runs_dir.expanduser().absolute()
    run_dir = runs_dir / run_id
    try:
        run_dir.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{run_dir}: {error.strerror}: --runs names another folder for the records") from error
    progress = run_dir / PROGRESS_FILE
    with tempfile.TemporaryDirectory(prefix="gpuhost-") as private, follow(progress, sys.stderr):
        runner = ansible_runner.interface.run(
            private_data_dir=private,
            playbook=str(paths.playbook(request.playbook)),
            inventory=inventory_source(request.inventory),
            cmdline=shlex.join(arguments(request)) or None,
            envvars={**environment(run_id, runs_dir), "GPUHOST_PROGRESS": str(progress)},
            quiet=True,
        )
        rc = int(runner.rc)
        (run_dir / "ansible.log").write_text(runner.stdout.read())
    return exit_status(run_dir, rc, request.check), run_dir


@contextmanager
def follow(path: Path, stream: TextIO) -> Iterator[None]:
    """Copy what is appended to a file to a stream while the block runs.

    ansible-runner takes the playbook's terminal for its own events, so the callback writes its progress to a file.
    """
    done = threading.Event()

    def copy() -> None:
        with path.open("w+", encoding="utf-8") as file:
            while True:
                ended = done.wait(0.2)
                text = file.read()
                if text:
                    stream.write(text)
                    stream.flush()
                elif ended:
                    return

    thread = threading.Thread(target=copy, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join(timeout=5)


def inventory_source(inventory: str | None) -> str:
    """The inventory as ansible-runner can take it: it looks for a relative path in a folder of its own."""
    if inventory is None:
        return "localhost,"
    return inventory if "," in inventory else str(Path(inventory).absolute())


def arguments(request: Request) -> list[str]:
    """ansible-playbook's options."""
    argv = ["--limit", request.limit] if request.limit else []
    argv += ["--check", "--diff"] if request.check else []
    argv += ["-e", json.dumps(request.variables)] if request.variables else []
    argv += [f"-{'v' * request.verbosity}"] if request.verbosity else []
    return [*argv, *request.extra]


def exit_status(run_dir: Path, rc: int, check: bool) -> int:
    """What the run's record says; where there is none, ansible-playbook itself could not begin."""
    record = read_json(run_dir / records.RUN_FILE)
    if record is None or record.get("exit_status") is None:
        log = run_dir / "ansible.log"
        print(f"gpuhost: ansible-playbook did not begin: {_first_error(log.read_text())} (log: {log})", file=sys.stderr)
        return USAGE
    status = int(record["exit_status"])
    if status == GOOD and check and any(task["status"] == "changed" for task in record["tasks"]):
        return FINDINGS
    if status == GOOD and rc != 0:
        return USAGE
    return status
