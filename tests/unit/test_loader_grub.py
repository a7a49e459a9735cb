"""GRUB's loader on a Debian 12 tree: the fallback's own entry, the default, the one-shot in both homes, the way back.

``update-grub`` here is a stand-in that does to a real grub.cfg (tests/fixtures/grub) what grub-mkconfig does with the
files that are ours: it takes the arguments and the default from /etc/default/grub.d and appends /etc/grub.d/42_gpuhost.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from fake_host import Answer, FakeHost, Killed

from gpuhost import fallbacks, grub_defaults, grub_env, grub_one_shot, loader_grub, trial
from gpuhost.boot import FALLBACK_ID
from gpuhost.documents import make_head
from gpuhost.loader_grub import Grub
from gpuhost.rollfile import Fallback, Roll

FIXTURE = (Path(__file__).resolve().parents[1] / "fixtures/grub/debian12.cfg").read_text()
OLD, NEW = "6.1.0-57-amd64", "6.12.117+deb12-amd64"
ROOT_ID = "0f1e2d3c-4b5a-4697-8877-665544332211"
OLD_ID, NEW_ID = (f"gnulinux-advanced-{ROOT_ID}>gnulinux-{release}-advanced-{ROOT_ID}" for release in (OLD, NEW))
ESP_UUID = "ABCD-0001"


def update_grub(host: FakeHost, argv: list[str]) -> Answer:
    names = [f"/etc/default/grub.d/{name}" for name in host.names("/etc/default/grub.d")]
    found = grub_defaults.effective([(path, host.read(path) or "") for path in ("/etc/default/grub", *names)])
    text = re.sub(r"( ro  )quiet$", rf"\g<1>{found.cmdline_linux_default}", FIXTURE, flags=re.MULTILINE)
    word = "${saved_entry}" if found.default == "saved" else found.default
    text = text.replace('set default="0"', f'set default="{word}"')
    snippet = host.read(loader_grub.SNIPPET)
    text += "\n".join(snippet.splitlines()[3:]) + "\n" if snippet else ""
    host.put(loader_grub.CFG, text)
    return 0, "", "done"


def grub_reboot(host: FakeHost, argv: list[str]) -> Answer:
    env = grub_env.parse(host.read_bytes(grub_one_shot.ENV) or b"")
    host.put(grub_one_shot.ENV, grub_env.render({**env, "next_entry": argv[1]}))
    return 0, "", ""


def grub_editenv(host: FakeHost, argv: list[str]) -> Answer:
    env = grub_env.parse(host.read_bytes(argv[1]) or b"")
    env.pop(argv[3], None)
    host.put(argv[1], grub_env.render(env))
    return 0, "", ""


def grub_host(folder: Path, *, lvm: bool = False, esp: bool = True) -> FakeHost:
    """A Debian 12 host that GRUB booted into 6.1; /boot on plain ext4 or on LVM."""
    host = FakeHost(folder)
    for release in (OLD, NEW):
        host.put(f"/boot/vmlinuz-{release}", f"kernel {release}")
        host.put(f"/boot/initrd.img-{release}", f"initrd {release}")
    host.put("/etc/default/grub", 'GRUB_DEFAULT=0\nGRUB_CMDLINE_LINUX_DEFAULT="quiet"\nGRUB_CMDLINE_LINUX=""\n')
    host.put(loader_grub.CFG, FIXTURE)
    host.put(grub_one_shot.ENV, grub_env.render({}))
    host.put("/proc/cmdline", f"BOOT_IMAGE=/boot/vmlinuz-{OLD} root=UUID={ROOT_ID} ro quiet\n")
    if esp:
        host.put("/proc/mounts", "/dev/vda1 /boot/efi vfat rw,relatime 0 0\n")
        host.put("/boot/efi/EFI/debian/grubx64.efi")
        host.put("/dev/vda1")
        host.put("/dev/disk/by-uuid/x")
        host.path("/dev/disk/by-uuid/x").unlink()
        host.path(f"/dev/disk/by-uuid/{ESP_UUID}").symlink_to("../../vda1")
    host.programs["grub-probe", "--target=fs"] = (0, "ext2\n", "")
    host.programs["grub-probe", "--target=abstraction"] = (0, "lvm\n" if lvm else "\n", "")
    host.programs["update-grub",] = update_grub
    host.programs["grub-reboot",] = grub_reboot
    host.programs["grub-editenv",] = grub_editenv
    return host


def held(host: FakeHost) -> tuple[Grub, Fallback]:
    """The running system with an entry of its own, which is the default."""
    loader = Grub(host)
    entry = loader.read().entry(OLD)
    assert entry is not None
    loader.add_fallback(entry)
    fallback = fallbacks.record(host, loader, OLD, loader.read().policy)
    fallbacks.hold(loader, fallback)
    return loader, fallback


def booted(host: FakeHost) -> str | None:
    """What GRUB would boot now."""
    entry = Grub(host).read().next_boot()
    return entry.release if entry else None


def test_a_debian_host_is_read(tmp_path: Path) -> None:
    state = Grub(grub_host(tmp_path)).read()
    assert (state.policy, state.one_shot, state.one_shot_by, state.problems) == (None, None, "grubenv", ())
    default = state.next_boot()
    assert default is not None
    assert default.release == NEW  # the first entry is the newest
    old = state.entry(OLD)
    assert old is not None
    assert (old.id, old.linux, old.initrd) == (OLD_ID, f"/boot/vmlinuz-{OLD}", (f"/boot/initrd.img-{OLD}",))


def test_the_fallback_has_its_own_copies_and_todays_command_line(tmp_path: Path) -> None:
    host = grub_host(tmp_path)
    loader, fallback = held(host)
    assert (fallback.entry, booted(host)) == (FALLBACK_ID, OLD)
    entry = loader.read().named(FALLBACK_ID)
    assert entry is not None
    assert entry.linux == f"/boot/gpuhost/vmlinuz-{OLD}"
    assert host.read(entry.linux) == f"kernel {OLD}"
    own = loader.read().entry(OLD)
    assert own is not None
    assert entry.options == own.options
    assert entry.linux in fallback.files


def test_new_arguments_reach_every_entry_but_the_fallback(tmp_path: Path) -> None:
    host = grub_host(tmp_path)
    loader, fallback = held(host)
    (change,) = loader.argument_changes({"panic": "30", "init": "/nonexistent"})
    host.put(change.path, change.after or "")
    loader.make_entry(NEW, 60)
    state = loader.read()
    options = {entry.id: entry.options for entry in state.entries if entry.release}
    assert "init=/nonexistent" in options[NEW_ID]
    assert "init=/nonexistent" in options[OLD_ID]
    assert "init" not in options[FALLBACK_ID]
    assert fallbacks.record(host, loader, OLD, None).files == fallback.files
    assert loader.argument_changes({"panic": "30", "init": "/nonexistent"}) == []


@pytest.mark.parametrize("lvm", [False, True])
def test_the_one_shot_lies_where_grub_can_clear_it(tmp_path: Path, lvm: bool) -> None:
    host = grub_host(tmp_path, lvm=lvm)
    loader, _ = held(host)
    target = loader.read().entry(NEW)
    assert target is not None
    assert loader.set_one_shot(target) == ""
    state = loader.read()
    assert (state.one_shot, state.next_entry, state.one_shot_by) == (NEW_ID, NEW_ID, "ESP" if lvm else "grubenv")
    assert state.default_entry == FALLBACK_ID
    asked = host.ran("grub-reboot")
    assert asked == ([] if lvm else [["grub-reboot", NEW_ID]])  # on LVM it would boot the new kernel every time
    assert trial.clear_one_shot(loader)
    assert booted(host) == OLD


def test_on_lvm_the_snippet_obeys_only_what_it_could_clear(tmp_path: Path) -> None:
    host = grub_host(tmp_path, lvm=True)
    held(host)
    text = host.read(loader_grub.SNIPPET) or ""
    order = [
        text.index(part) for part in ("save_env", "gpuhost_next=unread", 'if [ -z "${gpuhost_next}" ]', "set default")
    ]
    assert order == sorted(order)
    assert ESP_UUID in text


def test_without_a_place_for_the_request_there_is_no_trial(tmp_path: Path) -> None:
    state = Grub(grub_host(tmp_path, lvm=True, esp=False)).read()
    assert state.one_shot_by is None
    assert [item.cause for item in state.problems] == ["loader.no_one_shot"]


def test_what_goes_is_all_of_it(tmp_path: Path) -> None:
    host = grub_host(tmp_path, lvm=True)
    loader, _ = held(host)
    loader.set_default(None)
    assert loader.remove_fallback()
    assert host.read(loader_grub.CFG) == FIXTURE
    assert not host.exists(loader_grub.COPIES)
    assert not host.exists("/boot/efi/gpuhost")
    assert not loader.remove_fallback()


@pytest.mark.parametrize(("before", "after"), [(None, None), (OLD_ID, NEW_ID)])
def test_promotion_restores_the_policy_that_was_found(tmp_path: Path, before: str | None, after: str | None) -> None:
    host = grub_host(tmp_path)
    loader, fallback = held(host)
    target = loader.read().entry(NEW)
    assert target is not None
    trial._make_default(loader, replace(fallback, policy_before=before), target)
    loader.remove_fallback()
    assert booted(host) == NEW
    assert loader.read().policy == after


def test_a_config_that_grub_could_not_read_is_a_stop(tmp_path: Path) -> None:
    host = grub_host(tmp_path)
    host.put(loader_grub.CFG, "menuentry 'x' {\n")
    with pytest.raises(Exception, match="grub-script-check"):
        Grub(host).read()


def test_a_way_back_that_was_cut_off_after_the_copy_went_is_finished(tmp_path: Path) -> None:
    """The roll file still names the copy, and the old kernel's own entry boots the same: that one is held then."""
    host = grub_host(tmp_path)
    loader, fallback = held(host)
    roll = open_roll(fallback)
    trial.like_before(host, loader, roll)
    assert loader.read().named(FALLBACK_ID) is None
    assert trial.undo(host, loader, roll) == []
    assert trial.like_before(host, loader, roll) == []
    assert booted(host) == OLD


def open_roll(fallback: Fallback) -> Roll:
    """A roll from OLD to NEW."""
    return Roll(make_head("roll", "web1", "run"), "open", None, None, "", NEW, OLD, "", None, {}, {}, fallback=fallback)


@pytest.mark.parametrize("lvm", [False, True])
def test_a_way_back_is_finished_wherever_it_was_cut_off(tmp_path: Path, lvm: bool) -> None:
    """After each single effect of like_before: the old kernel boots, and the same once more ends it."""
    cut, effects = 0, 1
    while cut < effects:
        host = grub_host(tmp_path / str(cut), lvm=lvm)
        loader, fallback = held(host)
        roll = open_roll(fallback)
        host.effects, host.die_after = [], cut + 1
        try:
            trial.undo(host, loader, roll)
            trial.like_before(host, loader, roll)
        except Killed:
            effects = cut + 2
        host.die_after = None
        cut += 1
        assert booted(host) == OLD
        trial.undo(host, Grub(host), roll)
        assert booted(host) == OLD
        trial.like_before(host, Grub(host), roll)
        assert booted(host) == OLD
        assert FALLBACK_ID not in (host.read(loader_grub.CFG) or "")
        assert not host.exists(loader_grub.COPIES)
        assert not host.exists("/boot/efi/gpuhost")
    assert cut > 5


def test_an_initrd_that_nobody_has_booted_is_not_gone_back_to(tmp_path: Path) -> None:
    host = grub_host(tmp_path)
    loader, fallback = held(host)
    host.put(f"/boot/initrd.img-{OLD}", "made again during the roll")
    (line,) = trial.like_before(host, loader, open_roll(fallback))
    assert line.startswith(f"default stays {FALLBACK_ID}")
    assert Grub(host).read().default_entry == FALLBACK_ID


def test_the_fallback_asks_for_no_password_where_the_original_does_not(tmp_path: Path) -> None:
    host = grub_host(tmp_path)
    text = (host.read(loader_grub.CFG) or "").replace("--class os $", "--class os --unrestricted $")
    host.put(loader_grub.CFG, text)
    entry = Grub(host).read().entry(OLD)
    assert entry is not None
    Grub(host).add_fallback(entry)
    snippet = host.read(loader_grub.SNIPPET) or ""
    assert f"--class os --unrestricted --id {FALLBACK_ID} {{" in snippet


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ('set superusers="root"\npassword_pbkdf2 root grub.pbkdf2.sha512\n', "grub.asks_for_password"),
        ("  set timeout=-1\n", "loader.waits_for_a_key"),
    ],
)
def test_a_menu_that_waits_for_somebody_is_a_problem(tmp_path: Path, text: str, code: str) -> None:
    host = grub_host(tmp_path)
    assert Grub(host).read().problems == ()
    host.put(loader_grub.CFG, text + (host.read(loader_grub.CFG) or ""))
    assert [item.cause for item in Grub(host).read().problems] == [code]


def test_a_password_for_anything_but_kernels_is_none_of_a_rolls_business(tmp_path: Path) -> None:
    host = grub_host(tmp_path)
    entries = "menuentry 'Debian' --unrestricted --id 'gnulinux-simple-1' {\n  linux /vmlinuz-6.1.0-57-amd64\n}\n"
    firmware = "menuentry 'UEFI Firmware Settings' --id 'uefi-firmware' {\n  fwsetup\n}\n"
    host.put(loader_grub.CFG, f'set superusers="root"\nset default="0"\n{entries}{firmware}')
    assert "grub.asks_for_password" not in [item.cause for item in Grub(host).read().problems]


@pytest.mark.parametrize(
    ("path", "text", "code"),
    [
        ("/boot/grub/custom.cfg", f'set default="{NEW_ID}"\n', "grub.default_undecided"),
        ("/boot/grub/custom.cfg", "menuentry 'memtest' {\n}\n", None),
        ("/etc/default/grub", 'GRUB_CMDLINE_LINUX="${OTHER:+$OTHER }x"\n', "grub.defaults_not_understood"),
    ],
)
def test_settings_that_can_not_be_followed_are_known_before_the_roll(
    tmp_path: Path, path: str, text: str, code: str | None
) -> None:
    host = grub_host(tmp_path)
    host.put(path, text)
    assert [item.cause for item in Grub(host).read().problems] == ([code] if code else [])


def test_another_systems_entry_of_the_same_kernel_comes_last(tmp_path: Path) -> None:
    host = grub_host(tmp_path)
    other = f"menuentry 'Clone' --id 'osprober-gnulinux-{OLD}' {{\n  linux /boot/vmlinuz-{OLD} root=/dev/sdb1\n}}\n"
    host.put(loader_grub.CFG, other + (host.read(loader_grub.CFG) or ""))
    entry = Grub(host).read().entry(OLD)
    assert entry is not None
    assert entry.id == OLD_ID
