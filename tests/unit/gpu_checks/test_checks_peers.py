"""What tools/peers compares is what the archive measures: names, units and details, on GPUs made of host memory."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

import pytest
from cuda_stage import HERE, VERSION, Stage, needs_stage, open_the_way

pytestmark = needs_stage
FOLDER = HERE.parents[2] / "tools" / "peers"


@pytest.fixture(scope="module")
def ours():
    """The parser, which is a script's neighbour, without a place in sys.path."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(FOLDER))
        kept = {name: sys.modules.pop(name) for name in ("figures", "ours") if name in sys.modules}
        yield importlib.import_module("ours")
        for name in ("figures", "ours"):
            sys.modules.pop(name, None)
        sys.modules.update(kept)


def figures(ours, seen):
    """What is found in the measurements of a run: each figure with its places."""
    text = json.dumps({"schema": "gpuhost.measurements", "measurements": list(seen.values())})
    found: dict[str, list[str]] = {}
    for figure, place in ours.readings(ours.parse(text)):
        found.setdefault(figure, []).append(place)
    return {figure: sorted(places) for figure, places in found.items()}


def test_memory_and_p2p(ours, tmp_path):
    open_the_way(tmp_path)
    stage = Stage.make(tmp_path, Path(__file__).with_name("stub_gpus.c"))
    pairs = ["0-1", "1-0"]
    # The stub of NVML has no memory clock, so there is no share; that is said.
    seen = stage.run("memory")
    assert figures(ours, seen) == {"local copy, one way (GB/s)": ["0", "1"]}
    assert "no share of the NVML peak" in ours.troubles(list(seen.values()))[0]
    assert figures(ours, stage.run("p2p", timeout=60)) == {
        "CE write (GB/s)": pairs,
        "CE write, both ways at once (GB/s)": pairs,
        "SM write (GB/s)": pairs,
        "SM read (GB/s)": pairs,
        "latency of one read (us)": pairs,
    }


def test_allreduce(ours, tmp_path):
    open_the_way(tmp_path)
    stage = Stage.make(tmp_path, HERE / "stub_collective.c")
    (tmp_path / "lib/libnccl.so.2").symlink_to(f"libcuda.so.{VERSION}")
    found = figures(ours, stage.run("allreduce", timeout=60, STUB_FREE_MIB="258", STUB_FOLDER=str(tmp_path)))
    for mode in ("eager", "graph"):
        assert found[f"allreduce, {mode}, 12288 B (us)"] == ["all"]
        assert found[f"allreduce, {mode}, 1048576 B (busbw GB/s)"] == ["all"]
