"""The whole command ``allreduce`` on stub libraries that queue, record and meet as CUDA and NCCL do."""

import json
from dataclasses import replace

import pytest
from cuda_stage import HERE, NODES, VERSION, Stage, needs_stage, open_the_way

from gpu_checks.allreduce.arithmetic import SIZES

pytestmark = needs_stage
# Room for buffers of 1 MiB: a CPU adds up no 512 MiB within a test.
SMALL = {"STUB_FREE_MIB": "258"}
TOKEN = "allreduce.graph.12288"


@pytest.fixture(scope="module")
def stage(tmp_path_factory):
    folder = tmp_path_factory.mktemp("stage")
    open_the_way(folder)
    made = Stage.make(folder, HERE / "stub_collective.c")
    # One file, so that it is loaded once: the driver and NCCL share what they know.
    (folder / "lib/libnccl.so.2").symlink_to(f"libcuda.so.{VERSION}")
    return made


def allreduce(stage, *arguments, **changes):
    return stage.run("allreduce", *arguments, **{**SMALL, "STUB_FOLDER": str(stage.folder), **changes})


def test_all_sizes_that_fit_in_both_modes(stage):
    seen = allreduce(stage, timeout=60)
    whole = seen["allreduce"]
    fit = [size for size in SIZES if size <= 1 << 20]
    assert [name for name, each in seen.items() if each["status"] == "measured"] == [
        f"allreduce.{mode}.{size}" for mode in ("eager", "graph") for size in fit
    ]
    assert {each["cause"] for name, each in seen.items() if name.endswith("536870912")} == {"cuda.out_of_memory"}
    assert (whole["status"], whole["cause"]) == ("not_measured", "cuda.out_of_memory")
    assert whole["value"] == seen[TOKEN]["value"] > 0
    detail = whole["detail"]
    print(json.dumps(detail, indent=1))
    assert (detail["ranks"], detail["layout"], detail["version"]) == (2, "process", "2.28.9")
    assert detail["library"] == str(stage.folder / "lib/libnccl.so.2")
    assert detail["transports"] == {"P2P/CUMEM": 2}  # what NCCL said through C's stdout has arrived
    assert detail["set_by_check"] == {"NCCL_NVLS_ENABLE": "0", "NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT"}
    assert [each["ordinal"] for each in detail["gpus"]["after"]] == [0, 1]
    one = seen[TOKEN]
    assert 5 <= one["samples"]["n"] <= 20  # fewer on a busy machine
    assert one["detail"]["bytes"] == 12288


def test_the_quick_set(stage):
    seen = allreduce(stage, "--quick", STUB_FREE_MIB="4096")
    assert list(seen) == [TOKEN, "allreduce.eager.67108864", "allreduce.busbw.67108864", "allreduce"]
    assert {each["status"] for each in seen.values()} == {"measured"}
    eager, bus = seen["allreduce.eager.67108864"], seen["allreduce.busbw.67108864"]
    assert bus["value"] == pytest.approx((64 << 20) / eager["value"] / 1e3)  # two ranks: the factor is 1
    assert (bus["unit"], bus["samples"]["p20"] <= bus["value"] <= bus["samples"]["p80"]) == ("gb_s", True)


@pytest.mark.parametrize("gpus", [2, 3])
def test_one_process_for_all_gpus(stage, gpus):
    """The layout of nccl-tests. NCCL refuses calls for several GPUs of one process outside of a group, as does the
    stub; streams, events and kernels of the wrong context are refused too."""
    nodes = {**NODES, **({"nvidia2": NODES["nvidia0"]} if gpus == 3 else {})}
    more = {"GPU_CHECKS_LAYOUT": "single", "STUB_GPUS": str(gpus)}
    seen = allreduce(stage, "--quick", nodes=nodes, **more)
    assert seen[TOKEN]["status"] == "measured", seen[TOKEN]
    assert (seen[TOKEN]["detail"]["layout"], seen[TOKEN]["detail"]["ranks"]) == ("single", gpus)
    assert seen["allreduce"]["detail"]["transports"] == {"P2P/direct pointer": gpus}


def test_three_ranks_restart_their_chains(stage):
    seen = allreduce(stage, "--quick", nodes={**NODES, "nvidia2": NODES["nvidia0"]}, STUB_GPUS="3")
    assert seen[TOKEN]["status"] == "measured", seen[TOKEN]
    assert seen[TOKEN]["detail"]["fresh_input_every"] == 9


def test_the_users_own_settings_are_kept_and_named(stage):
    mine = {"NCCL_NVLS_ENABLE": "1", "NCCL_P2P_DISABLE": "1", "NCCL_DEBUG": "WARN"}
    detail = allreduce(stage, "--quick", **mine)["allreduce"]["detail"]
    assert detail["set_by_check"] == {}
    assert detail["settings"] == mine
    assert "NCCL_P2P_DISABLE" in detail["notes"][0]


@pytest.mark.parametrize(
    ("fault", "cause", "words"),
    [
        ("shm@0", "nccl.shm_full", ["rank 1 on GPU 1", "No space left on device"]),
        ("driver@0", "nccl.driver_too_old", ["rank 1 on GPU 1", "driver version is insufficient"]),
        ("fail@0", "nccl.failed", ["ncclCommInitRank gave 5 (invalid usage): Duplicate GPU detected"]),
        ("kill@0", "allreduce.rank_died", ["rank 1 on GPU 1 (0000:02:00.0) died (killed by SIGABRT)"]),
        ("kill@4", "allreduce.rank_died", ["rank 1 on GPU 1 (0000:02:00.0) died (killed by SIGKILL)", "12288 bytes"]),
        ("fail@4", "nccl.failed", ["rank 1 on GPU 1", "ncclAllReduce gave 2", "Connection reset by peer"]),
        ("wrong@3", "allreduce.wrong_data", ["rank 1: 1 of 3072 elements are wrong, the first: element 3071 is"]),
        ("nan@3", "allreduce.wrong_data", ["element 3071 is nan (0x7fc00000), expected"]),
    ],
)
def test_what_breaks_has_its_own_cause(stage, fault, cause, words):
    """The third operation is the first whose data is compared: one to align, one loose before the graph is recorded."""
    whole = allreduce(stage, "--quick", STUB_RANK1=fault)["allreduce"]
    print(whole["detail"]["message"])
    assert (whole["status"], whole["cause"], whole["value"]) == ("error", cause, None)
    for each in words:
        assert each in whole["detail"]["message"]


@pytest.mark.parametrize(("layout", "fault"), [("process", "hang@0"), ("process", "hang@4"), ("single", "hang@4")])
def test_a_hang_is_ended_by_the_checks_own_limit_at_the_latest(stage, fault, layout):
    seen = allreduce(stage, "--quick", timeout=3, STUB_RANK1=fault, GPU_CHECKS_LAYOUT=layout)
    print(seen["allreduce"]["detail"]["message"])
    assert (seen["allreduce"]["status"], seen["allreduce"]["cause"]) == ("error", "allreduce.hang")


@pytest.mark.parametrize(
    ("fail", "cause"),
    [
        ("cuInit=999", "cuda.init_failed"),
        ("cuInit=802", "cuda.system_not_ready"),
        ("cuInit=803", "cuda.version_mismatch"),
        ("cuDevicePrimaryCtxRetain=999", "cuda.context_failed"),
        ("cuDevicePrimaryCtxRetain=46", "cuda.device_busy"),
        ("cuMemAlloc_v2=2", "cuda.out_of_memory"),
        ("cuModuleLoadData=200", "cuda.kernel_failed"),
        ("cuModuleLoadData=221", "cuda.library_missing"),
        ("cuStreamSynchronize=700", "cuda.kernel_failed"),
        ("cuStreamEndCapture=900", "cuda.kernel_failed"),
    ],
)
def test_what_the_driver_refuses(stage, fail, cause):
    whole = allreduce(stage, "--quick", STUB_FAIL=fail)["allreduce"]
    print(whole["detail"]["message"])
    assert (whole["status"] in ("error", "not_measured"), whole["cause"]) == (True, cause)


def test_one_gpu(stage):
    one = {name: node for name, node in NODES.items() if name != "nvidia1"}
    seen = allreduce(stage, nodes=one, STUB_GPUS="1")
    assert list(seen) == ["allreduce"]
    assert (seen["allreduce"]["status"], seen["allreduce"]["cause"]) == ("not_measured", "allreduce.one_gpu")


def test_one_gpu_hidden_from_a_host_with_two(stage):
    whole = allreduce(stage, "--expect-gpus", "2", STUB_GPUS="1", CUDA_VISIBLE_DEVICES="0")["allreduce"]
    assert (whole["status"], whole["cause"]) == ("error", "cuda.device_hidden")


def test_two_ranks_on_one_gpu_for_tests(stage):
    one = {name: node for name, node in NODES.items() if name != "nvidia1"}
    seen = allreduce(stage, "--quick", nodes=one, STUB_GPUS="1", STUB_FREE_MIB="520", GPU_CHECKS_SHARE_GPU="1")
    detail = seen["allreduce"]["detail"]
    assert seen[TOKEN]["status"] == "measured"
    assert "share one GPU" in detail["notes"][0]
    assert (detail["settings"]["NCCL_HOSTID"], detail["settings"]["NCCL_SOCKET_IFNAME"]) == ("gpuhost-0", "lo")


def test_no_nccl_is_said_at_once_and_no_driver_comes_first(stage):
    without = replace(stage, libraries="cuda/compat")  # libcuda alone
    seen = without.run("allreduce")
    assert list(seen) == ["allreduce"]
    whole = seen["allreduce"]
    assert (whole["status"], whole["cause"]) == ("not_measured", "nccl.missing")
    assert whole["seconds"] < 0.2
    assert "libnccl.so.2 is nowhere" in whole["detail"]["message"]
    whole = without.run("allreduce", nodes={}, devices=())["allreduce"]
    assert (whole["status"], whole["cause"]) == ("error", "driver.not_loaded")


def test_a_library_that_is_none(stage):
    folder = stage.folder / "broken"
    folder.mkdir()
    (folder / "libnccl.so.2").write_text("no library")
    seen = allreduce(stage, "--quick", LD_LIBRARY_PATH=f"{folder}:{stage.folder / 'lib'}")["allreduce"]
    assert (seen["status"], seen["cause"]) == ("not_measured", "nccl.missing")
    assert "can't be loaded" in seen["detail"]["message"]
