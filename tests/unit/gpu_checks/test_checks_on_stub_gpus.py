"""The archive as it is shipped, on two GPUs made of host memory: healthy, and with each fault that we can make.

What the figures are worth is for tests/gpu; here it is shown that each fault gives its own cause.
"""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest
from cuda_stage import NODES, Stage, needs_stage

pytestmark = needs_stage
MEASURING = ("memory", "p2p", "allreduce", "gemm", "torch")


@pytest.fixture(scope="module")
def stage(tmp_path_factory):
    return Stage.make(tmp_path_factory.mktemp("stage"), Path(__file__).with_name("stub_gpus.c"))


def seen(stage, check, *arguments, **changes):
    """The whole check, and its parts by name."""
    libraries = changes.pop("libraries", stage.libraries)
    parts = replace(stage, libraries=libraries).run(check, *arguments, **changes)
    return parts[check], parts


@pytest.mark.parametrize("check", MEASURING)
@pytest.mark.parametrize(
    ("changes", "cause"),
    [
        ({"devices": ()}, "driver.not_loaded"),
        ({"nodes": {}}, "device.node_missing"),
        ({"libraries": "none"}, "cuda.library_missing"),
        ({"STUB_FAULT": "init:999"}, "cuda.init_failed"),
        ({"STUB_FAULT": "init:802"}, "cuda.system_not_ready"),
        ({"STUB_GPUS": "1"}, "cuda.gpu_count"),
        ({"CUDA_VISIBLE_DEVICES": "0", "STUB_GPUS": "1"}, "cuda.device_hidden"),
    ],
)
def test_what_keeps_cuda_from_starting_is_said_at_once(stage, check, changes, cause):
    begin = time.monotonic()
    whole, parts = seen(stage, check, "--expect-gpus", "2", **changes)
    print(f"{time.monotonic() - begin:.2f} s, of which the check took {whole['seconds']:.3f} s")
    assert (whole["status"], whole["cause"]) == ("error", cause), whole
    assert list(parts) == [check]
    assert whole["seconds"] < 0.2
    assert whole["detail"]["message"]


def test_the_nodes_of_the_stage_are_those_of_two_gpus():
    assert {"nvidia0", "nvidia1"} < set(NODES)


class TestMemory:
    def test_healthy(self, stage):
        whole, parts = seen(stage, "memory")
        assert (whole["status"], whole["value"], whole["cause"]) == ("measured", 2, None), whole
        assert {name.split(".")[1] for name in parts if "." in name} >= {"copy", "read", "write"}
        for name, each in parts.items():
            assert each["status"] == "measured", name

    def test_a_wrong_word(self, stage):
        whole, _ = seen(stage, "memory", STUB_FAULT="badmem:1")
        assert (whole["status"], whole["cause"]) == ("error", "memory.wrong_data"), whole
        assert "GPU 1" in whole["detail"]["message"]

    def test_no_room(self, stage):
        whole, _ = seen(stage, "memory", STUB_FREE_MIB="1")
        assert (whole["status"], whole["cause"]) == ("not_measured", "memory.no_room"), whole


class TestP2p:
    def test_healthy(self, stage):
        whole, parts = seen(stage, "p2p")
        assert (whole["status"], whole["value"], whole["cause"]) == ("measured", 2, None), whole
        for pair in ("0-1", "1-0"):
            assert parts[f"p2p.ce.{pair}"]["value"] == pytest.approx(50, rel=0.1)

    def test_a_healthy_ring(self, stage):
        whole, _ = seen(stage, "p2p", "--quick")
        assert (whole["status"], whole["cause"]) == ("measured", None), whole

    def test_one_gpu_has_no_peer(self, stage):
        whole, _ = seen(stage, "p2p", STUB_GPUS="1", nodes={k: v for k, v in NODES.items() if k != "nvidia1"})
        assert (whole["status"], whole["cause"]) == ("not_measured", "p2p.one_gpu"), whole

    @pytest.mark.parametrize(
        ("fault", "cause", "broken"),
        [
            ("zeros:0-1", "p2p.wrong_data", "0-1"),
            ("flip:1-0", "p2p.wrong_data", "1-0"),
            ("hang:0-1", "p2p.hang", "0-1"),
        ],
    )
    def test_a_broken_direction_is_named_and_the_other_one_measured(self, stage, fault, cause, broken):
        whole, parts = seen(stage, "p2p", timeout=40, STUB_FAULT=fault)
        assert (whole["status"], whole["cause"], whole["value"]) == ("error", cause, 1), whole
        assert parts[f"p2p.ce.{broken}"]["cause"] == cause
        other = "-".join(reversed(broken.split("-")))
        assert parts[f"p2p.ce.{other}"]["status"] == "measured"

    def test_a_slow_direction_is_a_number(self, stage):
        whole, parts = seen(stage, "p2p", STUB_FAULT="slow:0-1")
        assert whole["status"] == "measured"
        assert parts["p2p.ce.0-1"]["value"] == pytest.approx(5, rel=0.1)
        assert parts["p2p.ce.1-0"]["value"] == pytest.approx(50, rel=0.1)

    def test_a_collapse_shows_only_together(self, stage):
        _, parts = seen(stage, "p2p", STUB_FAULT="collapse")
        assert parts["p2p.ce.0-1"]["value"] == pytest.approx(50, rel=0.1)
        together = [each["value"] for name, each in parts.items() if name.startswith("p2p.together.")]
        assert min(together) < 0.2

    def test_no_peer_access(self, stage):
        whole, parts = seen(stage, "p2p", STUB_FAULT="nopeer:0-1")
        assert parts["p2p.ce.0-1"]["detail"]["peer_access"] is False
        assert whole["value"] is not None
