"""``gpuhost explain lxc``: the reasons in words, the result byte for byte, one line for input that can't be used."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from gpuhost_cli import explain_text
from gpuhost_cli.explain import guess_style
from gpuhost_cli.main import main

CASES = Path(__file__).parents[2] / "cases"
LXC_01 = ("--recorded", "nvidia-uvm=502", "--recorded", "nvidia-caps=505")
DEVICES = """\
Character devices:
  1 mem
195 nvidia
195 nvidiactl
254 gpiochip
504 hidraw
509 nvidia-uvm

Block devices:
254 mdp
"""
CONFIG = """\
arch: amd64
hostname: ct-llm-a
lxc.cgroup2.devices.allow: c 195:* rwm
lxc.cgroup2.devices.allow: c 504:* rwm
lxc.mount.entry: /dev/nvidia0 dev/nvidia0 none bind,optional,create=file
lxc.mount.entry: /dev/nvidia-uvm dev/nvidia-uvm none bind,optional,create=file
"""
RIGHT = CONFIG.replace("504", "509")


def case(number: str) -> tuple[str, ...]:
    path = next(CASES.glob(f"lxc-{number}-*.in.conf"))
    return ("--config", str(path), "--proc-devices", str(path).replace(".in.conf", ".proc_devices.txt"))


def expected(number: str) -> bytes:
    return next(CASES.glob(f"lxc-{number}-*.expected.conf")).read_bytes()


@pytest.fixture
def files(tmp_path: Path) -> Any:
    def write(config: str | bytes = CONFIG, devices: str = DEVICES, name: str = "141.conf") -> tuple[str, ...]:
        (tmp_path / name).write_bytes(config if isinstance(config, bytes) else config.encode())
        (tmp_path / "devices.txt").write_text(devices)
        return ("--config", str(tmp_path / name), "--proc-devices", str(tmp_path / "devices.txt"))

    return write


def run(*argv: str) -> int:
    return main(["explain", "lxc", *argv])


def test_the_whole_text(capsys: pytest.CaptureFixture[str], files: Any) -> None:
    assert run(*files(), "--recorded", "nvidia-uvm=504") == 1
    assert capsys.readouterr().out == (
        "141.conf: read as a Proxmox config (by its name)\n"
        "\n"
        "--- 141.conf\n"
        "+++ 141.conf (new)\n"
        "@@ -3,3 +3,3 @@\n"
        " lxc.cgroup2.devices.allow: c 195:* rwm\n"
        "-lxc.cgroup2.devices.allow: c 504:* rwm\n"
        "+lxc.cgroup2.devices.allow: c 509:* rwm\n"
        " lxc.mount.entry: /dev/nvidia0 dev/nvidia0 none bind,optional,create=file\n"
        "\n"
        "Changes:\n"
        "  line 4: nvidia-uvm 504 -> 509, certain: the number was nvidia-uvm's before\n"
        "      SECURITY: 504 is hidraw's now, the container can open its devices\n"
        "\n"
        "Next: gpuhost reconcile -i INVENTORY --limit HOST writes it; restart the container, rules are read at its "
        "start.\n"
    )


def test_the_example_in_the_docs_is_the_real_output(capsys: pytest.CaptureFixture[str], files: Any) -> None:
    head, rest = CONFIG.split("lxc.mount", 1)
    head = head.replace("lxc.", "onboot: 1\nostype: debian\nrootfs: local-zfs:subvol-141-disk-0\nlxc.", 1)
    run(*files(f"{head}lxc.cgroup2.devices.allow: c 226:* rwm\nlxc.mount{rest}"), "--recorded", "nvidia-uvm=504")
    shown = "".join(f"    {line}\n" if line else "\n" for line in capsys.readouterr().out.splitlines())
    assert shown in (CASES.parents[1] / "docs" / "containers.md").read_text()


def test_nothing_to_do(capsys: pytest.CaptureFixture[str], files: Any) -> None:
    assert run(*files(RIGHT)) == 0
    assert capsys.readouterr().out == "141.conf: read as a Proxmox config (by its name)\n\nNext: nothing to do.\n"


def test_what_is_only_presumed_is_not_changed(capsys: pytest.CaptureFixture[str], files: Any) -> None:
    given = files(devices=DEVICES.replace("504 hidraw\n", ""))
    assert run(*given) == 1
    out = capsys.readouterr().out
    assert "---" not in out
    assert "Not changed, because it is only presumed:\n  line 4: nvidia-uvm 504 -> 509\n      presumed: nobody" in out
    assert "Next: if these rules are NVIDIA's" in out
    assert run(*given, "--presumed", "apply") == 1
    out = capsys.readouterr().out
    assert "+lxc.cgroup2.devices.allow: c 509:* rwm" in out
    assert "-e lxc_devices_presumed=apply writes it" in out


def test_a_locked_config(capsys: pytest.CaptureFixture[str], files: Any) -> None:
    assert run(*files("lock: backup\n" + CONFIG), "--recorded", "nvidia-uvm=504") == 1
    out = capsys.readouterr().out
    assert "Not changed, the config is locked:" in out
    assert "Next: wait for the job" in out


def test_findings_and_nodes(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*case("07")) == 1
    out = capsys.readouterr().out
    assert "SECURITY: config line 17: allows major 509, which is gdrdrv's" in out
    assert "Must exist before the container starts:\n  /dev/nvidia0\n" in out
    assert "Next: config line 17: Remove the rule" in out


def test_a_note_alone_needs_nobody(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*case("12")) == 0
    assert "note: config line" in capsys.readouterr().out


def test_an_added_rule_is_said_once(capsys: pytest.CaptureFixture[str], files: Any) -> None:
    text = CONFIG.replace("lxc.cgroup2.devices.allow: c 504:* rwm\n", "")
    assert run(*files(text)) == 1
    out = capsys.readouterr().out
    assert "after line 3: nvidia-uvm none -> 509, certain: nvidia-uvm is needed and has no rule" in out
    assert "lxc.rule_missing" not in out
    assert "needs somebody" not in out


def test_what_a_change_leaves_is_named(capsys: pytest.CaptureFixture[str], files: Any) -> None:
    """Without a record nothing says that 504 was NVIDIA's: the rule is added, and the leak stays."""
    assert run(*files()) == 1
    out = capsys.readouterr().out
    assert "SECURITY: config line 4: allows major 504, which is hidraw's" in out
    assert out.endswith("What it leaves, listed above, needs somebody.\n")


def test_the_output_is_exactly_the_file(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    assert run(*case("01"), *LXC_01, "--output", "-") == 1
    found = capfdbinary.readouterr()
    assert found.out == expected("01")
    assert found.err.startswith(b"lxc-01-stale-uvm-and-caps-with-snapshot.in.conf: read as a Proxmox config")


@pytest.mark.parametrize("data", [b"arch: amd64\r\n# \xff\xfe\x1b[31m\r\nlxc.x", RIGHT.encode().rstrip(b"\n")])
def test_no_byte_is_lost(capfdbinary: pytest.CaptureFixture[bytes], files: Any, data: bytes) -> None:
    run(*files(data), "--output", "-")
    assert capfdbinary.readouterr().out == data


def test_output_to_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str], files: Any) -> None:
    given = files()
    assert run(*given, "--recorded", "nvidia-uvm=504", "--output", str(tmp_path / "new.conf")) == 1
    assert (tmp_path / "new.conf").read_text() == RIGHT
    assert "Changes:" in capsys.readouterr().out
    assert run(*given, "--output", str(tmp_path / "141.conf")) == 2
    assert (tmp_path / "141.conf").read_text() == CONFIG
    assert run(*given, "--output", str(tmp_path / "none" / "x")) == 2


def test_json(capsys: pytest.CaptureFixture[str], files: Any) -> None:
    assert run(*files(), "--recorded", "nvidia-uvm=504", "--json") == 1
    found = json.loads(capsys.readouterr().out)
    assert (found["schema"], found["style"], found["style_by"]) == ("gpuhost.explain_lxc", "pve", "by its name")
    assert (found["changed"], found["exit_status"]) == (True, 1)
    change = found["changes"][0]
    assert (change["line"], change["old_major"], change["new_major"]) == (4, 504, 509)
    assert (change["attribution"], change["leaks_to"], change["severity"]) == ("recorded", "hidraw", "security")
    assert "lxc.leaked_major" in [item["id"] for item in found["findings"]]
    assert "native" not in found


def test_stdin(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], files: Any) -> None:
    class Stdin:
        buffer = io.BytesIO(CONFIG.encode())

    monkeypatch.setattr(sys, "stdin", Stdin)
    assert run("--config", "-", *files()[2:], "--recorded", "nvidia-uvm=504") == 1
    assert capsys.readouterr().out.startswith("stdin: read as a Proxmox config (by its content)\n")


def test_control_characters_do_not_act(capsys: pytest.CaptureFixture[str], files: Any) -> None:
    text = CONFIG.replace("c 504:* rwm", "c 504:* rwm \x1b[2J\x07")
    run(*files(text), "--recorded", "nvidia-uvm=504")
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert "c 509:* rwm \\x1b[2J\\x07" in out


@pytest.mark.parametrize(
    ("told", "name", "text", "expected"),
    [
        (None, "/etc/pve/lxc/141.conf", b"lxc.x = 1", ("pve", "by its name")),
        (None, "/var/lib/lxc/llm/config", b"arch: amd64", ("lxc", "by its name")),
        ("lxc", "141.conf", b"", ("lxc", "as told")),
        (None, "x.txt", b"lxc.uts.name = llm\nlxc.cgroup2.devices.allow = c 195:* rwm\n", ("lxc", "by its content")),
        (None, "x.txt", b"lxc.cgroup2.devices.allow: c 195:* rwm\n", ("pve", "by its content")),
        (None, "x.txt", b"arch: amd64\nlxc.cgroup2.devices.allow = c 195:* rwm\n", ("pve", "by its content")),
        (None, "-", b"  lxc.uts.name = llm\n", ("lxc", "by its content")),
        (None, "-", b"what is this", ("pve", "by its content")),
    ],
)  # fmt: skip
def test_the_style_is_guessed(told: Any, name: str, text: bytes, expected: tuple[str, str]) -> None:
    assert guess_style(told, name, text) == expected


def test_plain_lxc(capsys: pytest.CaptureFixture[str], files: Any) -> None:
    text = "".join(line.replace(": ", " = ") + "\n" for line in CONFIG.splitlines() if line.startswith("lxc."))
    assert run(*files(text, name="config"), "--recorded", "nvidia-uvm=504") == 1
    out = capsys.readouterr().out
    assert "config: read as a plain LXC config (by its name)" in out
    assert "+lxc.cgroup2.devices.allow = c 509:* rwm" in out


def test_an_included_file_follows_too(capsys: pytest.CaptureFixture[str], files: Any, tmp_path: Path) -> None:
    """Whose driver the number was is known from an older record: several numbers for one driver."""
    copy = tmp_path / "gpu.conf"
    copy.write_text("lxc.cgroup2.devices.allow = c 504:* rwm\n")
    text = "lxc.include = /etc/lxc/gpu.conf\nlxc.mount.entry = /dev/nvidia-uvm dev/nvidia-uvm none bind 0 0\n"
    told = ("--recorded", "nvidia-uvm=506", "--recorded", "nvidia-uvm=504", "--include", f"/etc/lxc/gpu.conf={copy}")
    assert run(*files(text, name="config"), *told) == 1
    out = capsys.readouterr().out
    assert "--- /etc/lxc/gpu.conf\n" in out
    assert "+lxc.cgroup2.devices.allow = c 509:* rwm" in out
    assert "line 1 of /etc/lxc/gpu.conf: nvidia-uvm 504 -> 509, certain" in out
    assert run(*files(text, name="config"), *told, "--json") == 1
    (included,) = json.loads(capsys.readouterr().out)["included"]
    assert included["path"] == "/etc/lxc/gpu.conf"


# --- native


def test_native_says_what_it_assumes(capsys: pytest.CaptureFixture[str], files: Any) -> None:
    assert run(*files(), "--recorded", "nvidia-uvm=504", "--native") == 1
    out = capsys.readouterr().out
    assert "assumed: these nodes exist on the host, root:root, mode 0666: /dev/nvidia-uvm /dev/nvidia0 (--node" in out
    assert "assumed: a recent pve-container" in out
    assert "+dev0: /dev/nvidia0,mode=0666\n+dev1: /dev/nvidia-uvm,mode=0666\n" in out
    assert "  2 entries come, 2 mounts and 2 rules go: see the diff" in out
    assert "-e lxc_devices_style=native writes it" in out


def test_native_with_facts(capsys: pytest.CaptureFixture[str], files: Any) -> None:
    facts = ("--node", "/dev/nvidia0=0660,0,44", "--node", "/dev/nvidia-uvm=0666,0,0", "--pve-container", "6.1.10")
    assert run(*files(RIGHT), "--native", *facts, "--json") == 1
    found = json.loads(capsys.readouterr().out)
    assert found["native"]["assumptions"] == []
    assert [item["after"] for item in found["native"]["changes"][:2]] == [
        "dev0: /dev/nvidia0,gid=44",
        "dev1: /dev/nvidia-uvm,mode=0666",
    ]


def test_native_refused(capsys: pytest.CaptureFixture[str], files: Any) -> None:
    given = files(RIGHT)
    assert run(*given, "--native", "--node", "/dev/nvidia-uvm=missing") == 1
    out = capsys.readouterr().out
    assert "Not moved to devN:\n  141.conf line 6: /dev/nvidia-uvm does not exist" in out
    assert "Next: Make the node" in out
    assert run(*given, "--native", "--pve-container", "5.0.6") == 1
    assert "pve-container 5.0.6, expected 5.0.7 or newer" in capsys.readouterr().out


def test_native_of_the_caps_folder(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*case("01"), *LXC_01, "--native") == 1
    out = capsys.readouterr().out
    assert "+dev5: /dev/nvidia-caps/nvidia-cap1,mode=0400" in out
    assert "note: /dev/nvidia-caps was mounted as a folder" in out


def test_a_migrated_file_is_left_alone(tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes], files: Any) -> None:
    given = files(RIGHT)
    run(*given, "--native", "--output", str(tmp_path / "142.conf"))
    assert run("--config", str(tmp_path / "142.conf"), *given[2:], "--native") == 0
    assert b"Next: nothing to do." in capfdbinary.readouterr().out


# --- input that can't be used


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (("--recorded", "nvidia-uvm"), "expected NAME=MAJOR, as nvidia-uvm=504"),
        (("--recorded", "nvidia-uvm=x"), "expected NAME=MAJOR"),
        (("--recorded", "uvm=504"), "no driver of NVIDIA's is called uvm: nvidia, nvidiactl"),
        (("--include", "gpu.conf"), "expected PATH=FILE, as /etc/lxc/gpu.conf=gpu.conf"),
        (("--include", "/etc/lxc/gpu.conf=/nowhere/gpu.conf"), "No such file"),
        (("--node", "/dev/nvidia0=missing"), "go with --native"),
        (("--pve-container", "6.1.10"), "go with --native"),
        (("--native", "--node", "/dev/nvidia0=666"), "expected PATH=MODE,UID,GID"),
        (("--native", "--node", "/dev/kvm=0666,0,0"), "expected PATH=MODE,UID,GID"),
        (("--native", "--style", "lxc"), "devN: entries exist on Proxmox only"),
    ],
)
def test_a_wrong_option(capsys: pytest.CaptureFixture[str], files: Any, more: tuple[str, ...], words: str) -> None:
    assert run(*files(), *more) == 2
    one_line(capsys, words)


def test_wrong_files(capsys: pytest.CaptureFixture[str], tmp_path: Path, files: Any) -> None:
    config, devices = files()[1], files()[3]
    none = str(tmp_path / "none")
    assert run("--config", none, "--proc-devices", devices) == 2
    one_line(capsys, f"--config {none}: No such file or directory: give a file that can be read")
    assert run("--config", config, "--proc-devices", str(tmp_path)) == 2
    one_line(capsys, "Is a directory")
    assert run("--config", "-", "--proc-devices", "-") == 2
    one_line(capsys, "can't both be -")
    assert run("--config", devices, "--proc-devices", devices) == 2
    one_line(capsys, "this is a /proc/devices, not a config")
    assert run(*files(" \n")) == 2
    one_line(capsys, "the file is empty")
    for text in ("", "195 nvidia\n", "Block devices:\n  7 loop\n", CONFIG):
        assert run(*files(devices=text)) == 2
        one_line(capsys, "no character devices in it")


def one_line(capsys: pytest.CaptureFixture[str], words: str) -> None:
    found = capsys.readouterr()
    assert found.out == ""
    assert found.err.startswith("gpuhost: ")
    assert len(found.err.splitlines()) == 1
    assert words in found.err


def test_the_help_says_how(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit) as caught:
        run("--help")
    assert caught.value.code == 0
    out = capsys.readouterr().out
    assert all(len(line) <= 80 for line in out.splitlines())
    for words in ("--recorded NAME=MAJOR", "majors.json", "Exit status: 0 nothing to do"):
        assert words in out


def test_json_and_output_do_not_go_together(capsys: pytest.CaptureFixture[str], files: Any) -> None:
    with pytest.raises(SystemExit) as caught:
        run(*files(), "--json", "--output", "-")
    assert caught.value.code == 2


def test_a_diff_of_equal_files_is_empty() -> None:
    assert explain_text.diff("x", b"a\n", b"a\n") == []


def test_what_the_record_gives_to_two_drivers_is_not_called_presumed(files: Any, capsys: Any) -> None:
    config = "arch: amd64\nlxc.cgroup2.devices.allow: c 504:* rwm\n"
    devices = "Character devices:\n  1 mem\n195 nvidia\n237 nvidia-caps\n509 nvidia-uvm\n"
    numbers = ("uvm=509", "uvm=504", "uvm=500", "caps=237", "caps=505", "caps=504")
    recorded = [word for number in numbers for word in ("--recorded", f"nvidia-{number}")]
    assert main(["explain", "lxc", *files(config, devices), *recorded]) == 1
    out = capsys.readouterr().out
    assert "Not changed, because the record gives the number to several drivers:" in out
    assert "presumed" not in out
    assert "inventory" not in out.lower().replace("-i inventory", "")
