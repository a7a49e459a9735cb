"""Inference servers by their processes: found, grouped, what they loaded, and their flags against those declared."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fake_host import FakeHost
from fake_snapshot import lay, snapshot
from hypothesis import given
from hypothesis import strategies as st

from gpuhost import audit_flags, audit_rooted, audit_secrets, audit_servers, audit_serving
from gpuhost.audit_servers import Library, Process, Server
from gpuhost.documents import Finding
from gpuhost.errors import Stop

SITE = "/opt/venv/lib/python3.12/site-packages"
SGLANG = ("/opt/venv/bin/python3", "-m", "sglang.launch_server", "--model-path", "/models/m", "--tp-size", "8")


# --- which process is a server


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("python3 -m sglang.launch_server --model-path m", "SGLang"),
        ("/usr/bin/python3.12 -u -X dev -m sglang.launch_server", "SGLang"),
        ("python3 /sgl-workspace/sglang/python/sglang/launch_server.py --tp 8", "SGLang"),
        ("sglang::scheduler_TP0", "SGLang"),
        ("/opt/venv/bin/python /opt/venv/bin/vllm serve m", "vLLM"),
        ("vllm serve m", "vLLM"),
        ("python3 -m vllm.entrypoints.openai.api_server --model m", "vLLM"),
        ("python3 -m vllm serve m", "vLLM"),
        ("VLLM::EngineCore", "vLLM"),
        ("/usr/local/bin/llama-server -m m.gguf -ngl 99", "llama.cpp"),
        ("python3 -m llama_cpp.server --model m", "llama.cpp"),
        ("text-generation-launcher --model-id m", "TGI"),
        ("/usr/bin/python3 /usr/bin/text-generation-server serve m", "TGI"),
        ("vllm bench throughput", ""),
        ("python3 -m vllm bench serve", ""),
        ("bash -c vllm serve m", ""),
        ("sudo -u llm vllm serve m", ""),
        ("docker run --gpus all vllm/vllm-openai --model m", ""),
        ("vi sglang/launch_server.py", ""),
        ("grep -r sglang.launch_server", ""),
        ("python3 -c import vllm", ""),
        ("python3 train.py -m sglang.launch_server", ""),
        ("python3", ""),
        ("", ""),
    ],
)
def test_a_command_line_that_starts_a_server(line: str, kind: str) -> None:
    assert audit_servers.kind_of(line.split(" ")) == kind


def test_what_descends_from_a_server_is_its_worker() -> None:
    processes = [
        Process(1, 0, ("/sbin/init",)),
        Process(10, 1, ("bash", "start.sh")),
        Process(11, 10, SGLANG),
        Process(12, 11, ("sglang::scheduler_TP0",)),
        Process(13, 11, SGLANG),  # forked, and not renamed
        Process(14, 13, ("/opt/venv/bin/python3", "-c", "from multiprocessing.spawn import spawn_main")),
        Process(20, 1, ("llama-server", "-m", "m.gguf")),
    ]
    grouped = [(kind, head.pid, workers) for kind, head, workers in audit_servers.group(processes)]
    assert grouped == [("SGLang", 11, (12, 13, 14)), ("llama.cpp", 20, ())]


def test_parents_that_go_in_a_circle_end() -> None:
    processes = [Process(1, 2, SGLANG), Process(2, 1, ("x",)), Process(3, 3, ("llama-server",))]
    assert [head.pid for _, head, _ in audit_servers.group(processes)] == [1, 3]


# --- libraries


def maps(*paths: str) -> str:
    return (
        "".join(f"7f00-7f01 r-xp 00000000 00:30 1234 {path}\n" for path in paths) + "7ffd-7ffe rw-p 0 00:00 0 [stack]\n"
    )


def test_libraries_by_what_is_mapped() -> None:
    found, sites = audit_servers.mapped(
        maps(
            f"{SITE}/nvidia/nccl/lib/libnccl.so.2", f"{SITE}/nvidia/nccl/lib/libnccl.so.2",
            "/usr/lib/x86_64-linux-gnu/libcuda.so.580.95.05 (deleted)", "/usr/lib/libc.so.6",
            "/usr/local/cuda/lib64/libcudart.so.12.8.90", "/opt/libcudart-9335f6a2.so.12", "/tmp/libnccl-fake.so",
        )
    )  # fmt: skip
    assert sites == (SITE,)
    assert found == (
        Library("nccl", f"{SITE}/nvidia/nccl/lib/libnccl.so.2"),
        Library("cuda", "/usr/lib/x86_64-linux-gnu/libcuda.so.580.95.05", "580.95.05", deleted=True),
        Library("cudart", "/usr/local/cuda/lib64/libcudart.so.12.8.90", "12.8.90"),
        Library("cudart", "/opt/libcudart-9335f6a2.so.12"),
    )


def test_versions_by_the_names_of_packages() -> None:
    names = ["torch-2.8.0+cu128.dist-info", "nvidia_nccl_cu12-2.27.5.dist-info", "nvidia_cublas-13.1.0.3.dist-info",
             "sglang-0.5.3.post1.dist-info", "other-1.0.dist-info", "torch", "sgl_kernel-0.3.11.dist-info"]  # fmt: skip
    found = audit_servers.versions(names)
    assert found == {
        "torch": "2.8.0+cu128", "nvidia-nccl-cu12": "2.27.5", "nvidia-cublas": "13.1.0.3", "sglang": "0.5.3.post1",
        "sgl-kernel": "0.3.11",
    }  # fmt: skip
    nccl = Library("nccl", f"{SITE}/nvidia/nccl/lib/libnccl.so.2")
    assert audit_servers.with_version(nccl, SITE, found).version == "2.27.5"
    assert audit_servers.with_version(replace(nccl, path="/usr/lib/libnccl.so.2"), SITE, found).version == ""


# --- the folder below a process's root


def test_no_link_below_a_processs_root_is_followed(tmp_path: Path) -> None:
    host = FakeHost(tmp_path)
    root = host.path("/proc/7/root")
    (root / "opt/venv/torch-2.8.0.dist-info").mkdir(parents=True)
    host.path("/root-of-host/secret-1.0.dist-info").mkdir(parents=True)
    os.symlink(host.path("/root-of-host"), root / "opt/outside")
    os.symlink("venv", root / "opt/inside")
    assert audit_rooted.names(host, 7, "/opt/venv") == ("torch-2.8.0.dist-info",)
    for folder in (
        "/opt/outside",
        "/opt/inside",
        "/opt/venv/../../..",
        "/nowhere",
        "/opt/venv/torch-2.8.0.dist-info/x",
    ):
        assert audit_rooted.names(host, 7, folder) is None
    assert audit_rooted.names(host, 8, "/opt/venv") is None


def test_the_processs_own_root_is_the_kernels_link(tmp_path: Path) -> None:
    host = FakeHost(tmp_path)
    host.path("/container/opt").mkdir(parents=True)
    host.path("/proc/7").mkdir(parents=True)
    os.symlink(host.path("/container"), host.path("/proc/7/root"))
    assert audit_rooted.names(host, 7, "/") == ("opt",)


# --- findings


BASE = Server("SGLang", 4211, SGLANG, "101", (4301,), {"sglang": "0.5.3", "torch": "2.8.0"})


def of(server: Server, code: str, flags: Any = ()) -> list[Finding]:
    found = audit_serving.findings(audit_serving.Facts((server,)), audit_flags.declared(list(flags)))
    return [item for item in found if item.id == f"serving.{code}"]


def libraries(*paths: str) -> dict[str, Any]:
    return {"libraries": tuple(Library("nccl", path, "2.27.5") for path in paths)}


def test_one_nccl_is_good() -> None:
    (item,) = of(replace(BASE, **libraries("/a/libnccl.so.2"), nccl_by_pid={4211: ("/a/libnccl.so.2",)}), "nccl")
    text = "SGLang 0.5.3, pid 4211 in container 101: 2.27.5 at /a/libnccl.so.2"
    assert (item.severity, item.observed) == ("good", text)


def test_two_in_one_process_and_two_in_one_server_are_faults() -> None:
    both = {4211: ("/a/libnccl.so.2", "/b/libnccl.so.2")}
    (item,) = of(replace(BASE, **libraries(*both[4211]), nccl_by_pid=both), "nccl")
    assert item.severity == "p0_runtime"
    assert "has 2: 2.27.5 at /a/libnccl.so.2, 2.27.5 at /b/libnccl.so.2 (both in pid 4211)" in item.observed
    apart = {4211: ("/a/libnccl.so.2",), 4301: ("/b/libnccl.so.2",)}
    (item,) = of(replace(BASE, nccl_by_pid=apart), "nccl")
    assert item.severity == "p0_runtime"


def test_a_preloaded_nccl_is_said() -> None:
    loaded: dict[str, Any] = {"nccl_by_pid": {4211: ("/opt/nccl/libnccl.so.2.27.5",)}}
    (item,) = of(replace(BASE, preload="/opt/nccl/libnccl.so.2.27.5", **loaded), "nccl")
    assert (item.severity, item.observed.endswith("by LD_PRELOAD")) == ("info", True)
    (item,) = of(replace(BASE, preload="/gone/libnccl.so.9", **loaded), "preload_lost")
    assert "none of its processes has it" in item.observed
    assert of(replace(BASE, preload="/usr/lib/libjemalloc.so.2"), "preload_lost") == []


def test_a_library_that_was_replaced() -> None:
    gone = Library("cuda", "/usr/lib/libcuda.so.580.95.05", "580.95.05", deleted=True)
    (item,) = of(replace(BASE, libraries=(gone,)), "replaced_library")
    assert item.severity == "p0_runtime"


def test_libraries_of_another_user_need_root() -> None:
    (item,) = of(replace(BASE, unread=(4211, 4301)), "libraries")
    assert (item.severity, "needs root" in item.observed) == ("unknown", True)


# --- flags


def test_a_flag_that_is_missing_names_pid_and_command_line() -> None:
    (item,) = of(BASE, "flags", [{"match": "launch_server", "flags": ["--ep-size 8"]}])
    assert item.severity == "p0_runtime"
    assert item.observed == f"{BASE.label} runs without --ep-size 8: {' '.join(SGLANG)}"
    assert item.source == "/proc/4211/cmdline"


@pytest.mark.parametrize(
    ("argv", "flags", "missing"),
    [
        ("--ep-size 8", ["--ep-size 8"], []),
        ("--ep-size=8", ["--ep-size 8"], []),
        ("--ep_size 8", ["--ep-size=8"], []),
        ("--ep 8", ["--ep-size 8"], []),
        ("-tp 8", ["--tensor-parallel-size 8"], []),
        ("--ep-size 4", ["--ep-size 8"], ["--ep-size 8 (has 4)"]),
        ("--ep-size 8 --ep-size 4", ["--ep-size 8"], ["--ep-size 8 (has 4)"]),
        ("--ep-size 4 --ep-size 8", ["--ep-size 8"], []),
        ("--ep-size", ["--ep-size 8"], ["--ep-size 8 (has no value)"]),
        ("--port 30000", ["--ep-size 8", "--trust-remote-code"], ["--ep-size 8", "--trust-remote-code"]),
        ("--trust-remote-code --port 1", ["--trust-remote-code"], []),
        ("--tp-size 8", ["--tp-size"], []),
        ("--mem-fraction-static 0.9", ["--mem-fraction-static 0.9"], []),
        ("-ngl 99", ["--n-gpu-layers 99"], []),
        ("--temp -1", ["--temp -1"], []),
        ("run--ep-size 8", ["--ep-size 8"], ["--ep-size 8"]),
    ],
)
def test_flags(argv: str, flags: list[str], missing: list[str]) -> None:
    (item,) = audit_flags.declared([{"match": "x", "flags": flags}])
    assert audit_flags.missing(item.flags, argv.split()) == missing


def test_a_config_file_may_set_what_the_command_line_does_not() -> None:
    server = replace(BASE, argv=(*SGLANG, "--config", "server.yaml"))
    (item,) = of(server, "flags", [{"match": "101", "flags": ["--ep-size 8"]}])
    assert item.severity == "unknown"
    (item,) = of(server, "flags", [{"match": "101", "flags": ["--tp-size 8"]}])
    assert item.severity == "good"


def test_a_server_that_has_renamed_itself_is_unknown() -> None:
    server = replace(BASE, argv=("sglang::scheduler_TP0",))
    (item,) = of(server, "flags", [{"match": "sglang", "flags": ["--ep-size 8"]}])
    assert item.severity == "unknown"


def test_a_declared_server_that_does_not_run() -> None:
    (item,) = of(BASE, "not_running", [{"match": "vllm serve", "flags": ["--tp 8"]}])
    assert item.severity == "p0_runtime"


@pytest.mark.parametrize(
    "given_",
    ["text", [1], [{"match": "x"}], [{"match": "", "flags": ["--a"]}], [{"match": "x", "flags": []}],
     [{"match": "x", "flags": ["ep-size 8"]}], [{"match": "x", "flags": [8]}], [{"match": 5, "flags": ["--a"]}],
     [{"match": "x", "flags": ["--a"], "more": 1}]],
)  # fmt: skip
def test_a_declaration_that_is_none_is_refused(given_: Any) -> None:
    with pytest.raises(Stop) as caught:
        audit_flags.declared(given_)
    assert caught.value.blocker.cause == "input.invalid"
    assert caught.value.blocker.object == "host_audit_serving_flags"


@given(st.lists(st.text(alphabet="-=ab1 ", max_size=6)), st.lists(st.text(alphabet="-=ab1", max_size=6)))
def test_any_command_line_can_be_compared(argv: list[str], more: list[str]) -> None:
    audit_flags.given([*argv, *more])
    audit_servers.kind_of(argv)


# --- secrets


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        ("--api-key sk-12345678 --port 1", "--api-key *** --port 1"),
        ("--api-key=abc", "--api-key=***"),
        ("--api-key abc def --port 1", "--api-key *** *** --port 1"),
        ("--hf-token abc model", "--hf-token *** model"),
        ('--extra {"password":"abc","size":1}', '--extra {"password":"***","size":1}'),
        ("https://example.com/?api_key=abc&n=1", "https://example.com/?api_key=***&n=1"),
        ("--admin-api-key abc", "--admin-api-key ***"),
        ("--hf-token abc HF_TOKEN=abc", "--hf-token *** HF_TOKEN=***"),
        ("--ssl-keyfile-password abc", "--ssl-keyfile-password ***"),
        ("x hf_abcdefghij", "x ***"),
        ("http://user:pass@example.com/", "http://***@example.com/"),
        ("--tokenizer m --max-tokens 5", "--tokenizer m --max-tokens 5"),
        ("--disk-cache-size 12345678", "--disk-cache-size 12345678"),
        ("--speculative-eagle-topk 4 --task generate", "--speculative-eagle-topk 4 --task generate"),
    ],
)  # fmt: skip
def test_secrets_are_hidden_and_nothing_else(words: str, shown: str) -> None:
    assert audit_secrets.hidden(words.split()) == tuple(shown.split())


def test_a_header_hides_its_value() -> None:
    assert audit_secrets.hidden(("--header", "Authorization: Bearer abcdef123")) == (
        "--header",
        "Authorization: Bearer ***",
    )


# --- from /proc


@pytest.fixture
def host(tmp_path: Path) -> FakeHost:
    return lay(FakeHost(tmp_path), snapshot("pve-amd-8gpu"))


def test_a_server_in_a_container_is_read_whole(host: FakeHost) -> None:
    (server,) = audit_serving.read(host).servers
    assert (server.kind, server.pid, server.container) == ("SGLang", 4211, "101")
    assert server.workers == tuple(range(4301, 4309))
    assert server.versions["sglang"] == "0.5.3"
    assert {item.name: item.version for item in server.libraries} == {
        "torch_cuda": "2.8.0", "nccl": "2.27.5", "cudart": "12.8.90", "cuda": "580.95.05",
    }  # fmt: skip
    assert "--api-key ***" in server.command
    assert host.calls == []


def test_preload_is_all_that_is_read_of_an_environment(host: FakeHost) -> None:
    host.put("/proc/4301/environ", "HF_TOKEN=abc\0LD_PRELOAD=/opt/libnccl.so.2.27.5\0")
    (server,) = audit_serving.read(host).servers
    assert server.preload == "/opt/libnccl.so.2.27.5"
    assert "abc" not in repr(server)


def test_another_nccl_in_one_worker(host: FakeHost) -> None:
    host.put("/proc/4302/maps", maps("/usr/lib/libnccl.so.2.21.5"))
    (item,) = (
        found for found in audit_serving.findings(audit_serving.read(host)) if found.id == "serving.nccl"
    )  # fmt: skip
    assert item.severity == "p0_runtime"
    assert "2.21.5 at /usr/lib/libnccl.so.2.21.5" in item.observed


def test_processes_that_end_meanwhile_are_left_out(host: FakeHost) -> None:
    host.remove("/proc/4211/status")
    for name in ("maps", "status"):
        host.remove(f"/proc/4301/{name}")
    facts = audit_serving.read(host)
    assert 4211 in {server.pid for server in facts.servers}


@pytest.mark.parametrize(
    ("cgroup", "name"),
    [
        ("0::/lxc/101/ns/system.slice/x.service", "101"),
        ("0::/lxc.payload.gpu-ct/system.slice", "gpu-ct"),
        (f"0::/system.slice/docker-{'ab' * 32}.scope", "ab" * 6),
        (f"0::/docker/{'ab' * 32}", "ab" * 6),
        ("0::/system.slice/vllm.service", ""),
        ("", ""),
    ],
)
def test_the_container_of_a_process(cgroup: str, name: str) -> None:
    assert audit_serving.container_of(cgroup) == name
