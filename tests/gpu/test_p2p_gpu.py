"""The check ``p2p`` on real GPUs: one with itself as a pair tries all of the machinery; several are the real thing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from test_cuda_gpu import GPUS, VERSION_FILE, assert_given_back, used_mib

from gpu_checks.build_zipapp import build

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not VERSION_FILE.exists(), reason=f"no NVIDIA driver: {VERSION_FILE} does not exist"),
]
several = pytest.mark.skipif(GPUS < 2, reason=f"{GPUS} GPU: no pair")
INJECT = Path(__file__).resolve().parent / "p2p_inject.py"
RUNS = 20
ERRORS = {"wrong": "p2p.wrong_data", "zeros": "p2p.wrong_data", "hang": "p2p.hang", "dies": "p2p.failed"}


@pytest.fixture(scope="module")
def archive(tmp_path_factory):
    path = tmp_path_factory.mktemp("build") / "gpu_checks.pyz"
    build(path)
    return path


def measure(command, *arguments, **environment):
    """Measurements by name, and the seconds of the whole command."""
    begin = time.monotonic()
    done = subprocess.run(
        [sys.executable, *map(str, command), "p2p", "--json", *arguments],
        capture_output=True, text=True, check=True, timeout=180, env={**os.environ, **environment},
    )  # fmt: skip
    seconds = time.monotonic() - begin
    assert done.stderr == ""
    return {each["name"]: each for each in json.loads(done.stdout)["measurements"]}, seconds


def show(seen, seconds):
    """What a person wants to see of a run."""
    for name, each in seen.items():
        said = each["detail"].get("message") or ""
        print(f"{name:<36} {each['status']:<12} {each['value']} {each['unit']} {each['cause'] or ''} {said}")
    print(seen["p2p"]["detail"].get("table"), f"\n{seconds:.2f} s")


def local(archive, fault="none", *arguments):
    return measure([INJECT, archive, fault, "0-0"], *arguments)


def test_one_gpu_with_itself(archive):
    before = used_mib()
    seen, seconds = local(archive)
    show(seen, seconds)
    print(json.dumps(seen["p2p.ce.0-0"], indent=1))
    assert {each["status"] for each in seen.values()} == {"measured"}
    assert (seen["p2p"]["value"], seen["p2p"]["detail"]["workers"]) == (1, 1)
    for what in ("ce", "sm_write", "sm_read"):
        assert seen[f"p2p.{what}.0-0"]["value"] > 50
    assert 0.05 < seen["p2p.latency.0-0"]["value"] < 5
    assert_given_back(before)


@pytest.mark.parametrize("fault", ERRORS)
def test_each_fault_has_its_cause_and_leaves_nothing(archive, fault):
    before = used_mib()
    seen, seconds = local(archive, fault)
    show(seen, seconds)
    assert (seen["p2p.ce.0-0"]["status"], seen["p2p.ce.0-0"]["cause"]) == ("error", ERRORS[fault])
    assert (seen["p2p"]["status"], seen["p2p"]["cause"]) == ("error", ERRORS[fault])
    assert seen["p2p"]["value"] == 0
    if fault == "wrong":
        assert "1 words are wrong" in seen["p2p.ce.0-0"]["detail"]["message"]
    if fault == "zeros":
        assert "all of them zero" in seen["p2p.ce.0-0"]["detail"]["message"]
    assert_given_back(before)
    assert local(archive)[0]["p2p"]["status"] == "measured"


def test_a_slow_pair_shows(archive):
    healthy, slow = local(archive)[0], local(archive, "slow")[0]
    assert slow["p2p.ce.0-0"]["value"] < 0.2 * healthy["p2p.ce.0-0"]["value"]


def test_one_visible_gpu_is_no_pair(archive):
    seen, seconds = measure([archive], CUDA_VISIBLE_DEVICES="0")
    print(seen["p2p"]["detail"], f"{seconds:.2f} s")
    assert list(seen) == ["p2p"]
    assert (seen["p2p"]["status"], seen["p2p"]["cause"]) == ("not_measured", "p2p.one_gpu")


@several
def test_every_pair_again_and_again(archive):
    before, rows = used_mib(), []
    for _ in range(RUNS):
        seen, seconds = measure([archive], "--expect-gpus", str(GPUS))
        assert (seen["p2p"]["status"], seen["p2p"]["value"]) == ("measured", GPUS * (GPUS - 1)), seen["p2p"]["detail"]
        assert seen["p2p"]["detail"]["workers"] == 1
        rows.append((seconds, *(seen[f"p2p.{what}.0-1"]["value"] for what in ("ce", "ce_both", "sm_write", "sm_read"))))
    show(seen, seconds)
    for name, column in zip(("seconds", "ce", "ce_both", "sm_write", "sm_read"), zip(*rows, strict=True), strict=True):
        ordered = sorted(column)
        print(f"{name}: min {ordered[0]:.2f}, median {ordered[len(ordered) // 2]:.2f}, max {ordered[-1]:.2f}")
    assert_given_back(before)


@several
def test_the_quick_ring(archive):
    seen, seconds = measure([archive], "--quick")
    show(seen, seconds)
    assert (seen["p2p"]["status"], seen["p2p"]["value"]) == ("measured", GPUS)
    assert seconds < 5


@several
@pytest.mark.parametrize("fault", ERRORS)
def test_one_bad_pair_and_its_way_back(archive, fault):
    before = used_mib()
    seen, seconds = measure([INJECT, archive, fault, "0-1"])
    show(seen, seconds)
    assert (seen["p2p.ce.0-1"]["status"], seen["p2p.ce.0-1"]["cause"]) == ("error", ERRORS[fault])
    assert (seen["p2p.ce.1-0"]["status"], seen["p2p.ce.1-0"]["cause"]) == ("measured", None)
    assert seen["p2p"]["value"] == GPUS * (GPUS - 1) - 1
    assert_given_back(before)


@several
def test_without_peer_access_copies_go_through_the_host(archive):
    seen, seconds = measure([INJECT, archive, "no_access", "0-1"])
    show(seen, seconds)
    assert (seen["p2p.access.0-1"]["status"], seen["p2p.access.0-1"]["cause"]) == (
        "not_measured", "p2p.no_peer_access",
    )  # fmt: skip
    assert seen["p2p.ce.0-1"]["detail"]["link"]["kind"] == "staged"
    assert seen["p2p"]["status"] == "measured"


@several
def test_forbidden_by_the_environment(archive):
    seen, _ = measure([archive], "--quick", NCCL_P2P_DISABLE="1")
    assert seen["p2p.environment"]["cause"] == "p2p.disabled_by_environment"
