"""Install torch for the tests that compute on the CPU, where pip would take a build without CUDA.

The CUDA build brings gigabytes that no test needs: where that is what pip would take, nothing is installed, the reason
is printed, and those tests are skipped.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys

WANTED = "torch==2.13.0"
"""The version whose gloo, matrix products and number formats the tests were written for."""

PIP = (sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check")


def would_install() -> list[str] | None:
    """The names of what pip would install; None, with pip's own last line printed, where it can't."""
    command = [*PIP, "--dry-run", "--ignore-installed", "--report", "-", WANTED]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        print(f"no torch for the tests: {done.stderr.strip().splitlines()[-1:]}")
        return None
    return [str(item["metadata"]["name"]).lower() for item in json.loads(done.stdout)["install"]]


def main() -> int:
    """Install it, or say why not. Exit status 0 in both cases: these tests are skipped elsewhere."""
    if importlib.util.find_spec("torch") is not None:
        return 0
    names = would_install()
    if names is None:
        return 0
    cuda = sorted(name for name in names if name.startswith("nvidia-") or name == "triton")
    if cuda:
        print(f"no torch for the tests: pip would bring its CUDA build ({', '.join(cuda[:3])}, ...)")
        return 0
    return subprocess.run([*PIP, WANTED], check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
