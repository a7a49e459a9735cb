"""``make demo``: one lab machine, one real kernel roll, one report. With KEEP=1 the machine stays up afterwards."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BIN = Path(sys.executable).parent
NAME = "demo"


def run(title: str, argv: list[str]) -> int:
    """One part of the demo, with its own progress on the terminal."""
    print(f"\n=== {title}", flush=True)
    environment = {**os.environ, "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"), "PATH": f"{BIN}:{os.environ['PATH']}"}
    return subprocess.run(argv, cwd=ROOT, env=environment, check=False).returncode


def lab(*arguments: str) -> list[str]:
    """A command of the lab."""
    return [str(BIN / "python"), "-m", "gpuhost_lab", *arguments]


def lab_playbook(name: str) -> list[str]:
    """The lab's create or destroy playbook for the demo's machine."""
    variables = json.dumps({"lab_machines": [NAME]})
    return [str(BIN / "ansible-playbook"), f"molecule/default/{name}.yml", "-i", "localhost,", "-e", variables]


def main() -> int:
    """Create, roll, show, destroy. The machine goes away also where the roll fails; the report stays."""
    begun = time.monotonic()
    keep = os.environ.get("KEEP") == "1"
    status = run("A lab machine: Debian 12, kernel 6.1, stub NVIDIA driver, one container", lab_playbook("create"))
    if status != 0:
        return status
    roll = ["upgrade", "-i", "inventory/lab/hosts.yml", "--limit", NAME, "--target", "6.12"]
    status = run(f"gpuhost {' '.join(roll)}", [str(BIN / "gpuhost"), *roll])
    run("What the machine says", lab("ssh", "--name", NAME, "--", "uname", "-r"))
    run("Its container", lab("ssh", "--name", NAME, "--", "lxc-info", "-n", "gpu-ct", "-s"))
    if keep:
        print(
            f"\nThe machine stays up: {' '.join(lab('ssh', '--name', NAME))}; throw it away with lab down --name {NAME}"
        )
    else:
        run("The machine is thrown away (KEEP=1 make demo leaves it up)", lab_playbook("destroy"))
    reports = sorted((ROOT / "runs").glob("*/report.html"))
    minutes = (time.monotonic() - begun) / 60
    print(f"\ndemo: {'good' if status == 0 else f'exit status {status}'} after {minutes:.1f} minutes")
    if reports:
        print(f"report: {reports[-1]}")
    return status


if __name__ == "__main__":
    sys.exit(main())
