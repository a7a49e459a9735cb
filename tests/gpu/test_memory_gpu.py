"""The check ``memory`` on real GPUs: the archive as it is shipped, its figures, and what it leaves behind.

The comparison with nvbandwidth is made by hand, in turn with it: docs/baselines.md.
"""

import json
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
KINDS = ("copy", "copy_sm", "read", "write")


@pytest.fixture(scope="module")
def archive(tmp_path_factory):
    path = tmp_path_factory.mktemp("build") / "gpu_checks.pyz"
    build(path)
    return path


def measure(archive, *arguments):
    begin = time.monotonic()
    command = [sys.executable, str(archive), "memory", "--json", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=180)
    seconds = time.monotonic() - begin
    assert done.stderr == ""
    return {each["name"]: each for each in json.loads(done.stdout)["measurements"]}, seconds


def test_figures_of_every_gpu(archive):
    before = used_mib()
    for _ in range(3):
        seen, wall = measure(archive, "--expect-gpus", str(GPUS))
        whole = seen["memory"]
        assert (whole["status"], whole["value"], whole["cause"]) == ("measured", GPUS, None), whole
        for ordinal in range(GPUS):
            for kind in KINDS:
                each = seen[f"memory.{kind}.gpu{ordinal}"]
                detail = each["detail"]
                print(
                    f"{each['name']}: {each['value']:.0f} GB/s (one way {detail.get('one_way_gb_s')}), "
                    f"share {detail['share']} of {detail['peak_gb_s']}, p20 {each['samples']['p20']:.0f}, "
                    f"p80 {each['samples']['p80']:.0f}, blocks {detail.get('blocks_per_multiprocessor')}, "
                    f"{each['seconds']:.3f} s"
                )
                # No memory is faster than its peak, and none that is healthy below half of it.
                assert 0.5 < detail["share"] <= 1.0, each
        print(f"check {whole['seconds']:.2f} s, command {wall:.2f} s")
    assert_given_back(before)


FILL = """
import sys
from gpu_checks.cuda_api import Api, CudaError
api = Api()
api.init()
api.retain(0)
keep = int(sys.argv[1]) << 20
while api.free_bytes() > keep:
    try:
        api.allocate(min(1 << 30, api.free_bytes() - keep))
    except CudaError:
        break
print(api.free_bytes(), flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize(("left_mib", "status", "cause"), [(1500, "measured", None), (700, None, None)])
def test_a_gpu_that_a_server_has_nearly_filled(archive, left_mib, status, cause):
    """Smaller buffers where there is less room; none at all is said so, with numbers."""
    server = subprocess.Popen(
        [sys.executable, "-c", FILL, str(left_mib)], cwd=Path(__file__).resolve().parents[2], stdin=subprocess.PIPE,
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        left = int(server.stdout.readline())
        seen, _ = measure(archive)
        whole, copy = seen["memory"], seen["memory.copy.gpu0"]
        print(left >> 20, "MiB left:", whole["status"], whole["cause"], whole["detail"].get("message"), copy["value"])
        if status is not None:
            assert (copy["status"], copy["cause"]) == (status, cause)
        else:
            # Whether 700 MiB are enough depends on the L2 and on what a context takes.
            assert copy["status"] == "measured" or copy["cause"] in ("memory.no_room", "cuda.out_of_memory")
    finally:
        server.communicate("")
