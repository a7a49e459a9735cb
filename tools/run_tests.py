"""``make test``: every step with its own clock, so that a quiet step is never taken for a dead one."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BIN = Path(sys.executable).parent
TIMES = ROOT / "build" / "test-times.json"
PYTHON_FOLDERS = ["module_utils/gpuhost", "library", "action_plugins", "callback_plugins", "cli", "gpu_checks"]
TICK_S = 10
FULL = "tests/lab/full"
STEAL = ["--dist", "worksteal"]
"""Whoever is through takes tests from the others: a few of them take a minute."""
ONE_FILE = ["-n", "1", "--dist", "loadfile"]
"""Two at a time take less; but of two emulated machines on two cores one stood still, or did not come up, in two of
three runs."""


@dataclass(frozen=True)
class Step:
    """One command. ``expected_s`` is from a machine of two cores; the last run's own time is taken where known."""

    name: str
    argv: list[str]
    expected_s: float
    group: str


def tool(name: str, *arguments: str) -> list[str]:
    """A program of the virtual environment."""
    return [str(BIN / name), *arguments]


def pytest(*arguments: str) -> list[str]:
    """pytest, which names every slow test at its end."""
    return tool("python", "-m", "pytest", "-p", "no:cacheprovider", "--durations=8", *arguments)


# ansible-lint checks each playbook's syntax without an inventory, which our configuration takes for an error.
LINT_ENVIRONMENT = [
    "env",
    "ANSIBLE_INVENTORY_UNPARSED_FAILED=false",
    "ANSIBLE_INVENTORY_ANY_UNPARSED_IS_FAILED=false",
    f"PATH={BIN}:/usr/local/bin:/usr/bin:/bin",
]

STEPS = [
    Step("ruff", tool("ruff", "check", "."), 2, "lint"),
    Step("types", tool("mypy", *PYTHON_FOLDERS), 30, "lint"),
    Step("types of the lab", tool("mypy", "molecule/lab"), 10, "lint"),
    Step("yamllint", tool("yamllint", "--strict", "."), 5, "lint"),
    Step(
        "ansible-lint",
        [*LINT_ENVIRONMENT, *tool("ansible-lint", "--strict", "--nocolor")],
        60,
        "lint",
    ),
    Step("floor 3.10, the host's", tool("vermin", "-q", "-t=3.10-", "--no-tips", "library", "module_utils"), 5, "lint"),
    Step("floor 3.9, the workload's", tool("vermin", "-q", "-t=3.9-", "--no-tips", "gpu_checks"), 5, "lint"),
    Step("generated pages are up to date", tool("python", "-m", "gpuhost_cli.docs", "--check"), 2, "lint"),
    # Two at a time, which is what a machine of two cores has.
    Step("units", pytest("tests/unit", "tests/gpu", "-q", "-n", "2", *STEAL, "--timeout", "300"), 300, "unit"),
    # Mostly waiting: for ssh, for a host that is to come back, for a limit to pass.
    Step("plays", pytest("tests/integration", "-q", "-n", "3", *STEAL, "--timeout", "600"), 240, "play"),
    Step("lab", pytest("tests/lab", "-v", "-x", *ONE_FILE, "--timeout", "3600", "--ignore", FULL), 2400, "lab"),
]
FULL_STEPS = [
    Step(
        "10,000 device rule examples",
        ["env", "GPUHOST_EXAMPLES=10000", *pytest("tests/unit/test_lxc_properties.py", "-q")],
        300,
        "full",
    ),
    Step("measuring", pytest("tests/full", "-q", "--timeout", "600"), 120, "full"),
    Step("every trial", pytest(FULL, "-v", "--timeout", "4800"), 5400, "full"),
]
"""What ``make test-full`` adds."""


def read_times() -> dict[str, float]:
    """Seconds that each step took last time."""
    try:
        return dict(json.loads(TIMES.read_text()))
    except (OSError, ValueError):
        return {}


def stamp(seconds: float) -> str:
    """Minutes and seconds."""
    return f"{int(seconds) // 60:2d}:{int(seconds) % 60:02d}"


def run_step(step: Step, begun: float, expected: float) -> tuple[int, float]:
    """Run one step; a line of the clock at its begin, every ten seconds, and at its end."""
    started = time.monotonic()
    done = threading.Event()

    def say(text: str) -> None:
        now = time.monotonic()
        print(f"[{stamp(now - begun)}] {step.name}: {text}", flush=True)

    def tick() -> None:
        while not done.wait(TICK_S):
            say(f"{stamp(time.monotonic() - started)} of about {stamp(expected)}")

    say(f"begins, about {stamp(expected)}")
    clock = threading.Thread(target=tick, daemon=True)
    clock.start()
    try:
        rc = subprocess.run(step.argv, cwd=ROOT, check=False).returncode
    finally:
        done.set()
        clock.join()
    seconds = time.monotonic() - started
    say(f"{'ok' if rc == 0 else f'FAILED with {rc}'} after {stamp(seconds)}")
    return rc, seconds


def main() -> int:
    """Run the steps; all of a group that failed are shown, later groups are not begun."""
    made = argparse.ArgumentParser(description=__doc__)
    made.add_argument("--only", action="append", choices=sorted({step.group for step in [*STEPS, *FULL_STEPS]}))
    made.add_argument("--full", action="store_true", help="the long scenarios too")
    options = made.parse_args()
    known = [*STEPS, *FULL_STEPS]
    steps = [step for step in known if step.group in (options.only or [])] or (known if options.full else STEPS)
    begun, times, failed, group = time.monotonic(), read_times(), [], ""
    for step in steps:
        if failed and step.group != group:
            break
        group = step.group
        rc, seconds = run_step(step, begun, times.get(step.name, step.expected_s))
        if rc != 0:
            failed.append(step.name)
        else:
            times[step.name] = round(seconds, 1)
    TIMES.parent.mkdir(exist_ok=True)
    TIMES.write_text(json.dumps(times, indent=2) + "\n")
    result = f"FAILED: {', '.join(failed)}" if failed else "all steps ok"
    print(f"make test: {stamp(time.monotonic() - begun)}: {result}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
