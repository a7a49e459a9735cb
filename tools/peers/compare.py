"""Compare our figures with those of nvbandwidth, nccl-tests and triton's do_bench, on the same GPUs, in turn.

    make checks
    python3 tools/peers/compare.py all --programs .peers --output /tmp/peers

Run it with the Python that has torch: our checks run with the same one, and nccl-tests gets that torch's NCCL. The
programs come from build.py. Each round runs ours, then the peer; the table has the medians of the rounds. Nothing else
may use the GPUs meanwhile. Results are written after every command (peers.md, peers.json, and ours.json with our last
documents), so that what a limit cuts off loses nothing that was measured.

Exit status: 0 all that is asked for is met; 1 something is not, or was not measured; 2 it could not be run.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import figures
from bench import Bench, OutOfTime, Setup
from nccl_tests import nccl_of_torch
from sets import SETS, judged_by

DEFAULT_LIMIT_S = 480.0
DEFAULT_ROUNDS = 3
SCHEMA, SCHEMA_VERSION = "gpuhost.peers", 1


def count_gpus(listing: str) -> int:
    """How many GPUs ``nvidia-smi -L`` lists; a MIG device's line is indented.

    >>> count_gpus("GPU 0: NVIDIA H200 (UUID: GPU-1)\\n  MIG 1g.18gb Device 0: (UUID: MIG-1)\\n")
    1
    """
    return sum(1 for line in listing.splitlines() if line.startswith("GPU "))


def environment(programs: Path, nccl: Path | None, inherited: dict[str, str]) -> dict[str, str]:
    """What is added to every command's environment: the libraries of nccl-tests, and NVLS off unless asked for.

    >>> environment(Path("/p"), Path("/n"), {})["LD_LIBRARY_PATH"]
    '/n/lib:/p/mpi/lib:/p/mpi/lib/mpich'
    """
    folders = [*([str(nccl / "lib")] if nccl else []), str(programs / "mpi/lib"), str(programs / "mpi/lib/mpich")]
    before = inherited.get("LD_LIBRARY_PATH")
    return {
        "LC_ALL": "C",
        "LD_LIBRARY_PATH": ":".join([*folders, *([before] if before else [])]),
        "NCCL_NVLS_ENABLE": inherited.get("NCCL_NVLS_ENABLE", "0"),
        # Only host memory goes through MPI here; it need not look for GPUs.
        "MPIR_CVAR_ENABLE_GPU": "0",
    }


def all_rows(bench: Bench) -> dict[str, list[figures.Row]]:
    """The table of each set, as far as it goes."""
    return {
        name: figures.rows(collected.ours, collected.peers, judged_by(list(collected.peers)))
        for name, collected in bench.collected.items()
    }


def document(bench: Bench, rounds: int) -> dict[str, Any]:
    """Everything for the record. No host names, nothing of the environment but what was set here."""
    tables = {name: [{**vars(row), "ratio": row.ratio} for row in made] for name, made in all_rows(bench).items()}
    return {
        "schema": SCHEMA,
        "schema_version": SCHEMA_VERSION,
        "taken_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "seconds": round(time.monotonic() - bench.begun, 1),
        "rounds_wanted": rounds,
        "rounds": bench.rounds,
        "about": bench.about,
        "environment": bench.setup.environment,
        "tables": tables,
        "notes": bench.notes,
        "runs": bench.runs,
    }


def report(bench: Bench) -> str:
    """The tables and notes for people."""
    parts = [f"## {name}\n\n{figures.markdown(made)}" for name, made in all_rows(bench).items()]
    if bench.notes:
        parts.append("## Notes\n\n" + "".join(f"* {text}\n" for text in bench.notes))
    return "\n".join(parts)


def write(path: Path, text: str) -> None:
    """Replace a file as a whole."""
    temporary = path.with_name(f".{path.name}.new")
    temporary.write_text(text)
    temporary.replace(path)


def save(bench: Bench, output: Path, rounds: int) -> None:
    """Write what there is so far."""
    write(output / "peers.md", report(bench))
    write(output / "peers.json", json.dumps(document(bench, rounds), indent=1, sort_keys=True) + "\n")
    write(output / "ours.json", json.dumps(bench.documents, indent=1, sort_keys=True) + "\n")


def query(argv: list[str]) -> str:
    """What nvidia-smi says; empty where it fails."""
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=60)
    return done.stdout if done.returncode == 0 else ""


def parser() -> argparse.ArgumentParser:
    """The options."""
    made = argparse.ArgumentParser(
        prog="compare.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument(
        "sets", nargs="+", choices=[*SETS, "all"], metavar="set", help=f"all, or some of: {', '.join(SETS)}"
    )
    made.add_argument("--output", type=Path, required=True, metavar="DIR", help="where the results go")
    made.add_argument("--programs", type=Path, default=Path(".peers"), metavar="DIR", help="what build.py made")
    made.add_argument("--archive", type=Path, default=Path("build/gpu_checks.pyz"), metavar="FILE", help="ours")
    made.add_argument("--python", default=sys.executable, metavar="PROGRAM", help="the Python that has torch")
    made.add_argument("--rounds", type=int, default=DEFAULT_ROUNDS, metavar="N")
    made.add_argument("--limit", type=float, default=DEFAULT_LIMIT_S, metavar="S", help="never longer than this")
    return made


def missing(options: argparse.Namespace) -> str | None:
    """What is not there without which nothing can be compared, in a sentence."""
    if not options.archive.exists():
        return f"{options.archive} is missing: make checks"
    if not (options.programs / "nvbandwidth").exists():
        return f"{options.programs / 'nvbandwidth'} is missing: see tools/peers/build.py --help"
    if shutil.which("nvidia-smi") is None:
        return "nvidia-smi is missing: this needs a machine with NVIDIA GPUs"
    return None


def rounds_of(bench: Bench, names: list[str], rounds: int) -> None:
    """Every round of every set that these GPUs allow, until the time is over."""
    for turn in range(rounds):
        for name in names:
            needed, one_round = SETS[name]
            if bench.setup.gpus < needed:
                bench.note(f"{name}: not measured, it needs {needed} GPUs and {bench.setup.gpus} is there")
                continue
            bench.said(f"round {turn + 1} of {rounds}: {name}")
            one_round(bench, turn)
            bench.rounds[name] = turn + 1


def main(argv: list[str] | None = None) -> int:
    """Compare; see the module's text for the exit status."""
    options = parser().parse_args(argv)
    trouble = missing(options)
    if trouble is not None:
        print(f"compare.py: {trouble}", file=sys.stderr)
        return 2
    options.output.mkdir(parents=True, exist_ok=True)
    programs = options.programs.resolve()
    added = environment(programs, nccl_of_torch(), dict(os.environ))
    gpus = count_gpus(query(["nvidia-smi", "-L"]))
    setup = Setup(
        options.python,
        str(options.archive.resolve()),
        programs,
        gpus,
        added,
        (programs / "all_reduce_perf_mpi").exists(),
    )
    begun = time.monotonic()

    def say(text: str) -> None:
        print(f"[{time.monotonic() - begun:4.0f} s] {text}", flush=True)

    bench = Bench(setup, options.limit, say, begun=begun)
    bench.after = lambda: save(bench, options.output, options.rounds)
    names = list(SETS) if "all" in options.sets else list(dict.fromkeys(options.sets))
    fields = "name,driver_version,clocks.max.sm,clocks.max.memory,power.limit"
    bench.about["gpus"] = query(["nvidia-smi", f"--query-gpu={fields}", "--format=csv"]).splitlines()
    try:
        rounds_of(bench, names, options.rounds)
    except OutOfTime as error:
        bench.note(f"stopped at the limit of {options.limit:g} s: {error}")
    bench.after()
    print(report(bench))
    made = [row for table in all_rows(bench).values() for row in table]
    return 0 if made and all(row.ok is not False for row in made) and not bench.notes else 1


if __name__ == "__main__":
    sys.exit(main())
