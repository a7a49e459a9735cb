"""``gpuhost trace FILE``: what a person sees, what a script reads, what is refused. All traces are synthetic."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from fake_trace import Plan, Writer, frame, write

from gpuhost_cli import main as command

ROOT = Path(__file__).resolve().parents[2]


def run(capsys, *arguments):
    status = command.main(["trace", *map(str, arguments)])
    said = capsys.readouterr()
    return status, said.out, said.err


def test_a_healthy_trace(tmp_path, capsys):
    status, out, err = run(capsys, write(tmp_path, Plan()))
    assert (status, err) == (0, "")
    assert "GPU 0 synthetic GPU: 0.826 ms a step, busy 94.6 %" in out
    assert "11 steps, median 0.826 ms, 0.826 to 0.826" in out
    assert "steps: certain, by 12 launches of CUDA graph 3" in out
    assert "  GEMM BF16                            0.540   65.4 %     0.540          ·     17.0" in out
    assert "0.0 kernels one by one, 1.0 graphs" in out
    assert out.endswith("No known fault: no rule's threshold is passed.\n")


@pytest.mark.parametrize(
    "plan",
    [
        Plan(cast=120_000, host=900_000, all_reduce=70_000, quantise=30_000),
        Plan(graph=False, gap=180_000, layers=90, marks="execute_context_0(0)_generation_1(1){}" + 70 * "x"),
    ],
)
def test_nothing_is_wider_than_a_terminal(tmp_path, capsys, plan):
    _, out, _ = run(capsys, write(tmp_path, plan))
    body = out.splitlines()[2:]  # the file's name may be longer than any line
    assert [line for line in body if len(line) > 100] == []


def test_json(tmp_path, capsys):
    status, out, _ = run(capsys, write(tmp_path, Plan(cast=120_000)), "--json", "--top", "2")
    document = json.loads(out, parse_constant=pytest.fail)
    assert (status, document["exit_status"]) == (1, 1)
    assert (document["schema"], document["schema_version"]) == ("gpuhost.trace", 1)
    assert document["taken_at"].endswith("Z") or "+00:00" in document["taken_at"]
    [gpu] = document["gpus"]
    assert [row["key"] for row in gpu["classes"]][:2] == ["cast", "gemm_bf16"]
    assert len(gpu["kernels"]) == 2
    assert gpu["steps"]["certainty"] == "certain"
    [finding] = document["findings"]
    assert (finding["code"], finding["threshold"], finding["limit"]) == ("trace.cast", "cast_percent", 20)
    assert finding["next_step"]
    assert document["thresholds"]["gap_percent"] == 30


def test_several_ranks(tmp_path, capsys):
    paths = [
        write(tmp_path, Plan(rank=n, gpu=n, all_reduce=9_000 * (n + 1)), f"1-TP-{n}.trace.json.gz") for n in range(3)
    ]
    _, out, _ = run(capsys, *paths)
    assert [line.split()[:4] for line in out.splitlines() if line.startswith("rank")][:3] == [
        ["rank", str(n), "GPU", str(n)] for n in range(3)
    ]
    assert "Details of rank 2 GPU 2 only, the slowest one: --gpu shows another" in out
    _, out, _ = run(capsys, *paths, "--gpu", "1", "--gpu", "rank 0 GPU 0")
    assert out.count("top kernels") == 2
    status, _, err = run(capsys, *paths, "--gpu", "7")
    assert (status, err) == (2, "gpuhost: --gpu 7: the trace has rank 0 GPU 0, rank 1 GPU 1, rank 2 GPU 2\n")


def test_a_broken_file(tmp_path, capsys):
    path = write(tmp_path, Plan(steps=30))
    path.write_bytes(path.read_bytes()[:-2000])
    status, out, err = run(capsys, path)
    assert (status, out) == (2, "")
    assert err.startswith(f"gpuhost: {path}: the file ends within a value that begins at byte ")
    assert err.endswith(" of the unpacked trace; --partial reports what comes before\n")
    status, out, err = run(capsys, path, "--partial")
    assert (status, err) == (0, "")
    assert "NOT WHOLE: " in out
    assert "all figures are of what came before" in " ".join(out.split())


def no_gpu(tmp_path):
    writer = Writer()
    writer.host("cpu_op", "aten::mm", 1_000_000, 1000)
    path = tmp_path / "cpu.json"
    path.write_text(frame(writer.events, Plan()))
    return path


def test_a_trace_without_a_gpu(tmp_path, capsys):
    status, _, err = run(capsys, no_gpu(tmp_path))
    assert status == 2
    assert "no work of a GPU in its 1 events: profile with the activity GPU (CUDA), and while requests run" in err
    assert "a server that runs on the CPU has none" in err


def test_all_files_of_a_vllm_folder(tmp_path, capsys):
    """One for each rank, and one of the front end, in which no GPU works; the names are those of vLLM 0.32."""
    front = no_gpu(tmp_path).rename(tmp_path / "host_3671.async_llm.1796.pt.trace.json.gz")
    rank = write(tmp_path, Plan(rank=0), "dp0_pp0_tp0_dcp0_ep0_rank0.1797.pt.trace.json.gz")
    status, out, err = run(capsys, front, rank)
    assert (status, err) == (0, "")
    assert "rank 0 GPU 0 synthetic GPU: 0.826 ms a step" in out
    document = json.loads(run(capsys, front, rank, "--json")[1])
    said = "the trace of vLLM's front end, which has no work on a GPU, other than those of the ranks"
    assert document["notes"] == [f"{front}: {said} (left out)"]
    assert [item["path"] for item in document["files"]] == [str(rank)]
    status, out, err = run(capsys, front)
    assert (status, out) == (2, "")
    assert err == f"gpuhost: {front}: {said}\n"


def test_two_profiles_are_no_two_ranks(tmp_path, capsys):
    paths = [write(tmp_path, Plan(rank=0), f"rank0.{time}.pt.trace.json.gz") for time in (1796, 1797)]
    _, out, _ = run(capsys, *paths)
    assert "note: rank 0 GPU 0 is in 2 files: give those of one profile, since all GPUs" in " ".join(out.split())
    _, out, _ = run(capsys, paths[0])
    assert "is in 2 files" not in out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "FILE is missing; --server URL --engine sglang|vllm makes one"),
        (["/nowhere.json"], "/nowhere.json: No such file or directory: give a file that can be read"),
        (["GOOD", "--step-name", "("], "--step-name (: no regular expression"),
        (["GOOD", "--class", "x=y"], "--class x=y: expected CLASS=REGEX"),
        (["GOOD", "--threshold", "x=1"], "--threshold x=1: no such threshold"),
        (["GOOD", "--server", "http://127.0.0.1:1"], "--server makes a trace, FILE reads one: give one of them"),
        (["REPORT"], "a report of Nsight Systems itself: nsys export --type sqlite"),
        (["FOLDER"], "Is a directory: give a file that can be read"),
    ],
)
def test_what_is_refused(tmp_path, capsys, arguments, words):
    good = write(tmp_path, Plan(steps=3))
    report = tmp_path / "r.nsys-rep"
    report.write_bytes(b"\x00\x01")
    names = {"GOOD": good, "REPORT": report, "FOLDER": tmp_path}
    status, out, err = run(capsys, *[names.get(item, item) for item in arguments])
    assert (status, out) == (2, "")
    assert words in err


@pytest.mark.parametrize("option", ["--steps", "--top"])
def test_numbers(capsys, option):
    with pytest.raises(SystemExit):
        run(capsys, "x.json", option, "0")
    assert "'0' is no whole number from 1 on" in capsys.readouterr().err


def test_a_name_with_control_characters_does_nothing(tmp_path, capsys):
    path = write(tmp_path, Plan())
    path.write_text(path.read_text().replace("nvjet_tst", "\\u001b[31mred\\ud800"))
    _, out, _ = run(capsys, path)
    assert "\x1b" not in out
    assert "\\x1b[31mred" in out


def test_it_runs_where_nothing_is_installed(tmp_path):
    """On a GPU machine: the standard library alone, without the rest of the command."""
    (tmp_path / "gpuhost").symlink_to(ROOT / "module_utils/gpuhost")
    (tmp_path / "gpuhost_cli").symlink_to(ROOT / "cli")
    done = subprocess.run(
        [sys.executable, "-S", "-m", "gpuhost_cli.trace", str(write(tmp_path, Plan(cast=120_000)))],
        env={**os.environ, "PYTHONPATH": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (1, "")
    assert "trace.cast" in done.stdout
