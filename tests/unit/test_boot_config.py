"""Arguments, module options, initramfs and entry: only what differs, and only the target's."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from fake_host import FakeHost, Killed
from fake_roll import debian_host, plan_of, prepared, roll_of, step
from fake_tree import CMDLINE, ESP, MACHINE, NEW, NEW_ENTRY, OLD, OLD_ENTRY

from gpuhost import boot_config, fallbacks, loaders
from gpuhost.boot_config import MODPROBE_FILE, MODPROBE_HEAD, render_modprobe, wanted_arguments, wanted_files
from gpuhost.errors import Stop

HMM = {"nvidia_uvm": {"uvm_disable_hmm": "1"}}
NOTHING: dict[str, dict[str, str]] = {}


@pytest.fixture
def host(tmp_path: Path) -> FakeHost:
    return debian_host(tmp_path)


def test_nothing_differs_where_everything_is_as_wanted(host: FakeHost) -> None:
    assert wanted_files(loaders.of(host), {"panic": "30"}, NOTHING) == []
    assert boot_config.needs_rebuild(loaders.of(host), NEW, {"panic": "30"}, False) == []


def test_an_argument_is_added_to_the_file(host: FakeHost) -> None:
    (change,) = wanted_files(loaders.of(host), {"pcie_aspm": "off", "panic": "30"}, NOTHING)
    assert change.path == "/etc/kernel/cmdline"
    assert change.before == f"{CMDLINE} panic=30\n"
    assert change.after == f"{CMDLINE} panic=30 pcie_aspm=off\n"


def test_arguments_are_flags_removed_and_kept(host: FakeHost) -> None:
    (change,) = wanted_files(loaders.of(host), {"panic": None, "nomodeset": ""}, NOTHING)
    assert change.after == f"{CMDLINE} nomodeset\n"


def test_no_wish_touches_nothing(host: FakeHost) -> None:
    host.put("/etc/kernel/cmdline", "# odd\nroot=x  quiet\n")
    assert wanted_files(loaders.of(host), {}, NOTHING) == []


def test_white_space_alone_is_no_difference(host: FakeHost) -> None:
    host.put("/etc/kernel/cmdline", "root=x panic=30")
    assert wanted_files(loaders.of(host), {"panic": "30"}, NOTHING) == []


def test_a_missing_file_starts_from_the_booted_line_without_the_loaders_part(host: FakeHost) -> None:
    host.path("/etc/kernel/cmdline").unlink()
    (change,) = wanted_files(loaders.of(host), {"panic": "30"}, NOTHING)
    assert change.before is None
    assert "initrd=" not in change.after
    assert change.after == f"{CMDLINE} systemd.machine_id={MACHINE} panic=30\n"


def test_a_line_without_root_is_refused(host: FakeHost) -> None:
    host.put("/etc/kernel/cmdline", "quiet\n")
    with pytest.raises(Stop) as caught:
        wanted_files(loaders.of(host), {"panic": "30"}, NOTHING)
    assert (caught.value.blocker.cause, caught.value.blocker.object) == ("input.invalid", "kernel command line")


@pytest.mark.parametrize("own", ["panic=5", "panic=-1"])
def test_a_users_own_panic_wins(own: str) -> None:
    assert wanted_arguments(f"root=x {own}", {"panic": "30", "quiet": ""}) == {"quiet": True}


def test_a_panic_that_waits_for_ever_does_not_win() -> None:
    assert wanted_arguments("root=x panic=0", {"panic": "30"}) == {"panic": "30"}


def test_module_options_are_one_file_of_ours(host: FakeHost) -> None:
    (change,) = wanted_files(loaders.of(host), {}, HMM)
    assert (change.path, change.before) == (MODPROBE_FILE, None)
    assert change.after == MODPROBE_HEAD + "options nvidia_uvm uvm_disable_hmm=1\n"
    boot_config.write(host, [change])
    assert wanted_files(loaders.of(host), {}, HMM) == []


def test_the_same_wish_gives_the_same_bytes() -> None:
    one = {"b": {"y": "1", "x": "2"}, "a": {"z": "3"}}
    other = {"a": {"z": "3"}, "b": {"x": "2", "y": "1"}}
    assert render_modprobe(one) == render_modprobe(other)


def test_options_that_are_no_longer_wanted_go(host: FakeHost) -> None:
    host.put(MODPROBE_FILE, render_modprobe(HMM))
    assert [change.path for change in wanted_files(loaders.of(host), {}, NOTHING)] == [MODPROBE_FILE]


# --- rebuild


def test_why_a_rebuild_is_needed(host: FakeHost) -> None:
    assert boot_config.needs_rebuild(loaders.of(host), NEW, {"pcie_aspm": "off"}, False) == [
        f"{NEW_ENTRY} lacks pcie_aspm=off"
    ]
    host.put(MODPROBE_FILE, "x")
    host.aged(f"/boot/initrd.img-{NEW}", 60)
    assert boot_config.needs_rebuild(loaders.of(host), NEW, {}, False) == [
        f"{MODPROBE_FILE} is newer than the initramfs"
    ]
    host.path(f"/boot/initrd.img-{NEW}").unlink()
    host.path(f"{ESP}/loader/entries/{NEW_ENTRY}").unlink()
    assert boot_config.needs_rebuild(loaders.of(host), NEW, {}, False) == [
        f"/boot/initrd.img-{NEW} does not exist",
        f"no boot entry for {NEW}",
    ]


@pytest.mark.parametrize("file", ["linux", f"initrd.img-{NEW}"])
def test_a_cut_copy_on_the_esp_is_a_reason(host: FakeHost, file: str) -> None:
    host.put(f"{ESP}/{MACHINE}/{NEW}/{file}", "cut")
    assert boot_config.needs_rebuild(loaders.of(host), NEW, {}, False) != []


@pytest.mark.parametrize("there", [True, False])
def test_the_rebuild_is_for_the_target_only(host: FakeHost, there: bool) -> None:
    if not there:
        host.path(f"/boot/initrd.img-{NEW}").unlink()
    before = fallbacks.record(host, loaders.of(host), OLD, None).files
    boot_config.rebuild(loaders.of(host), NEW, 10)
    assert host.ran("update-initramfs") == [["update-initramfs", "-u" if there else "-c", "-k", NEW]]
    assert host.ran("kernel-install") == [
        ["kernel-install", "add", NEW, f"/boot/vmlinuz-{NEW}", f"/boot/initrd.img-{NEW}"]
    ]
    assert fallbacks.record(host, loaders.of(host), OLD, None).files == before


@pytest.mark.parametrize(
    ("program", "cause"), [("update-initramfs", "boot.initramfs_missing"), ("kernel-install", "boot.entry_missing")]
)
def test_a_failing_tool_is_named_with_its_last_line(host: FakeHost, program: str, cause: str) -> None:
    host.programs[(program,)] = (1, "", "cp: No space left on device")
    with pytest.raises(Stop) as caught:
        boot_config.rebuild(loaders.of(host), NEW, 10)
    blocker = caught.value.blocker
    assert (blocker.cause, blocker.observed) == (cause, "cp: No space left on device")
    assert blocker.object.startswith(program)


# --- the module


def test_a_second_run_changes_nothing(host: FakeHost) -> None:
    plan = plan_of(host, cmdline={"panic": "30", "pcie_aspm": "off"}, modprobe_options=HMM)
    step(host, "gpuhost_boot_trial", action="hold", plan=plan)
    first = step(host, "gpuhost_boot_config")
    assert first["changed"]
    assert [item["before_header"] for item in first["diff"]] == ["/etc/kernel/cmdline", MODPROBE_FILE]
    again = step(host, "gpuhost_boot_config")
    assert (again["changed"], again["lines"], again["diff"]) == (False, [], [])
    entry = loaders.of(host).read().entry(NEW)
    assert entry is not None
    assert "pcie_aspm=off" in entry.options
    assert "uvm_disable_hmm=1" in (host.read(f"{ESP}/{MACHINE}/{NEW}/initrd.img-{NEW}") or "")


def test_the_fallbacks_entry_keeps_its_bytes(host: FakeHost) -> None:
    before = host.read_bytes(f"{ESP}/loader/entries/{OLD_ENTRY}")
    plan = plan_of(host, cmdline={"panic": "30", "quiet": ""})
    step(host, "gpuhost_boot_trial", action="hold", plan=plan)
    step(host, "gpuhost_boot_config")
    assert host.read_bytes(f"{ESP}/loader/entries/{OLD_ENTRY}") == before
    assert roll_of(host).fallback is not None


@pytest.mark.parametrize("options", [NOTHING, HMM])
def test_check_mode_says_what_a_run_does(tmp_path: Path, options: dict[str, dict[str, str]]) -> None:
    answers = []
    for check in (True, False):
        host = debian_host(tmp_path / str(check))
        plan = plan_of(host, cmdline={"panic": "30"}, modprobe_options=options)
        step(host, "gpuhost_boot_trial", action="hold", plan=plan)
        answers.append(step(host, "gpuhost_boot_config", check=check, plan=plan, rebuild=False))
    assert answers[0]["lines"] == answers[1]["lines"]
    assert answers[0]["diff"] == answers[1]["diff"]


def test_check_mode_says_that_a_rebuild_is_needed(host: FakeHost) -> None:
    plan = plan_of(host)
    step(host, "gpuhost_boot_trial", action="hold", plan=plan)
    host.put(f"{ESP}/{MACHINE}/{NEW}/linux", "cut")
    assert step(host, "gpuhost_boot_config", check=True, plan=plan)["changed"]


@pytest.mark.parametrize("effect", range(1, 8))
def test_a_power_cut_between_any_two_writes_is_repaired_by_the_next_run(tmp_path: Path, effect: int) -> None:
    host = debian_host(tmp_path, installed=False)
    plan = plan_of(host, modprobe_options=HMM)
    step(host, "gpuhost_boot_trial", action="hold", plan=plan)
    step(host, "gpuhost_kernel_upgrade")
    host.effects, host.die_after = [], effect
    with contextlib.suppress(Killed):
        step(host, "gpuhost_boot_config")
    host.die_after = None
    prepared(host)  # raises Stop where the preflight is not clean
