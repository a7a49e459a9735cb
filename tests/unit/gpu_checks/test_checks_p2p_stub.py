"""The command ``p2p`` on stub libraries: what keeps it from its first pair has the causes of the check ``cuda``."""

from __future__ import annotations

import pytest
from cuda_stage import Stage, needs_stage

pytestmark = needs_stage


@pytest.fixture(scope="module")
def stage(tmp_path_factory):
    return Stage.make(tmp_path_factory.mktemp("stage"))


@pytest.mark.parametrize(
    ("environment", "status", "cause"),
    [
        ({"CUDA_VISIBLE_DEVICES": "0"}, "not_measured", "p2p.one_gpu"),
        ({"CUDA_VISIBLE_DEVICES": ""}, "error", "cuda.device_hidden"),
        ({"GPUHOST_STUB_CUDA": "cuInit=802"}, "error", "cuda.system_not_ready"),
        ({"GPUHOST_STUB_CUDA": "cuInit=803"}, "error", "cuda.version_mismatch"),
        ({"GPUHOST_STUB_CUDA": "cuDevicePrimaryCtxRetain=2"}, "not_measured", "cuda.out_of_memory"),
        ({"GPUHOST_STUB_CUDA": "cuDevicePrimaryCtxRetain=999"}, "error", "cuda.context_failed"),
    ],
)
def test_before_the_first_pair(stage, environment, status, cause):
    seen = stage.run("p2p", **environment)
    whole = seen["p2p"]
    assert (whole["status"], whole["cause"], whole["value"]) == (status, cause, None), whole
    assert whole["detail"]["message"]
    assert whole["seconds"] < 1
    assert list(seen) == ["p2p"]


def test_one_gpu_hidden_from_two(stage):
    whole = stage.run("p2p", "--expect-gpus", "2", CUDA_VISIBLE_DEVICES="1")["p2p"]
    assert (whole["status"], whole["cause"]) == ("error", "cuda.device_hidden")


def test_a_start_that_hangs_is_ended_by_the_checks_own_limit(stage):
    whole = stage.run("p2p", timeout=2, GPUHOST_STUB_CUDA="cuInit=hang")["p2p"]
    assert (whole["status"], whole["cause"]) == ("error", "cuda.driver_hang")
