"""The whole command ``cuda`` on stub libraries: every rung fails once, each with its own cause."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from cuda_stage import DEVICES, NODES, SYSTEM_PYTHON, VERSION, Stage, needs_stage, open_the_way

pytestmark = needs_stage
NVSWITCH = {"sys/bus/pci/devices/0000:07:00.0/vendor": "0x10de", "sys/bus/pci/devices/0000:07:00.0/class": "0x068000"}
# A BMC's VGA chip, and a GPU: neither is an NVSwitch.
NO_NVSWITCH = {
    "sys/bus/pci/devices/0000:03:00.0/vendor": "0x1a03", "sys/bus/pci/devices/0000:03:00.0/class": "0x030000",
    "sys/bus/pci/devices/0000:05:00.0/vendor": "0x10de", "sys/bus/pci/devices/0000:05:00.0/class": "0x030200",
}  # fmt: skip
HMM = "sys/module/nvidia_uvm/parameters/uvm_disable_hmm"


@pytest.fixture(scope="module")
def stage(tmp_path_factory):
    folder = tmp_path_factory.mktemp("stage")
    # Another user must reach the archive and the libraries.
    open_the_way(folder)
    return Stage.make(folder)


def cuda(stage, *arguments, **changes):
    return stage.run("cuda", *arguments, **changes)["cuda"]


def test_every_gpu_computes_right(stage):
    seen = stage.run("cuda", "--expect-gpus", "2")
    whole = seen["cuda"]
    assert list(seen) == ["cuda.gpu0", "cuda.gpu1", "cuda"]
    assert (whole["status"], whole["value"], whole["unit"], whole["cause"]) == ("measured", 2, "gpus", None)
    assert whole["detail"]["libcuda"]["path"].endswith(f"/libcuda.so.{VERSION}")
    assert (whole["detail"]["libcuda"]["version"], whole["detail"]["libcuda"]["cuda"]) == (VERSION, 13000)
    assert "found" not in whole["detail"]  # the healthy way reads nothing of the host
    gpu = seen["cuda.gpu1"]["detail"]
    assert (gpu["uuid"], gpu["pci_bus_id"]) == ("GPU-00000000-0000-4000-8000-000000000001", "0001:02:00.0")
    assert set(gpu["seconds"]) == {"context", "allocation", "kernel", "uvm", "release"}
    assert set(whole["detail"]["seconds"]) == {"load", "init", "gpus", "ours"}


GPU_RUNGS = [
    ("cuDeviceGetName=999", "cuda.context_failed", "cuDeviceGetName gave 999"),
    ("cuDevicePrimaryCtxRetain=999", "cuda.context_failed", "context: cuDevicePrimaryCtxRetain gave 999"),
    ("cuMemAlloc_v2=1", "cuda.allocation_failed", "allocation: cuMemAlloc_v2 gave 1"),
    ("cuMemcpyHtoD_v2=214", "cuda.allocation_failed", "cuMemcpyHtoD_v2 gave 214"),
    ("cuModuleLoadData=200", "cuda.kernel_failed", "kernel: cuModuleLoadData gave 200 (CUDA_ERROR_INVALID_IMAGE)"),
    ("cuModuleLoadData=221", "cuda.library_missing", "libnvidia-ptxjitcompiler"),
    ("cuLaunchKernel=719", "cuda.kernel_failed", "kernel: cuLaunchKernel gave 719"),
    ("cuCtxSynchronize=719", "cuda.kernel_failed", "cuCtxSynchronize gave 719"),
    ("cuMemAllocManaged=801", "cuda.uvm_failed", "uvm: cuMemAllocManaged gave 801"),
    ("cuMemAllocManaged=wrong", "cuda.uvm_failed", "killed by SIGSEGV"),
    ("cuDevicePrimaryCtxRelease_v2=999", "cuda.context_failed", "release: cuDevicePrimaryCtxRelease_v2 gave 999"),
]


@pytest.mark.parametrize(("wish", "cause", "words"), GPU_RUNGS)
def test_each_rung_on_a_gpu(stage, wish, cause, words):
    whole = cuda(stage, GPUHOST_STUB_CUDA=wish)
    assert (whole["status"], whole["cause"]) == ("error", cause)
    assert words in whole["detail"]["message"]


def test_wrong_result(stage):
    seen = stage.run("cuda", GPUHOST_STUB_CUDA="cuLaunchKernel@1=wrong")
    whole = seen["cuda"]
    assert (whole["status"], whole["cause"], whole["value"]) == ("error", "cuda.wrong_result", 1)
    assert "GPU 1, kernel: 1 of 262144 elements are wrong, the first is element 131072" in whole["detail"]["message"]
    assert seen["cuda.gpu0"]["status"] == "measured"


@pytest.mark.parametrize("call", ["cuDevicePrimaryCtxRetain", "cuMemAlloc_v2", "cuMemAllocManaged"])
def test_a_full_gpu_is_not_called_broken(stage, call):
    seen = stage.run("cuda", GPUHOST_STUB_CUDA=f"{call}@0=2", GPUHOST_STUB_CUDA_FREE="1048576")
    assert (seen["cuda.gpu0"]["status"], seen["cuda.gpu0"]["cause"]) == ("not_measured", "cuda.out_of_memory")
    assert seen["cuda.gpu0"]["detail"]["free_bytes"] == 1048576
    assert "1048576 of 103079215104 bytes are free" in seen["cuda"]["detail"]["message"]
    assert (seen["cuda"]["status"], seen["cuda"]["cause"]) == ("not_measured", "cuda.out_of_memory")
    assert seen["cuda.gpu1"]["status"] == "measured"


def test_an_exclusive_gpu_is_busy(stage):
    whole = cuda(stage, GPUHOST_STUB_CUDA="cuDevicePrimaryCtxRetain@1=46")
    assert (whole["status"], whole["cause"]) == ("not_measured", "cuda.device_busy")


def test_a_broken_gpu_comes_before_a_full_one(stage):
    whole = cuda(stage, GPUHOST_STUB_CUDA="cuMemAlloc_v2@0=2,cuLaunchKernel@1=719")
    assert (whole["status"], whole["cause"]) == ("error", "cuda.kernel_failed")


def test_a_device_without_managed_memory_passes_and_says_so(stage):
    seen = stage.run("cuda", GPUHOST_STUB_CUDA_NO_MANAGED="1")
    assert seen["cuda"]["status"] == "measured"
    assert "no managed memory" in seen["cuda.gpu0"]["detail"]["uvm"]


START = [
    ("cuInit=3", {HMM: "N"}, {}, "cuda.hmm_failed", "uvm_disable_hmm is N"),
    ("cuInit=3", {HMM: "Y"}, {}, "cuda.init_failed", "so it is not that"),
    ("cuInit=100", {}, {}, "cuda.no_device", "although its device nodes open"),
    ("cuInit=802", NVSWITCH, {}, "cuda.fabric_manager", "there is an NVSwitch"),
    ("cuInit=802", NO_NVSWITCH, {}, "cuda.system_not_ready", "no NVSwitch on this host"),
    ("cuInit=803", {}, {}, "cuda.version_mismatch", f"libcuda {VERSION}"),
    ("cuInit=999", {}, {"GPUHOST_STUB_NVML": "18"}, "cuda.version_mismatch", "cuInit gave 999"),
    ("cuInit=999", {}, {}, "cuda.init_failed", "cuInit gave 999 (CUDA_ERROR_UNKNOWN)"),
    ("cuDeviceGetCount=3", {}, {}, "cuda.init_failed", "cuInit gave 3"),
    ("", {}, {"CUDA_VISIBLE_DEVICES": ""}, "cuda.device_hidden", "set and empty"),
    ("", {}, {"CUDA_VISIBLE_DEVICES": "8"}, "cuda.device_hidden", "cut at '8'"),
    ("", {}, {"CUDA_VISIBLE_DEVICES": "0,0"}, "cuda.device_hidden", "lists 0 twice"),
    ("", {}, {"STUB_OPEN": "/dev/nvidia-uvm=1"}, "device.denied_cgroup", "/dev/nvidia-uvm: EPERM"),
    ("", {}, {"STUB_OPEN": "/dev/nvidia-uvm=13"}, "device.denied_mode", "/dev/nvidia-uvm: EACCES"),
    ("", {}, {"STUB_OPEN": "/dev/nvidiactl=1"}, "device.denied_cgroup", "/dev/nvidiactl: EPERM"),
    ("", {}, {"STUB_UVM_STATUS": "0x56"}, "device.query_failed", "rmStatus 0x56"),
]


@pytest.mark.parametrize(("wish", "sysfs", "environment", "cause", "words"), START)
def test_each_way_in_which_cuda_does_not_start(stage, wish, sysfs, environment, cause, words):
    whole = cuda(replace(stage, sysfs=sysfs), "--expect-gpus", "2", GPUHOST_STUB_CUDA=wish, **environment)
    assert (whole["status"], whole["cause"], whole["value"]) == ("error", cause, 0)
    assert words in whole["detail"]["message"]
    if not environment.get("GPUHOST_STUB_NVML"):
        # nvidia-smi would work in most of these cases: it is no witness.
        assert whole["detail"]["found"]["nvml_init"] == (4 if "nvidiactl" in environment.get("STUB_OPEN", "") else 0)


def test_closed_modules_have_no_hmm_fault(stage):
    closed = f"NVRM version: NVIDIA UNIX x86_64 Kernel Module  {VERSION}  Release Build"
    whole = cuda(replace(stage, sysfs={HMM: "N"}), module=closed, GPUHOST_STUB_CUDA="cuInit=3")
    assert whole["cause"] == "cuda.init_failed"


def test_compatibility_library_in_front(stage):
    whole = cuda(replace(stage, libraries="cuda/compat"), GPUHOST_STUB_CUDA="cuInit=804")
    assert whole["cause"] == "cuda.compat_library"
    assert "/cuda/compat/libcuda.so." in whole["detail"]["message"]


def test_another_version_than_the_module_only_matters_when_cuda_fails(stage):
    module = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  590.48.01  Release Build"
    assert cuda(stage, module=module)["status"] == "measured"
    whole = cuda(stage, module=module, GPUHOST_STUB_CUDA="cuInit=999")
    assert whole["cause"] == "cuda.version_mismatch"
    assert f"module 590.48.01, libcuda {VERSION}" in whole["detail"]["message"]


def test_no_library(stage):
    whole = cuda(replace(stage, libraries="none"))
    assert (whole["status"], whole["cause"]) == ("error", "cuda.library_missing")
    assert "libcuda.so.1" in whole["detail"]["message"]


def test_a_gpu_too_few(stage):
    whole = cuda(stage, "--expect-gpus", "3")
    assert (whole["status"], whole["cause"], whole["value"]) == ("error", "cuda.gpu_count", 2)
    assert "CUDA sees 2 GPUs, expected 3" in whole["detail"]["message"]


def test_a_gpu_too_many(stage):
    assert cuda(stage, "--expect-gpus", "1")["cause"] == "cuda.gpu_count"


def test_a_list_that_is_cut_hides_gpus_without_any_error(stage):
    whole = cuda(stage, "--expect-gpus", "2", CUDA_VISIBLE_DEVICES="1,9,0")
    assert (whole["cause"], whole["value"]) == ("cuda.device_hidden", 1)
    assert "is cut at '9': of 2 GPUs 1 are left" in whole["detail"]["message"]
    assert whole["detail"]["environment"]["CUDA_VISIBLE_DEVICES"] == "1,9,0"


@pytest.mark.parametrize(
    ("number", "cause"), [(1, "device.denied_cgroup"), (5, "driver.gpu_not_started"), (13, "device.denied_mode")]
)
def test_a_gpu_that_is_missing_is_explained_by_its_node(stage, number, cause):
    whole = cuda(stage, "--expect-gpus", "2", STUB_OPEN=f"/dev/nvidia1={number}")
    assert (whole["cause"], whole["value"]) == (cause, 1)
    # Without an expectation a GPU that is not this container's is nobody's loss.
    assert cuda(stage, STUB_OPEN=f"/dev/nvidia1={number}")["status"] == "measured"


@pytest.mark.parametrize(
    ("nodes", "devices", "cause"),
    [
        (NODES, ("1 mem",), "driver.not_loaded"),
        (NODES, DEVICES[:2], "driver.not_loaded"),
        ({name: NODES[name] for name in NODES if name != "nvidia-uvm"}, DEVICES, "device.node_missing"),
        ({"nvidiactl": (1, 3, "666"), "nvidia-uvm": (1, 3, "666")}, DEVICES, "device.node_missing"),
        ({**NODES, "nvidia-uvm": (125, 0, "666")}, DEVICES, "device.node_wrong_major"),
        ({**NODES, "nvidia1": (125, 1, "666")}, DEVICES, "device.node_wrong_major"),
    ],
)
def test_cuda_is_not_called_where_a_node_forbids_it(stage, nodes, devices, cause):
    whole = cuda(stage, nodes=nodes, devices=devices, GPUHOST_STUB_CUDA="cuInit=hang")
    assert (whole["status"], whole["cause"]) == ("error", cause)
    assert "init" not in whole["detail"]["seconds"]


@pytest.mark.skipif(not Path(SYSTEM_PYTHON).exists(), reason=f"no {SYSTEM_PYTHON}, which every user may run")
def test_a_users_rights_decide_for_the_user(stage):
    nodes = {**NODES, "nvidia-uvm": (1, 3, "660")}
    assert cuda(stage, nodes=nodes)["status"] == "measured"
    whole = cuda(stage, nodes=nodes, user=65534)
    assert (whole["cause"], whole["detail"]["euid"]) == ("device.denied_mode", 65534)
    assert "mode 0660 of 0:0" in whole["detail"]["message"]


@pytest.mark.parametrize(
    ("wish", "words"), [("cuInit=hang", "call cuInit"), ("cuLaunchKernel@1=hang", "kernel on GPU 1")]
)
def test_a_driver_that_hangs(stage, wish, words):
    seen = stage.run("cuda", timeout=1.5, GPUHOST_STUB_CUDA=wish)
    whole = seen["cuda"]
    assert (whole["status"], whole["cause"], whole["value"]) == ("error", "cuda.driver_hang", None)
    assert words in whole["detail"]["message"]
    assert whole["detail"]["process_state"].startswith("D (disk sleep)")
    assert ("cuda.gpu0" in seen) == ("@1" in wish)


def test_a_driver_that_crashes(stage):
    whole = cuda(stage, GPUHOST_STUB_CUDA="cuInit=crash")
    assert (whole["status"], whole["cause"]) == ("error", "check.crashed")
    assert whole["detail"]["ending"] == "killed by SIGSEGV"


def test_the_workloads_own_settings_are_recorded_though_ours_are_used(stage):
    whole = cuda(stage, CUDA_LAUNCH_BLOCKING="1")
    assert whole["detail"]["environment"]["CUDA_LAUNCH_BLOCKING"] == "1"


def test_nothing_is_left_in_the_users_home(stage, tmp_path):
    cuda(stage, HOME=str(tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_every_cause_of_the_check_is_given_in_a_test():
    """What no test can provoke, nobody has seen work."""
    from gpu_checks.causes import CAUSES  # noqa: PLC0415

    texts = Path(__file__).read_text() + Path(__file__).with_name("test_checks_triage.py").read_text()
    assert [code for code in CAUSES if code.startswith("cuda.") and f'"{code}"' not in texts] == []
    assert json.dumps(sorted(CAUSES))
