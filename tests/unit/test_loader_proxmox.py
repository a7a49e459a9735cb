"""Proxmox's boot tool, both loaders: from what was found to promote or back, on captured trees with the fake tool.

What boots is asked of a machine that follows the loaders' own rules on one ESP, as a firmware would take it, not of the
code under test.
"""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fake_host import FakeHost, Killed
from fake_proxmox import UUIDS, FakeProxmox, lay_out
from fake_tools import bootctl
from fake_tree import EFIVARS, set_variable

import gpuhost
from gpuhost import (
    boot,
    boot_config,
    efi_variables,
    esp_agent,
    fallbacks,
    grub_config,
    grub_env,
    loaders,
    systemd_boot,
    trial,
)
from gpuhost.boot import FALLBACK_ID
from gpuhost.documents import make_head
from gpuhost.errors import Stop
from gpuhost.loader_proxmox_base import Proxmox
from gpuhost.rollfile import ChangedFile, Fallback, Roll

A, B = "A1B2-C3D4", "A1B2-C3D5"
OLD, NEW = "6.8.12-9-pve", "6.14.11-5-bpo12-pve"
ROOT = "7d0f53f2b6a1c944"
LINE = "root=ZFS=rpool/ROOT/pve-1 boot=zfs"
BOTH = pytest.mark.parametrize("tree", ["two-systemd-boot", "two-grub"])
ENTRY = {
    ("two-systemd-boot", NEW): f"proxmox-{NEW}.conf",
    ("two-grub", NEW): f"gnulinux-advanced-{ROOT}>gnulinux-{NEW}-advanced-{ROOT}",
}


@pytest.fixture(autouse=True)
def no_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits here for the real disks."""
    monkeypatch.setattr(FakeHost, "sync", lambda host: None)


def machine(folder: Path, tree: str, *, installed: bool = True) -> tuple[FakeHost, FakeProxmox]:
    """A host of such a tree on its old kernel, with the programs that a loader calls.

    installed  False: the new kernel is not there yet
    """
    host = FakeHost(folder)
    fake = lay_out(host, tree)
    host.programs["bootctl",] = bootctl
    host.path(EFIVARS).mkdir(parents=True)
    if "systemd" in tree or tree in ("out-of-sync", "next-boot-pin", "mixed"):
        set_variable(host, "LoaderInfo", "systemd-boot 252.39-1~deb12u1")
    host.put("/proc/sys/kernel/osrelease", f"{OLD}\n")
    if not installed:
        host.packages.pop(f"proxmox-kernel-{NEW}-signed")
        for name in ("vmlinuz", "initrd.img"):
            host.path(f"/boot/{name}-{NEW}").unlink()
        tool(host, "refresh")
    host.calls.clear()
    return host, fake


def tool(host: FakeHost, *words: str) -> None:
    """The tool, called by somebody else."""
    assert host.run(["proxmox-boot-tool", *words]).rc == 0


def install(host: FakeHost) -> None:
    """The new kernel's package, whose hook refreshes the ESPs."""
    for name in ("vmlinuz", "initrd.img"):
        host.put(f"/boot/{name}-{NEW}", f"{name} {NEW}\n")
    host.packages[f"proxmox-kernel-{NEW}-signed"] = ("1", "ii")
    tool(host, "refresh", "--hook", "zz-proxmox-boot")


def boots(host: FakeHost, uuid: str = A) -> tuple[str, str]:
    """Boot this ESP by its loader's own rules, with the one-shot used up: (release, command line)."""
    esp = f"/esp/{uuid}"
    if host.exists(f"{esp}/EFI/proxmox/grubx64.efi"):
        env = grub_env.parse(host.read_bytes(f"{esp}/grub/grubenv") or b"")
        entry = grub_config.next_boot(grub_config.parse(host.read(f"{esp}/grub/grub.cfg") or ""), env)
        assert entry is not None
        host.put(f"{esp}/grub/grubenv", grub_env.render({**env, "next_entry": ""}))
        path, options = f"{esp}{entry.linux}", entry.options
    else:
        names = host.names(f"{esp}/loader/entries")
        texts = {name: host.read(f"{esp}/loader/entries/{name}") or "" for name in names}
        found = systemd_boot.selected(
            [systemd_boot.parse_entry(name, text) for name, text in texts.items()],
            systemd_boot.default_of(host.read(f"{esp}/loader/loader.conf") or ""),
            efi_variables.read(host, efi_variables.DEFAULT),
            efi_variables.read(host, efi_variables.ONE_SHOT),
        )
        assert found is not None
        set_variable(host, "LoaderEntryOneShot", None)
        path, options = f"{esp}{found.linux}", found.options
    kernel = host.read(path) or ""
    release = kernel.split()[-1]
    host.put("/proc/sys/kernel/osrelease", f"{release}\n")
    host.put("/proc/cmdline", f"{options}\n")
    return release, options


def of(host: FakeHost) -> Proxmox:
    """The loader, as every module call finds it."""
    found = loaders.of(host)
    assert isinstance(found, Proxmox)
    return found


def held(host: FakeHost) -> Fallback:
    """What ``hold`` does."""
    loader = of(host)
    state = loader.read()
    assert state.problems == ()
    fallback = fallbacks.make(host, loader, OLD, fallbacks.record_policy(loader, state, OLD, None))
    fallbacks.hold(loader, fallback)
    return fallback


def prepared(host: FakeHost, arguments: dict[str, str | None] | None = None) -> Fallback:
    """Hold, arguments, the package with its hook, the entry."""
    fallback = held(host)
    boot_config.write(host, of(host).argument_changes(arguments or {}))
    install(host)
    assert of(host).make_entry(NEW, 60)[1] == ""
    return fallback


def roll(fallback: Fallback, *, changed: dict[str, ChangedFile] | None = None, promoted: bool = False) -> Roll:
    """As much of a roll as promote and the way back look at."""
    return Roll(
        head=make_head("roll", "pve-1", "20261130T010000Z-0001"),
        state="open",
        result=None,
        cause=None,
        sentence="",
        target=NEW,
        running_before=OLD,
        opened_at="2026-11-30T01:00:00Z",
        closed_at=None,
        plan={},
        majors_before={},
        fallback=fallback,
        promoted_at="2026-11-30T02:00:00Z" if promoted else None,
        files_changed=changed or {},
    )


def cause_of(action: Any, *arguments: Any) -> str:
    """The cause with which something stops; it has to."""
    with pytest.raises(Stop) as caught:
        action(*arguments)
    return caught.value.blocker.cause


def problems(host: FakeHost) -> list[str]:
    """The causes of what stands in the way."""
    return [item.cause for item in of(host).read().problems]


def traces(host: FakeHost) -> list[str]:
    """Everything of ours that is left on a host."""
    files = [name for name, (_, data) in host.snapshot().items() if "gpuhost" in name or b"gpuhost" in data]
    variables = [name for name in host.names(EFIVARS) if "LoaderEntry" in name]
    requests = [uuid for uuid in (A, B) if b"next_entry=g" in (host.read_bytes(f"/esp/{uuid}/grub/grubenv") or b"")]
    return files + variables + requests


# --- detection


def test_systemd_boot_is_read(tmp_path: Path) -> None:
    host, _ = machine(tmp_path, "two-systemd-boot")
    state = of(host).read()
    assert (state.loader, state.policy, state.one_shot, state.one_shot_by) == (
        "proxmox-boot-tool",
        OLD,
        None,
        "EFI variable",
    )
    assert (state.default_entry, state.next_entry) == (f"proxmox-{OLD}.conf", f"proxmox-{OLD}.conf")
    assert [entry.release for entry in state.entries] == [NEW, OLD]
    own = state.entry(OLD)
    assert own is not None
    assert (own.linux, own.initrd, own.options) == (f"/boot/vmlinuz-{OLD}", (f"/boot/initrd.img-{OLD}",), LINE)
    assert boot.stale_copies(host, own, OLD) == []
    assert state.esps == (f"/dev/disk/by-uuid/{A}", f"/dev/disk/by-uuid/{B}")
    assert (state.problems, state.copies_fallback) == ((), True)


def test_grub_is_read(tmp_path: Path) -> None:
    host, _ = machine(tmp_path, "two-grub")
    state = of(host).read()
    assert (state.loader, state.policy, state.one_shot_by) == (
        "proxmox-boot-tool with GRUB",
        OLD,
        "grubenv of each ESP",
    )
    own = state.entry(OLD)
    assert own is not None
    assert own.id == state.default_entry == f"gnulinux-advanced-{ROOT}>gnulinux-{OLD}-advanced-{ROOT}"
    assert own.linux == f"/boot/vmlinuz-{OLD}"
    assert state.problems == ()


def test_without_a_list_it_is_plain_grub(tmp_path: Path) -> None:
    """Proxmox's default with root on ext4 or LVM."""
    host, _ = machine(tmp_path, "two-grub")
    host.path(UUIDS).unlink()
    host.put("/proc/cmdline", f"BOOT_IMAGE=/boot/vmlinuz-{OLD} root=/dev/mapper/pve-root ro\n")
    assert loaders.of(host).name == "grub"


@pytest.mark.parametrize("tree", ["mixed", "turned-to-grub"])
def test_esps_with_different_loaders_are_refused(tmp_path: Path, tree: str) -> None:
    """Behind an ESP with GRUB the tool never refreshes one with systemd-boot, with rc 0."""
    host, _ = machine(tmp_path, tree)
    (problem,) = of(host).read().problems
    assert problem.cause == "boot.esp_mixed"
    assert (f"a refresh passes over {B}" in problem.observed) == (tree == "turned-to-grub")


@pytest.mark.parametrize(
    ("tree", "info"), [("two-systemd-boot", None), ("two-systemd-boot", "GRUB 2.12"), ("two-grub", "systemd-boot 252")]
)
def test_another_loader_than_booted_the_machine_is_refused(tmp_path: Path, tree: str, info: str | None) -> None:
    host, _ = machine(tmp_path, tree)
    set_variable(host, "LoaderInfo", info)
    assert problems(host) == ["boot.esp_mixed"]


def test_grub_2_12_says_who_it_is(tmp_path: Path) -> None:
    host, _ = machine(tmp_path, "two-grub")
    set_variable(host, "LoaderInfo", "GRUB 2.12-9+pmx2")
    assert problems(host) == []


# --- a roll


@BOTH
@pytest.mark.parametrize("pinned", [True, False])
@pytest.mark.parametrize("arguments", [{}, {"panic": "30", "amd_pstate": "active"}])
def test_a_roll_that_is_promoted(tmp_path: Path, tree: str, pinned: bool, arguments: dict[str, str | None]) -> None:
    host, _ = machine(tmp_path, tree, installed=False)
    if not pinned:
        tool(host, "kernel", "unpin")
        tool(host, "refresh")
    _, line = boots(host)
    fallback = prepared(host, arguments)
    assert (fallback.entry, fallback.policy_before) == (FALLBACK_ID, OLD if pinned else None)

    state = of(host).read()  # what the preflight asks
    assert state.default_entry == FALLBACK_ID
    assert (state.problems, state.efi_default, state.one_shot) == ((), None, None)
    copy = state.named(FALLBACK_ID)
    assert copy is not None
    assert boot.fallback_hashes(host, copy, OLD) == fallback.files
    target = state.entry(NEW)
    assert target is not None
    assert boot_config.entry_reasons(host, target, NEW, arguments) == []
    for uuid in (A, B):
        assert boots(host, uuid) == (OLD, line)  # today's command line, whatever the others got

    loader = of(host)
    assert loader.set_one_shot(target) == ""
    chosen = loader.read()
    assert (chosen.next_entry, chosen.default_entry) == (ENTRY[tree, NEW], FALLBACK_ID)
    release, options = boots(host, B)
    assert release == NEW
    assert all(f"{key}={value}" in options for key, value in arguments.items())
    assert boots(host, B)[0] == OLD  # it was one boot

    host.put("/proc/sys/kernel/osrelease", f"{NEW}\n")
    lines = trial.promote(host, of(host), roll(fallback, promoted=True))
    assert lines
    after = of(host).read()
    assert after.policy == (NEW if pinned else None)
    assert (after.one_shot, after.efi_default, after.problems) == (None, None, ())
    assert [boots(host, uuid)[0] for uuid in (A, B)] == [NEW, NEW]
    left = ["etc/default/grub.d/zz-gpuhost.cfg"] if arguments and tree == "two-grub" else []
    assert traces(host) == left


@BOTH
def test_a_trial_that_did_not_hold(tmp_path: Path, tree: str) -> None:
    """Back on the old kernel: its own entry has the arguments of before, it is pinned, nothing of ours is left."""
    host, _ = machine(tmp_path, tree, installed=False)
    _, line = boots(host)
    fallback = held(host)
    (change,) = of(host).argument_changes({"init": "/nonexistent"})  # it panics every kernel that gets it
    boot_config.write(host, [change])
    install(host)
    assert of(host).make_entry(NEW, 60)[1] == ""
    changed = {change.path: ChangedFile(change.before, change.after)}
    loader = of(host)
    target = loader.read().entry(NEW)
    assert target is not None
    assert "init=/nonexistent" in target.options
    assert loader.set_one_shot(target) == ""
    assert boots(host)[0] == NEW
    assert boots(host) == (OLD, line)

    now = roll(fallback, changed=changed)
    trial.undo(host, of(host), now)
    assert of(host).read().one_shot is None
    assert b"next_entry=g" not in (host.read_bytes(f"/esp/{B}/grub/grubenv") or b"")
    lines = trial.like_before(host, of(host), now)
    assert lines[-1].endswith("the fallback's copy removed")
    state = of(host).read()
    assert (state.policy, state.problems, traces(host)) == (OLD, (), [])
    assert [boots(host, uuid) for uuid in (A, B)] == [(OLD, line)] * 2
    last = replace(now, state="closed", result="good_on_old")
    assert fallbacks.record_policy(of(host), state, OLD, last) == fallback.policy_before


@BOTH
def test_what_others_do_during_a_trial_does_not_make_the_new_kernel_the_default(tmp_path: Path, tree: str) -> None:
    """reinit (packages of the loaders run it) writes ``default proxmox-*``; any kernel package refreshes."""
    host, _ = machine(tmp_path, tree, installed=False)
    prepared(host)
    host.put("/proc/sys/kernel/osrelease", f"{NEW}\n")
    for words in (("reinit",), ("refresh",), ("reinit",)):
        tool(host, *words)
        assert [boots(host, uuid)[0] for uuid in (A, B)] == [OLD, OLD]
        host.put("/proc/sys/kernel/osrelease", f"{NEW}\n")
    if tree == "two-systemd-boot":
        set_variable(host, "LoaderEntryDefault", None)  # a firmware that loses it, after a refresh
        tool(host, "refresh")
        assert [boots(host, uuid)[0] for uuid in (A, B)] == [OLD, OLD]


@BOTH
def test_the_old_kernel_stays_on_the_esps_though_three_are_newer(tmp_path: Path, tree: str) -> None:
    host, _ = machine(tmp_path, tree)
    held(host)
    for release in ("6.14.12-1-pve", "6.14.13-1-pve"):
        for name in ("vmlinuz", "initrd.img"):
            host.put(f"/boot/{name}-{release}", f"{name} {release}\n")
        host.packages[f"proxmox-kernel-{release}-signed"] = ("1", "ii")
    host.put("/proc/sys/kernel/osrelease", f"{NEW}\n")
    tool(host, "refresh")
    assert of(host).read().entry(OLD) is not None


@BOTH
def test_holding_again_changes_nothing(tmp_path: Path, tree: str) -> None:
    host, _ = machine(tmp_path, tree, installed=False)
    fallback = prepared(host, {"panic": "30"})
    before = host.snapshot()
    host.calls.clear()
    loader = of(host)
    own = loader.read().entry(OLD)
    assert own is not None
    assert "panic=30" in own.options
    assert not loader.add_fallback(own)
    assert not fallbacks.hold(loader, fallback)
    assert fallbacks.held_change(loader, OLD) is None
    assert host.ran("proxmox-boot-tool") == []
    assert host.snapshot() == before


def test_the_change_that_holding_would_make_is_shown(tmp_path: Path) -> None:
    host, _ = machine(tmp_path, "two-systemd-boot")
    tool(host, "kernel", "unpin")
    tool(host, "refresh")
    change = fallbacks.held_change(of(host), OLD)
    assert change is not None
    assert (change.path, change.before, change.after) == ("/etc/kernel/proxmox-boot-pin", None, f"{OLD}\n")


@BOTH
def test_a_fallback_that_an_esp_has_lost_comes_back_as_it_was(tmp_path: Path, tree: str) -> None:
    """By then the running kernel's own entry has the new arguments."""
    host, _ = machine(tmp_path, tree, installed=False)
    fallback = prepared(host, {"panic": "30"})
    copy = of(host).read().named(FALLBACK_ID)
    assert copy is not None
    host.path(f"/esp/{B}/EFI/gpuhost/initrd.img-{OLD}").unlink()
    host.path(f"/esp/{B}/loader/entries/gpuhost-fallback.conf").unlink(missing_ok=True)
    loader = of(host)
    damaged, own = loader.read().named(FALLBACK_ID), loader.read().entry(OLD)
    assert damaged is not None
    assert own is not None
    assert boot.fallback_hashes(host, damaged, OLD) != fallback.files
    assert loader.add_fallback(own)
    repaired = of(host).read().named(FALLBACK_ID)
    assert repaired == copy


@BOTH
def test_a_power_cut_anywhere_before_the_trial(tmp_path: Path, tree: str) -> None:
    """Whatever was done last, both ESPs boot the old kernel, and the same steps then come to their end."""
    for number in range(1, 100):
        host, _ = machine(tmp_path / str(number), tree, installed=False)
        tool(host, "kernel", "unpin")
        tool(host, "refresh")
        host.effects.clear()
        host.die_after = number
        try:
            prepared(host, {"panic": "30"})
            break
        except Killed:
            host.die_after = None
        assert [boots(host, uuid)[0] for uuid in (A, B)] == [OLD, OLD], host.effects
        assert prepared(host, {"panic": "30"}).entry == FALLBACK_ID, host.effects
        state = of(host).read()
        assert (state.default_entry, state.policy, state.problems) == (FALLBACK_ID, FALLBACK_ID, ()), host.effects
        target = state.entry(NEW)
        assert target is not None
        assert boot_config.entry_reasons(host, target, NEW, {"panic": "30"}) == []
    assert number > 10


@BOTH
def test_a_power_cut_anywhere_in_the_promotion(tmp_path: Path, tree: str) -> None:
    """Both ESPs boot one of the two, and the same call then comes to its end with nothing left."""
    for number in range(1, 100):
        host, _ = machine(tmp_path / str(number), tree, installed=False)
        now = roll(prepared(host), promoted=True)
        host.put("/proc/sys/kernel/osrelease", f"{NEW}\n")
        host.effects.clear()
        host.die_after = number
        try:
            trial.promote(host, of(host), now)
            break
        except Killed:
            host.die_after = None
        assert {boots(host, uuid)[0] for uuid in (A, B)} <= {OLD, NEW}, host.effects
        host.put("/proc/sys/kernel/osrelease", f"{NEW}\n")
        trial.promote(host, of(host), now)
        assert [boots(host, uuid)[0] for uuid in (A, B)] == [NEW, NEW], host.effects
        assert traces(host) == [], host.effects
    assert number > 5


# --- what stands in the way


def test_an_esp_out_of_sync_is_found(tmp_path: Path) -> None:
    """``status`` shows two equal lines. A refresh puts it right."""
    host, _ = machine(tmp_path, "out-of-sync")
    (problem,) = of(host).read().problems
    assert problem.cause == "boot.esp_differs"
    assert f"ESP {B}: loader/entries/proxmox-" in problem.observed
    own = of(host).read().entry(OLD)
    assert own is not None
    assert own.linux == f"ESP {B}: loader/entries/proxmox-{OLD}.conf"
    assert cause_of(fallbacks.make, host, of(host), OLD, None) == "boot.fallback_missing"
    tool(host, "refresh")
    assert problems(host) == []


def test_an_esp_that_was_away_at_the_end_of_a_roll_is_found(tmp_path: Path) -> None:
    """It still has the fallback's entry, which does not make the next roll believe that it is its own."""
    host, fake = machine(tmp_path, "two-systemd-boot", installed=False)
    fallback = prepared(host)
    fake.missing = {B}
    host.put("/proc/sys/kernel/osrelease", f"{NEW}\n")
    trial.promote(host, of(host), roll(fallback, promoted=True))
    assert [boots(host)[0], problems(host)] == [NEW, ["boot.esp_unreachable"]]
    fake.missing = set()
    assert problems(host) == ["boot.esp_differs"]
    tool(host, "refresh")
    assert problems(host) == []
    assert boots(host, B)[0] == NEW
    now = fallbacks.make(host, of(host), NEW, NEW)
    assert now.release == NEW
    copy = of(host).read().named(FALLBACK_ID)
    assert copy is not None
    assert copy.linux == f"/boot/gpuhost/vmlinuz-{NEW}"


@BOTH
@pytest.mark.parametrize("name", ["vmlinuz", "initrd.img"])
def test_a_kernel_that_is_not_the_one_in_boot_is_found(tmp_path: Path, tree: str, name: str) -> None:
    host, _ = machine(tmp_path, tree)
    path = f"EFI/proxmox/{NEW}/{name}-{NEW}" if tree == "two-systemd-boot" else f"{name}-{NEW}"
    host.put(f"/esp/{B}/{path}", "half of it")
    assert problems(host) == ["boot.esp_differs"]
    entry = of(host).read().entry(NEW)
    assert entry is not None
    assert boot.stale_copies(host, entry, NEW) == [f"ESP {B}: {path}"]
    assert path in of(host).set_one_shot(entry)
    assert of(host).read().one_shot is None


def test_a_default_that_a_reinit_forgot_is_found(tmp_path: Path) -> None:
    host, _ = machine(tmp_path, "two-systemd-boot")
    tool(host, "reinit")
    assert problems(host) == ["boot.esp_differs"]


@pytest.mark.parametrize("tree", ["two-systemd-boot", "two-grub"])
@pytest.mark.parametrize("how", ["missing", "broken", "locked"])
def test_an_esp_that_can_not_be_used_is_found(tmp_path: Path, tree: str, how: str) -> None:
    host, fake = machine(tmp_path, tree)
    getattr(fake, how).add(B)
    (problem,) = of(host).read().problems
    assert problem.cause == ("boot.esp_read_only" if how == "locked" else "boot.esp_unreachable")
    assert problem.object == f"ESP {B}"
    target = of(host).read().entry(NEW)
    assert target is not None
    if how != "locked":
        assert f"ESP {B}" in of(host).set_one_shot(target)
    elif tree == "two-grub":
        assert "mounted read-only" in of(host).set_one_shot(target)


def test_without_a_mount_namespace_nothing_is_taken_for_read(tmp_path: Path) -> None:
    host, _ = machine(tmp_path, "two-systemd-boot")
    for answer in ((1, "", "unshare: unshare failed: Operation not permitted\n"), (0, "no JSON", "")):
        host.programs["unshare", "--mount", "--propagation", "private"] = answer
        state = of(host).read()
        assert [item.cause for item in state.problems] == ["boot.esp_unreachable"] * 2
        assert (state.entries, state.default_entry) == ((), None)
        assert cause_of(of(host).set_default, FALLBACK_ID)


def test_a_list_whose_last_line_has_no_end_is_found(tmp_path: Path) -> None:
    """That ESP is never refreshed, with rc 0 and not a word."""
    host, _ = machine(tmp_path, "two-systemd-boot")
    host.put(UUIDS, f"{A}\n{B}")
    assert problems(host) == ["boot.esp_list_bad"]
    host.put(UUIDS, f"{A}\n{B}\n{A}\n")
    assert problems(host) == ["boot.esp_list_bad"]
    host.put(UUIDS, "# none\n")
    assert problems(host) == ["boot.esp_list_bad"] * 2


@pytest.mark.parametrize("text", [None, ""])
def test_a_pin_for_the_next_boot_is_refused(tmp_path: Path, text: str | None) -> None:
    """An empty file counts, too: it takes the permanent pin out of force."""
    host, _ = machine(tmp_path, "next-boot-pin")
    if text is not None:
        host.put("/etc/kernel/next-boot-pin", text)
        tool(host, "refresh")
    assert problems(host) == ["boot.next_boot_pin"]


def sizes(host: FakeHost) -> tuple[int, int]:
    """Bytes of the running kernel with its initrd, and of all that is on the first ESP."""
    files = [path for path in host.files_below(f"/esp/{A}") if "vmlinuz-" in path or "initrd.img-" in path]
    own = [f"/boot/{name}-{OLD}" for name in ("vmlinuz", "initrd.img")]
    return sum(map(host.size_bytes, own)), sum(map(host.size_bytes, files))


@BOTH
def test_no_room_on_the_first_esp_is_known_before(tmp_path: Path, tree: str) -> None:
    host, fake = machine(tmp_path, tree, installed=False)
    size, used = sizes(host)
    fake.room = {A: used + 2 * size - 1}  # the fallback's copies, and not quite another kernel
    assert problems(host) == ["boot.no_space"]
    fake.room = {A: used + 2 * size}
    assert problems(host) == []


@BOTH
def test_a_full_esp_is_caught_at_each_step(tmp_path: Path, tree: str) -> None:
    """The tool stops there with rc 1 and never reaches the second one; the way back stays whole."""
    host, fake = machine(tmp_path, tree, installed=False)
    size, used = sizes(host)
    fake.room = {A: used + size - 1}
    assert cause_of(fallbacks.make, host, of(host), OLD, None) == "boot.no_space"
    assert traces(host) == []
    fake.room = {A: used + size}
    fallback = fallbacks.make(host, of(host), OLD, OLD)
    fallbacks.hold(of(host), fallback)
    for name in ("vmlinuz", "initrd.img"):
        host.put(f"/boot/{name}-{NEW}", f"{name} {NEW}\n")
    host.packages[f"proxmox-kernel-{NEW}-signed"] = ("1", "ii")
    assert "No space left on device" in of(host).make_entry(NEW, 60)[1]
    state = of(host).read()
    target = state.entry(NEW)
    assert target is None or boot.stale_copies(host, target, NEW) != []
    assert state.default_entry == FALLBACK_ID
    copy = state.named(FALLBACK_ID)
    assert copy is not None
    assert boot.fallback_hashes(host, copy, OLD) == fallback.files
    fake.room = {}
    assert of(host).make_entry(NEW, 60)[1] == ""


@BOTH
def test_a_refresh_that_did_nothing_is_caught(tmp_path: Path, tree: str) -> None:
    host, fake = machine(tmp_path, tree)
    tool(host, "kernel", "unpin")
    tool(host, "refresh")
    fake.asleep = True
    own = of(host).read().entry(OLD)
    assert own is not None
    if tree == "two-grub":  # its entry comes by a refresh
        assert cause_of(of(host).add_fallback, own) == "boot.fallback_missing"
    else:
        of(host).add_fallback(own)
        assert cause_of(of(host).set_default, FALLBACK_ID) == "boot.default_not_held"
    host.put(f"/boot/initrd.img-{NEW}", "with our options\n")
    argv, said = of(host).make_entry(NEW, 60)
    assert (argv, "exit status 0" in said) == (["proxmox-boot-tool", "refresh"], True)
    assert f"initrd.img-{NEW}" in said


@BOTH
def test_a_promotion_whose_refresh_does_nothing_leaves_the_fallback(tmp_path: Path, tree: str) -> None:
    host, fake = machine(tmp_path, tree, installed=False)
    fallback = prepared(host)
    host.put("/proc/sys/kernel/osrelease", f"{NEW}\n")
    fake.asleep = True
    assert cause_of(trial.promote, host, of(host), roll(fallback, promoted=True)) == "boot.default_not_held"
    assert [boots(host, uuid)[0] for uuid in (A, B)] == [OLD, OLD]
    fake.asleep = False
    host.put("/proc/sys/kernel/osrelease", f"{NEW}\n")
    trial.promote(host, of(host), roll(fallback, promoted=True))
    assert [boots(host, uuid)[0] for uuid in (A, B)] == [NEW, NEW]


def test_a_pin_with_the_wrong_root_id_is_known_before(tmp_path: Path) -> None:
    """It comes from the host's own grub.cfg; an id that no ESP has boots the first entry without a word."""
    host, fake = machine(tmp_path, "two-grub")
    fake.root_id = ROOT
    host.put("/boot/grub/grub.cfg", "submenu 'x' $menuentry_id_option 'gnulinux-advanced-other' {\n}\n")
    (problem,) = of(host).read().problems
    assert (problem.cause, problem.object) == ("boot.esp_differs", "/boot/grub/grub.cfg")
    assert "update-grub" in problem.next_step
    tool(host, "kernel", "pin", OLD)
    tool(host, "refresh")
    assert boots(host)[0] == NEW
    host.path("/boot/grub/grub.cfg").unlink()
    assert problems(host) == ["boot.esp_differs"]


def test_a_grub_without_a_one_shot_is_refused(tmp_path: Path) -> None:
    host, _ = machine(tmp_path, "two-grub")
    path = f"/esp/{B}/grub/grub.cfg"
    host.put(path, (host.read(path) or "").replace("   save_env next_entry\n", ""))
    state = of(host).read()
    assert state.one_shot_by is None
    assert "loader.no_one_shot" in [item.cause for item in state.problems]
    target = state.entry(NEW)
    assert target is not None
    assert "next_entry" in of(host).set_one_shot(target)


def test_a_broken_environment_block_is_a_stop(tmp_path: Path) -> None:
    host, _ = machine(tmp_path, "two-grub")
    host.put(f"/esp/{B}/grub/grubenv", "# GRUB Environment Block\n")
    assert cause_of(of(host).read) == "grub.environment_broken"


def test_a_menu_that_grub_could_not_read_is_a_problem(tmp_path: Path) -> None:
    host, _ = machine(tmp_path, "two-grub")
    host.put(f"/esp/{B}/grub/grub.cfg", "menuentry 'x' {\n")
    assert "boot.esp_unreachable" in problems(host)


def test_somebody_elses_efi_default_is_seen(tmp_path: Path) -> None:
    host, _ = machine(tmp_path, "two-systemd-boot")
    set_variable(host, "LoaderEntryDefault", f"proxmox-{NEW}.conf")
    state = of(host).read()
    assert (state.efi_default, state.default_entry) == (f"proxmox-{NEW}.conf", f"proxmox-{NEW}.conf")


def test_a_firmware_that_keeps_no_variable_is_a_stop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    host, _ = machine(tmp_path, "two-systemd-boot")
    own = of(host).read().entry(OLD)
    assert own is not None
    of(host).add_fallback(own)
    monkeypatch.setattr(FakeHost, "write_efi_variable", lambda host, path, data: "No space left on device")
    assert cause_of(of(host).set_default, FALLBACK_ID) == "boot.loader_failed"


# --- small rules


def test_the_one_shot_of_grub_is_on_every_esp_and_leaves_other_variables(tmp_path: Path) -> None:
    host, _ = machine(tmp_path, "two-grub")
    host.put(f"/esp/{B}/grub/grubenv", grub_env.render({"saved_entry": "x"}))
    target = of(host).read().entry(NEW)
    assert target is not None
    assert of(host).set_one_shot(target) == ""
    blocks = [grub_env.parse(host.read_bytes(f"/esp/{uuid}/grub/grubenv") or b"") for uuid in (A, B)]
    assert blocks == [{"next_entry": target.id}, {"saved_entry": "x", "next_entry": target.id}]
    assert of(host).clear_one_shot() == ""
    assert grub_env.parse(host.read_bytes(f"/esp/{B}/grub/grubenv") or b"") == {"saved_entry": "x"}
    assert host.ran("grub-reboot") == []  # it writes the host's own block, which nobody reads


@BOTH
def test_a_kernel_that_the_tool_does_not_select_is_named_with_the_way(tmp_path: Path, tree: str) -> None:
    host, _ = machine(tmp_path, tree)
    assert "proxmox-boot-tool kernel add 6.5.13-6-pve" in of(host).make_entry("6.5.13-6-pve", 60)[1]


def test_never_a_pin_for_the_next_boot(tmp_path: Path) -> None:
    host, _ = machine(tmp_path, "two-systemd-boot", installed=False)
    prepared(host)
    assert not any("--next-boot" in call for call in host.calls)


@pytest.mark.parametrize(
    ("text", "after"),
    [
        (f"{LINE} quiet\npanic=30\n", f"{LINE} quiet panic=30\n"),
        (f"\n{LINE}\n", f"{LINE} panic=30\n"),
        (LINE, f"{LINE} panic=30\n"),
        (f"{LINE} panic=30\nother=1\n", None),
        (None, f"{LINE} panic=30\n"),
    ],
)
def test_arguments_go_to_line_1(tmp_path: Path, text: str | None, after: str | None) -> None:
    """Case cmdline-01."""
    host, _ = machine(tmp_path, "two-systemd-boot")
    if text is None:
        host.path("/etc/kernel/cmdline").unlink()
    else:
        host.put("/etc/kernel/cmdline", text)
    assert [change.after for change in of(host).argument_changes({"panic": "30"})] == ([after] if after else [])


def test_with_grub_arguments_go_to_grub_d(tmp_path: Path) -> None:
    """Case cmdline-05: an /etc/kernel/cmdline that is left over has no effect."""
    host, _ = machine(tmp_path, "two-grub")
    host.put("/etc/kernel/cmdline", f"{LINE} panic=30\n")
    loader = of(host)
    (change,) = loader.argument_changes({"panic": "30"})
    assert change.path == "/etc/default/grub.d/zz-gpuhost.cfg"
    assert loader.refreshes(change.path)
    assert not loader.refreshes("/etc/kernel/cmdline")


def test_few_processes(tmp_path: Path) -> None:
    """All ESPs in one process, and again only after a change."""
    host, _ = machine(tmp_path, "two-systemd-boot")
    loader = of(host)
    for _ in range(5):
        loader.read()
    assert len(host.ran("unshare")) == 1


def test_the_program_runs_from_an_archive(tmp_path: Path) -> None:
    """It is sent from where Ansible or gpuhost.pyz keep the package, without a file of its own on the host."""
    archive = tmp_path / "gpuhost.pyz"
    with zipfile.ZipFile(archive, "w") as file:
        for path in Path(gpuhost.__file__).parent.glob("*.py"):
            file.write(path, f"gpuhost/{path.name}")
    code = "import inspect; from gpuhost import esp_agent; print(inspect.getsource(esp_agent))"
    environment = {"PYTHONPATH": str(archive)}
    answer = subprocess.run(
        [sys.executable, "-S", "-c", code], capture_output=True, text=True, check=True, env=environment
    )
    assert answer.stdout.strip() == inspect.getsource(esp_agent).strip()


def test_the_program_says_why_it_can_not_work() -> None:
    """Run as it is sent, without the right to mount (or for an ESP that is not there)."""
    order = json.dumps({"0000-0000": []})
    answer = subprocess.run(
        [sys.executable, "-I", "-", order],
        input=inspect.getsource(esp_agent).replace('ROOM = "/mnt"', 'ROOM = "/nonexistent"'),
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.returncode == 1
    assert "/nonexistent" in answer.stderr
