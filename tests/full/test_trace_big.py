"""A trace of 1 GB in under 60 s and 2 GB of memory. It is synthetic, with the mixture of events of a real one."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.unit.fake_trace import Plan, big

BYTES = 1_000_000_000
LIMIT_S, LIMIT_KB = 60, 2_000_000
CHILD = """
import resource, sys
from gpuhost_cli import trace
status = trace.main(sys.argv[1:])
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, file=sys.stderr)
sys.exit(status)
"""


@pytest.mark.parametrize("name", ["big.json", "big.json.gz", "merged.json"])
def test_a_trace_of_1_gb(tmp_path: Path, name: str) -> None:
    """As Kineto writes it, packed, and on one line without Kineto's layout, as a merger of ranks writes it."""
    path = tmp_path / name
    steps = big(path, BYTES, lines=name != "merged.json")
    begin = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", CHILD, str(path), "--json"], capture_output=True, text=True, timeout=300, check=False
    )
    seconds, kilobytes = time.monotonic() - begin, int(done.stderr)
    document = json.loads(done.stdout)
    [gpu] = document["gpus"]
    size = document["files"][0]["size_mb"]
    print(f"{name}: {size:.0f} MB unpacked, {document['files'][0]['events']:,} events: {seconds:.1f} s, {kilobytes} kB")
    path.unlink()
    assert size * 1e6 > 0.7 * BYTES
    assert seconds < LIMIT_S
    assert kilobytes < LIMIT_KB
    truth = Plan(layers=60, gap=500, host=40_000).truth()
    shares = {row["key"]: row["wall_percent"] for row in gpu["classes"]}
    assert gpu["steps"]["count"] == steps - 1
    assert shares == pytest.approx({key: value for key, value in truth.items() if key != "idle"}, abs=0.01)
    assert gpu["idle"]["percent"] == pytest.approx(truth["idle"], abs=0.01)
