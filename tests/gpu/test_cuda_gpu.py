"""The check ``cuda`` on real GPUs: the archive as it is shipped, and what it leaves behind, which is nothing."""

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gpu_checks.build_zipapp import build

VERSION_FILE = Path("/proc/driver/nvidia/version")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not VERSION_FILE.exists(), reason=f"no NVIDIA driver: {VERSION_FILE} does not exist"),
]
RUNS = 20
GPUS = len([name for name in os.listdir("/dev") if re.fullmatch(r"nvidia\d+", name)])
ALL = ",".join(str(number) for number in range(GPUS))


@pytest.fixture(scope="module")
def archive(tmp_path_factory):
    path = tmp_path_factory.mktemp("build") / "gpu_checks.pyz"
    build(path)
    return path


def measure(archive, *arguments, **environment):
    """Measurements by name, and the seconds of the whole command."""
    begin = time.monotonic()
    done = subprocess.run(
        [sys.executable, str(archive), "cuda", "--json", *arguments],
        capture_output=True, text=True, check=True, timeout=180, env={**os.environ, **environment},
    )  # fmt: skip
    seconds = time.monotonic() - begin
    assert done.stderr == ""
    return {each["name"]: each for each in json.loads(done.stdout)["measurements"]}, seconds


def used_mib():
    """Used memory of every GPU, and how many processes compute on them, as NVIDIA's own tool says."""
    query = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    memory = subprocess.run(query, capture_output=True, text=True, check=True).stdout.split()
    query = ["nvidia-smi", "--query-compute-apps=pid", "--format=csv,noheader"]
    pids = subprocess.run(query, capture_output=True, text=True, check=True).stdout.split()
    return [int(value) for value in memory], len(pids)


GIVEN_BACK_S = 10
"""A killed process's memory is free once the driver has closed its files and cleared what was in it."""


def assert_given_back(before):
    """As much memory and as many processes as before, as soon as the driver is through."""
    deadline = time.monotonic() + GIVEN_BACK_S
    while used_mib() != before and time.monotonic() < deadline:
        time.sleep(0.5)
    assert used_mib() == before


def test_every_gpu_computes_right_again_and_again_and_nothing_stays(archive, tmp_path):
    before = used_mib()
    rows = []
    for _ in range(RUNS):
        seen, wall = measure(archive, "--expect-gpus", str(GPUS), HOME=str(tmp_path))
        whole = seen["cuda"]
        assert (whole["status"], whole["value"]) == ("measured", GPUS), whole
        seconds = whole["detail"]["seconds"]
        rows.append((seconds["init"], seconds["gpus"], seconds["ours"], wall))
    print(json.dumps(seen, indent=1))
    for name, column in zip(("cuInit", "gpus", "ours", "wall"), zip(*rows, strict=True), strict=True):
        ordered = sorted(column)
        print(f"{name}: min {ordered[0]:.3f} s, median {ordered[len(ordered) // 2]:.3f} s, max {ordered[-1]:.3f} s")
    assert_given_back(before)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("value", "status", "cause", "number"),
    [
        (ALL, "measured", None, None),
        ("", "error", "cuda.device_hidden", 100),
        (str(GPUS), "error", "cuda.device_hidden", 100),
        ("0,0", "error", "cuda.device_hidden", 101),
        (f"{ALL},{GPUS + 1}", "measured", None, None),  # cut behind the last one: nothing is missing
        (",".join(reversed(ALL.split(","))), "measured", None, None),
        ("0,99,1", "measured" if GPUS == 1 else "error", None if GPUS == 1 else "cuda.device_hidden", None),
        ("-1", "error", "cuda.device_hidden", 100),
        ("NoDevFiles", "error", "cuda.device_hidden", 100),
    ],
)
def test_visible_devices(archive, value, status, cause, number):
    whole = measure(archive, "--expect-gpus", str(GPUS), CUDA_VISIBLE_DEVICES=value)[0]["cuda"]
    error = whole["detail"]["cuda_error"]
    print(value, whole["status"], whole["cause"], error, whole["detail"].get("message"))
    assert (whole["status"], whole["cause"], error and error["number"]) == (status, cause, number)


def test_a_gpu_by_its_name(archive):
    """By UUID, and by the beginning of one: what is listed can be compared with the inventory's number only."""
    uuids = [each["detail"]["uuid"] for name, each in measure(archive)[0].items() if name != "cuda"]
    assert len(set(uuids)) == GPUS
    said = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=True).stdout
    assert all(uuid in said for uuid in uuids)
    for value in (uuids[-1], uuids[-1][:14]):
        seen = measure(archive, "--expect-gpus", "1", CUDA_VISIBLE_DEVICES=value)[0]
        assert (seen["cuda"]["status"], seen["cuda.gpu0"]["detail"]["uuid"]) == ("measured", uuids[-1])


def test_a_gpu_too_many_is_missed(archive):
    whole = measure(archive, "--expect-gpus", str(GPUS + 1))[0]["cuda"]
    assert (whole["status"], whole["cause"]) == ("error", "cuda.gpu_count")


def test_no_library_on_the_loaders_path(archive):
    """The real driver's nodes, and a loader that looks elsewhere: a folder with a file that is no library."""
    folder = archive.parent / "none"
    folder.mkdir()
    (folder / "libcuda.so.1").write_text("no library")
    whole = measure(archive, LD_LIBRARY_PATH=str(folder))[0]["cuda"]
    print(whole["detail"]["message"])
    assert (whole["status"], whole["cause"]) == ("error", "cuda.library_missing")


AS_USER = (
    "import os, runpy, sys; os.setgroups([]); os.setgid(65534); os.setuid(65534); "
    "sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0], run_name='__main__')"
)
only_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user, or mount")


@only_root
@pytest.mark.parametrize(
    ("node", "major", "cause"),
    [
        ("nvidia-uvm", None, "device.denied_mode"),
        ("nvidiactl", None, "device.denied_mode"),
        (f"nvidia{GPUS - 1}", None, "device.denied_mode"),
        ("nvidia-uvm", 1, "device.node_wrong_major"),
    ],
)
def test_a_node_that_a_user_may_not_open(archive, tmp_path, node, major, cause):
    """The real driver behind a node of another mode, or of a stranger's major, seen by this process alone."""
    numbers = os.stat(f"/dev/{node}").st_rdev
    copy, share = tmp_path / node, (archive.parent, *archive.parents[1:3])
    os.mknod(copy, 0o020600, os.makedev(os.major(numbers) if major is None else major, os.minor(numbers)))
    for folder in share:
        folder.chmod(0o755)
    script = 'mount --bind "$1" "$2" || exit 99; shift 2; exec "$@"'
    command = [sys.executable, "-c", AS_USER, str(archive), "cuda", "--json", "--expect-gpus", str(GPUS)]
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", script, "sh", str(copy), f"/dev/{node}", *command],
        capture_output=True, text=True, check=False, cwd="/", env={**os.environ, "HOME": "/"},
    )  # fmt: skip
    if done.returncode == 99:
        pytest.skip(f"no mount of our own here: {done.stderr}")
    whole = json.loads(done.stdout)["measurements"][-1]
    print(node, whole["cause"], whole["detail"]["message"], whole["detail"]["cuda_error"], whole["value"])
    assert (whole["status"], whole["cause"]) == ("error", cause)
    assert node in whole["detail"]["message"]


@only_root
def test_as_a_user_without_rights(archive):
    """The nodes are everybody's, as the driver makes them; the interpreter must be everybody's as well."""
    for folder in (archive.parent, *archive.parents[1:3]):
        folder.chmod(0o755)
    command = [sys.executable, "-c", AS_USER, str(archive), "cuda", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd="/", env={**os.environ, "HOME": "/"})
    whole = json.loads(done.stdout)["measurements"][-1]
    print(whole["status"], whole["cause"], whole["detail"].get("message"))
    assert (whole["detail"]["euid"], whole["status"]) == (65534, "measured")


TAKE_ALL = """
import sys
from gpu_checks.cuda_api import Api, CudaError
api = Api()
api.init()
api.retain(0)
keep = 64 << 20
size = api.free_bytes()
while size > keep:
    try:
        api.allocate(size)
    except CudaError:
        size //= 2
    else:
        size = min(size, api.free_bytes())
print(api.free_bytes(), flush=True)
sys.stdin.read()
"""


def test_a_gpu_that_a_server_has_filled_is_not_broken(archive):
    """Another process takes the memory, with plain allocations, until a context does not fit any more."""
    server = subprocess.Popen(
        [sys.executable, "-c", TAKE_ALL], cwd=Path(__file__).resolve().parents[2], stdin=subprocess.PIPE,
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        left = int(server.stdout.readline())
        seen = measure(archive)[0]
        print(left, json.dumps(seen["cuda.gpu0"], indent=1), seen["cuda"]["detail"].get("message"))
        assert (seen["cuda.gpu0"]["status"], seen["cuda.gpu0"]["cause"]) == ("not_measured", "cuda.out_of_memory")
        assert seen["cuda"]["status"] == "not_measured"
    finally:
        server.communicate("")
    assert measure(archive)[0]["cuda"]["status"] == "measured"
