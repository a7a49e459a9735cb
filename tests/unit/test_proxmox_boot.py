"""Proxmox's boot tool: its files and output, and every way in which its ESPs can differ from what they should hold."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from fake_host import FakeHost
from fake_proxmox import FakeProxmox, fixture, lay_out
from hypothesis import given
from hypothesis import strategies as st

from gpuhost import cmdline, grub_config, proxmox_boot, proxmox_esps, systemd_boot
from gpuhost.host_io import Result
from gpuhost.proxmox_boot import Kernels
from gpuhost.proxmox_esps import EspContent

A, B = "A1B2-C3D4", "A1B2-C3D5"
OLD, NEW, OLDEST = "6.8.12-9-pve", "6.14.11-5-bpo12-pve", "6.5.13-6-pve"
TREES = ["two-systemd-boot", "two-grub", "mixed", "out-of-sync", "next-boot-pin", "turned-to-grub"]


@pytest.fixture
def host(tmp_path: Path) -> FakeHost:
    return FakeHost(tmp_path)


def tool(host: FakeHost, *words: str) -> Result:
    return host.run(["proxmox-boot-tool", *words])


def content(host: FakeHost, uuid: str, fake: FakeProxmox) -> EspContent:
    """What a reader finds on one ESP."""
    if uuid in fake.missing:
        return EspContent(uuid, "none", problem=f"/dev/disk/by-uuid/{uuid} does not exist")
    folder = fake.esps[uuid]
    paths = [str(path.relative_to(host.path(folder))) for path in host.path(folder).rglob("*") if path.is_file()]
    menu = host.read(f"{folder}/grub/grub.cfg")
    return EspContent(
        uuid=uuid,
        loader=proxmox_esps.esp_loader(paths),
        loader_conf=host.read(f"{folder}/loader/loader.conf"),
        entries=tuple(
            systemd_boot.parse_entry(Path(path).name, host.read(f"{folder}/{path}") or "")
            for path in paths
            if path.startswith("loader/entries/")
        ),
        grub_cfg=menu,
        grub_entries=grub_config.parse(menu).entries if menu else (),
        digests={path: host.sha256(f"{folder}/{path}") or "" for path in paths},
    )


def differences(host: FakeHost, fake: FakeProxmox, release: str = OLD, default: str | None = None) -> list[str]:
    """What ``compare`` finds on the fake host, as lines."""
    uuids = proxmox_boot.parse_uuids(host.read(proxmox_boot.UUIDS) or "")
    kernels = {}
    for release_there in (name[8:] for name in host.names("/boot") if name.startswith("vmlinuz-")):
        kernel, initrd = (host.sha256(f"/boot/{name}-{release_there}") for name in ("vmlinuz", "initrd.img"))
        if kernel and initrd:
            kernels[release_there] = (kernel, initrd)
    line, _ = cmdline.effective_first_line(host.read("/etc/kernel/cmdline") or "")
    esps = [content(host, uuid, fake) for uuid in uuids]
    return [item.text for item in proxmox_esps.compare(esps, kernels, line, release, default)]


# --- files and output


def test_uuids() -> None:
    text = f"# ours\n{A}\n\n{B}\n{A}\nnonsense\n {B}\n"
    assert proxmox_boot.parse_uuids(text) == (A, B)
    assert proxmox_boot.uuid_problems(text) == (
        "line 1 of /etc/kernel/proxmox-boot-uuids is no UUID, so the tool skips it: '# ours'",
        "line 6 of /etc/kernel/proxmox-boot-uuids is no UUID, so the tool skips it: 'nonsense'",
        f"line 7 of /etc/kernel/proxmox-boot-uuids is no UUID, so the tool skips it: '{B}'",
        f"/etc/kernel/proxmox-boot-uuids has {A} more than once",
    )
    assert proxmox_boot.uuid_problems(f"{A}\n{B}\n") == ()


def test_last_uuid_without_line_end_is_never_refreshed(host: FakeHost) -> None:
    """Seen with the real scripts: rc 0 and not a word."""
    fake = lay_out(host, "two-systemd-boot")
    host.put(proxmox_boot.UUIDS, f"{A}\n{B}")
    host.put("/etc/kernel/cmdline", "root=ZFS=rpool/ROOT/pve-1 boot=zfs quiet\n")
    assert B not in tool(host, "refresh").stderr
    assert proxmox_boot.parse_uuids(f"{A}\n{B}") == (A, B)
    assert proxmox_boot.uuid_problems(f"{A}\n{B}") == (
        f"the last line of /etc/kernel/proxmox-boot-uuids has no line end, so the tool never refreshes {B}",
    )
    assert {line.split(":")[0] for line in differences(host, fake)} == {f"ESP {B}"}


uuids = st.from_regex(r"[0-9A-F]{4}-[0-9A-F]{4}", fullmatch=True)


@given(st.lists(uuids, max_size=5, unique=True))
def test_uuids_round_trip(items: list[str]) -> None:
    text = "".join(f"{item}\n" for item in items)
    assert proxmox_boot.parse_uuids(text) == tuple(dict.fromkeys(items))
    assert proxmox_boot.uuid_problems(text) == ()


def test_pin_files() -> None:
    assert proxmox_boot.pin_files(None, None, None) == Kernels((), None, None)
    assert proxmox_boot.pin_files("", None, "") == Kernels((), None, None)
    assert proxmox_boot.pin_files(f"{OLD}\nx\n", NEW, f"{NEW}\n\n{OLD}\n") == Kernels((NEW, OLD), OLD, NEW)


# --- the default


def test_policy() -> None:
    assert proxmox_boot.Policy(None).default == "proxmox-*"
    assert proxmox_boot.Policy(OLD).default == f"proxmox-{OLD}.conf"


@pytest.mark.parametrize("release", ["", "--next-boot", "newest", "6.8.12-9-pve\n"])
def test_pin_takes_a_release_only(release: str) -> None:
    with pytest.raises(ValueError, match="not a kernel release"):
        proxmox_boot.pin(release)


def test_next_boot_pin_is_refused() -> None:
    (reason,) = proxmox_boot.refusals(proxmox_boot.pin_files(f"{OLD}\n", f"{NEW}\n", None))
    assert reason.startswith(f"/etc/kernel/next-boot-pin: {NEW} is pinned for the next boot")
    assert proxmox_boot.refusals(Kernels((NEW,), OLD, None)) == ()


def test_empty_next_boot_pin_is_refused(host: FakeHost) -> None:
    """It takes the permanent pin out of force, and ``kernel list`` does not show it (seen with the real scripts)."""
    fake = lay_out(host, "two-systemd-boot")
    host.put(proxmox_boot.NEXT_BOOT_PIN, "")
    tool(host, "refresh")
    listed = tool(host, "kernel", "list").stdout
    assert f"Pinned kernel:\n{OLD}\n" in listed
    assert "next-boot" not in listed
    default = f"default proxmox-*, expected default proxmox-{OLD}.conf"
    assert differences(host, fake, default=f"proxmox-{OLD}.conf") == [
        f"ESP {uuid}: loader/loader.conf: {default}" for uuid in (A, B)
    ]
    (reason,) = proxmox_boot.refusals(proxmox_boot.pin_files(f"{OLD}\n", "", None))
    assert "the file is empty" in reason


def test_pin_needs_the_refresh(host: FakeHost) -> None:
    fake = lay_out(host, "two-systemd-boot")
    new = f"proxmox-{NEW}.conf"
    assert "Use the 'refresh' command" in host.run(proxmox_boot.pin(NEW)).stdout
    assert len(differences(host, fake, default=new)) == 2
    host.run(proxmox_boot.refresh())
    assert differences(host, fake, default=new) == []
    host.run(proxmox_boot.unpin())
    host.run(proxmox_boot.refresh())
    assert differences(host, fake, default=proxmox_boot.Policy(None).default) == []


def test_reinit_forgets_the_pin(host: FakeHost) -> None:
    """Packages of systemd-boot, GRUB, shim and the tool run it: the file still says OLD, the ESPs say newest."""
    fake = lay_out(host, "two-systemd-boot")
    tool(host, "reinit")
    assert differences(host, fake) == []
    wanted = proxmox_boot.Policy(proxmox_boot.pin_files(host.read(proxmox_boot.PIN), None, None).pinned).default
    assert len(differences(host, fake, default=wanted)) == 2


# --- which loader


def test_esp_loader() -> None:
    assert proxmox_esps.esp_loader(set()) == "none"
    assert proxmox_esps.esp_loader({"EFI/BOOT/BOOTX64.EFI"}) == "none"
    assert proxmox_esps.esp_loader({"loader/loader.conf", "grub/grubenv"}) == "systemd-boot"
    assert proxmox_esps.esp_loader({"loader/loader.conf", "EFI/PROXMOX/GRUBX64.EFI"}) == "grub"
    assert proxmox_esps.esp_loader({"grub/i386-pc/core.img"}) == "grub"


def test_case_cmdline_05(host: FakeHost) -> None:
    """EFI, a list of ESPs, an /etc/kernel/cmdline, and GRUB all the same: the ESPs are not judged by that file."""
    fake = lay_out(host, "two-grub")
    assert [content(host, uuid, fake).loader for uuid in (A, B)] == ["grub", "grub"]
    host.put("/etc/kernel/cmdline", "root=ZFS=rpool/ROOT/pve-1 boot=zfs left-over\n")
    host.put("/etc/default/grub.d/99-gpuhost.cfg", 'GRUB_CMDLINE_LINUX="$GRUB_CMDLINE_LINUX amd_pstate=active"\n')
    tool(host, "refresh")
    assert differences(host, fake) == []
    for uuid in (A, B):
        entries = content(host, uuid, fake).grub_entries
        assert {entry.release for entry in entries} == {OLD, NEW}
        assert all("amd_pstate=active" in entry.options and "left-over" not in entry.options for entry in entries)
    assert grub_config.parse(content(host, B, fake).grub_cfg or "").default_word == (
        f"gnulinux-advanced-7d0f53f2b6a1c944>gnulinux-{OLD}-advanced-7d0f53f2b6a1c944"
    )


def test_mixed_with_systemd_boot_first_is_in_order(host: FakeHost) -> None:
    """Case cmdline-05: both places count."""
    fake = lay_out(host, "mixed")
    loaders: Sequence[tuple[str, proxmox_esps.Loader]] = [(uuid, content(host, uuid, fake).loader) for uuid in (A, B)]
    assert loaders == [(A, "systemd-boot"), (B, "grub")]
    assert proxmox_esps.skipped_by_refresh(loaders) == ()
    assert differences(host, fake, NEW) == []


def test_mixed_with_grub_first_is_never_refreshed(host: FakeHost) -> None:
    fake = lay_out(host, "turned-to-grub")
    loaders: Sequence[tuple[str, proxmox_esps.Loader]] = [(uuid, content(host, uuid, fake).loader) for uuid in (A, B)]
    assert proxmox_esps.skipped_by_refresh(loaders) == (B,)
    assert proxmox_esps.skipped_by_refresh([(A, "none"), (B, "systemd-boot")]) == (A,)
    host.put("/etc/kernel/cmdline", "root=ZFS=rpool/ROOT/pve-1 boot=zfs quiet\n")
    result = tool(host, "refresh")
    assert (result.rc, f"/dev/disk/by-uuid/{B} contains no grub directory - skipping" in result.stderr) == (0, True)
    assert differences(host, fake) == [
        f"ESP {B}: loader/entries/proxmox-{release}.conf: options root=ZFS=rpool/ROOT/pve-1 boot=zfs, "
        "expected options root=ZFS=rpool/ROOT/pve-1 boot=zfs quiet"
        for release in (NEW, OLD)
    ]


# --- what is on the ESPs


@pytest.mark.parametrize("tree", ["two-systemd-boot", "two-grub", "mixed", "turned-to-grub", "next-boot-pin"])
@pytest.mark.parametrize("release", [OLD, NEW])
def test_in_order(host: FakeHost, tree: str, release: str) -> None:
    assert differences(host, lay_out(host, tree), release) == []


def test_case_cmdline_01(host: FakeHost) -> None:
    """Arguments on line 2: no entry of any ESP has them, whatever the file says. Then repaired."""
    fake = lay_out(host, "two-systemd-boot")
    wanted = {"amd_pstate": "active", "processor.max_cstate": "1", "nmi_watchdog": "0"}
    host.put("/etc/kernel/cmdline", "root=ZFS=rpool/ROOT/pve-1 boot=zfs quiet\namd_pstate=active nmi_watchdog=0\n")
    assert tool(host, "refresh").rc == 0
    (entry,) = [entry for entry in content(host, B, fake).entries if systemd_boot.release_of(entry) == OLD]
    assert len(cmdline.missing(entry.options, wanted)) == 3
    host.put("/etc/kernel/cmdline", cmdline.rewrite_file(host.read("/etc/kernel/cmdline") or "", wanted))
    assert len(differences(host, fake)) == 4  # two entries on each of two ESPs
    tool(host, "refresh")
    assert differences(host, fake) == []
    entries = [entry for uuid in (A, B) for entry in content(host, uuid, fake).entries]
    assert len(entries) == 4
    assert all(cmdline.missing(entry.options, wanted) == [] for entry in entries)


@pytest.mark.parametrize("text", ["\nroot=ZFS=rpool/ROOT/pve-1 boot=zfs\n", "# managed by gpuhost\nroot=x\n"])
def test_first_line_without_root_is_refused(host: FakeHost, text: str) -> None:
    lay_out(host, "two-systemd-boot")
    before = host.snapshot()
    host.put("/etc/kernel/cmdline", text)
    result = tool(host, "refresh")
    assert (result.rc, result.last_line) == (1, "No root= parameter in /etc/kernel/cmdline found!")
    host.put("/etc/kernel/cmdline", before["etc/kernel/cmdline"][1])
    assert host.snapshot() == before


def test_without_cmdline_file_the_running_line_is_taken(host: FakeHost) -> None:
    fake = lay_out(host, "two-systemd-boot")
    host.path("/etc/kernel/cmdline").unlink()
    host.put("/proc/cmdline", "initrd=\\EFI\\proxmox\\x\\initrd.img-x root=ZFS=rpool/ROOT/pve-1 once\n")
    assert tool(host, "refresh").rc == 0
    assert {entry.options for entry in content(host, A, fake).entries} == {"root=ZFS=rpool/ROOT/pve-1 once"}


def test_out_of_sync(host: FakeHost) -> None:
    """``status`` shows two equal lines; only reading finds it."""
    shown = [line.split(maxsplit=1) for line in fixture("out-of-sync")["status.stdout"].splitlines()]
    first, second = (line[1] for line in shown if line[0] in (A, B))
    assert first == second
    fake = lay_out(host, "out-of-sync")
    found = differences(host, fake)
    assert len(found) == 2
    assert all(line.startswith(f"ESP {B}: loader/entries/proxmox-") for line in found)
    assert found[0].endswith("expected options root=ZFS=rpool/ROOT/pve-1 boot=zfs amd_pstate=active")
    tool(host, "refresh")
    assert differences(host, fake) == []


def test_missing_esp_is_a_difference(host: FakeHost) -> None:
    fake = lay_out(host, "two-systemd-boot")
    fake.missing = {A}
    assert tool(host, "refresh").rc == 0
    assert differences(host, fake) == [f"ESP {A}: /: /dev/disk/by-uuid/{A} does not exist, expected readable"]


@pytest.mark.parametrize("known", [True, False])
def test_full_esp(host: FakeHost, known: bool) -> None:
    """The tool stops there: a truncated kernel on the first ESP, nothing at all on the second. Freed: in sync."""
    fake = lay_out(host, "two-systemd-boot")
    added = NEW if known else OLDEST
    folder = f"EFI/proxmox/{added}"
    if known:  # the entry of before stays, and now leads to half a kernel
        host.put(f"/boot/vmlinuz-{NEW}", "x" * 500)
    else:
        tool(host, "kernel", "add", OLDEST)
    fake.room = {A: 110}
    result = tool(host, "refresh")
    assert (result.rc, "No space left on device" in result.stderr, B in result.stderr) == (1, True, False)
    found = differences(host, fake, added)
    assert any(line.startswith(f"ESP {A}: {folder}/") or f"ESP {A}: loader/entries" in line for line in found)
    if known:
        assert [line.partition(": sha256")[0] for line in found] == [f"ESP {u}: {folder}/vmlinuz-{NEW}" for u in (A, B)]
    else:
        assert found[0] == f"ESP {A}: loader/entries/proxmox-{OLDEST}.conf: missing, expected an entry of {OLDEST}"
        assert found[1].startswith(f"ESP {B}: loader/entries/proxmox-{OLDEST}.conf: missing")
    fake.room = {}
    tool(host, "refresh")
    assert differences(host, fake, added) == []


def test_folder_without_entry_and_entry_without_kernel(host: FakeHost) -> None:
    fake = lay_out(host, "two-systemd-boot")
    host.path(f"/esp/{A}/loader/entries/proxmox-{NEW}.conf").unlink()
    host.path(f"/esp/{B}/EFI/proxmox/{OLD}/initrd.img-{OLD}").unlink()
    assert differences(host, fake) == [
        f"ESP {A}: loader/entries/proxmox-{NEW}.conf: missing, expected an entry of {NEW}",
        f"ESP {B}: EFI/proxmox/{OLD}/initrd.img-{OLD}: missing, expected like /boot/initrd.img-{OLD}",
        f"ESP {A}: boot entries: none of {NEW}, expected one as on ESP {B}",
    ]


def test_kernel_without_initrd_is_skipped_with_success(host: FakeHost) -> None:
    fake = lay_out(host, "two-systemd-boot")
    host.path(f"/boot/initrd.img-{OLDEST}").unlink()
    tool(host, "kernel", "add", OLDEST)
    assert tool(host, "refresh").rc == 0
    assert f"/boot/vmlinuz-{OLDEST}: no kernel with initrd, expected both" in differences(host, fake, OLDEST)


def test_new_initrd_without_refresh(host: FakeHost) -> None:
    for tree, path in (("two-systemd-boot", f"EFI/proxmox/{NEW}/initrd.img-{NEW}"), ("two-grub", f"initrd.img-{NEW}")):
        other = FakeHost(host.path(f"/{tree}"))
        fake = lay_out(other, tree)
        other.put(f"/boot/initrd.img-{NEW}", "with our options\n")
        found = differences(other, fake)
        assert [line.partition(": sha256")[0] for line in found] == [f"ESP {uuid}: {path}" for uuid in (A, B)]


def test_kernel_that_boot_no_longer_has(host: FakeHost) -> None:
    """Its entry is only looked at for being whole."""
    fake = lay_out(host, "two-systemd-boot")
    for name in ("vmlinuz", "initrd.img"):
        host.path(f"/boot/{name}-{NEW}").unlink()
    assert differences(host, fake) == []
    host.path(f"/esp/{A}/EFI/proxmox/{NEW}/vmlinuz-{NEW}").unlink()
    assert differences(host, fake) == [
        f"ESP {A}: EFI/proxmox/{NEW}/vmlinuz-{NEW}: missing, expected like /boot/vmlinuz-{NEW}"
    ]


def test_entry_that_leads_elsewhere(host: FakeHost) -> None:
    fake = lay_out(host, "two-systemd-boot")
    path = f"/esp/{B}/loader/entries/proxmox-{NEW}.conf"
    host.put(path, (host.read(path) or "").replace(f"linux    /EFI/proxmox/{NEW}/vmlinuz-{NEW}", "linux    /vmlinuz"))
    assert differences(host, fake) == [
        f"ESP {B}: loader/entries/proxmox-{NEW}.conf: linux /vmlinuz, expected linux /EFI/proxmox/{NEW}/vmlinuz-{NEW}"
    ]


def test_defaults_that_differ(host: FakeHost) -> None:
    fake = lay_out(host, "two-systemd-boot")
    host.put(f"/esp/{B}/loader/loader.conf", "timeout 3\n")
    assert differences(host, fake) == [f"ESP {B}: loader/loader.conf: no default, expected default proxmox-{OLD}.conf"]


def test_other_entries_are_not_the_tools(host: FakeHost) -> None:
    """A refresh leaves them alone, but not their folder where that is EFI/proxmox (seen with the real scripts)."""
    fake = lay_out(host, "two-systemd-boot")
    host.put(
        f"/esp/{A}/loader/entries/gpuhost-fallback.conf", f"version {OLD}\nlinux /EFI/gpuhost/vmlinuz\noptions x\n"
    )
    host.put(f"/esp/{A}/loader/entries/memtest86+x64.efi.conf", "title Memory test\nefi /EFI/memtest86+x64.efi\n")
    host.put(f"/esp/{A}/EFI/gpuhost/vmlinuz", "copy")
    host.put(f"/esp/{A}/EFI/proxmox/gpuhost/vmlinuz", "copy")
    tool(host, "refresh")
    assert host.exists(f"/esp/{A}/loader/entries/gpuhost-fallback.conf")
    assert host.exists(f"/esp/{A}/EFI/gpuhost/vmlinuz")
    assert not host.exists(f"/esp/{A}/EFI/proxmox/gpuhost")
    assert differences(host, fake) == []


def test_grub_menu_that_differs(host: FakeHost) -> None:
    fake = lay_out(host, "two-grub")
    path = f"/esp/{B}/grub/grub.cfg"
    host.put(path, (host.read(path) or "").replace(f"vmlinuz-{OLD} root=", f"vmlinuz-{OLD} other root="))
    (line,) = differences(host, fake)
    assert line.startswith(f"ESP {B}: grub/grub.cfg: 'linux\\t/vmlinuz-{OLD} other root=")
    assert line.endswith(f"as on ESP {A}")


def test_grub_menus_may_name_their_own_disk(host: FakeHost) -> None:
    fake = lay_out(host, "two-grub")
    for uuid, disk in ((A, "hd0,gpt2"), (B, "hd1,gpt2")):
        path = f"/esp/{uuid}/grub/grub.cfg"
        hint = (
            f"set root='{disk}'\n\tsearch --no-floppy --fs-uuid --set=root --hint-bios={disk} --hint-efi={disk} {uuid}"
        )
        host.put(path, (host.read(path) or "").replace(f"search --no-floppy --fs-uuid --set=root {uuid}", hint))
    assert differences(host, fake) == []


def test_grub_entry_without_kernel_and_no_menu(host: FakeHost) -> None:
    fake = lay_out(host, "two-grub")
    host.path(f"/esp/{A}/vmlinuz-{NEW}").unlink()
    host.path(f"/esp/{B}/grub/grub.cfg").unlink()
    assert differences(host, fake) == [
        f"ESP {A}: vmlinuz-{NEW}: missing, expected like /boot/vmlinuz-{NEW}",
        f"ESP {B}: grub/grub.cfg: missing, expected a menu",
        f"ESP {B}: grub/grub.cfg: missing, expected an entry of {NEW}",
        f"ESP {B}: grub/grub.cfg: missing, expected an entry of {OLD}",
        f"ESP {B}: boot entries: none of {NEW}, expected one as on ESP {A}",
    ]


def test_nothing_to_compare() -> None:
    assert [item.text for item in proxmox_esps.compare([], {}, "root=x", OLD)] == [
        "/etc/kernel/proxmox-boot-uuids: no ESP listed, expected at least one",
        f"/boot/vmlinuz-{OLD}: no kernel with initrd, expected both",
    ]
    empty = EspContent(A, "none")
    assert [item.text for item in proxmox_esps.compare([empty], {OLD: ("a", "b")}, "root=x", OLD)] == [
        f"ESP {A}: /: no boot loader, expected systemd-boot or GRUB"
    ]


# --- the fake, where gpuhost relies on a rule of it


def test_fake_selects_what_the_real_tool_selects(host: FakeHost) -> None:
    fake = lay_out(host, "two-systemd-boot")
    fake.host = host
    assert fake.selected() == [NEW, OLD]
    tool(host, "kernel", "pin", OLDEST)
    tool(host, "kernel", "add", "6.8.12-8-pve")
    assert fake.selected() == [NEW, OLDEST, "6.8.12-8-pve", OLD]


@pytest.mark.parametrize("tree", TREES)
def test_fake_gives_what_the_fixtures_say(host: FakeHost, tree: str) -> None:
    lay_out(host, tree)
    host.put("/proc/sys/kernel/osrelease", f"{OLD}\n")
    texts = fixture(tree)
    status = tool(host, "status")
    assert (status.stdout, status.stderr) == (texts["status.stdout"], texts["status.stderr"])
    assert tool(host, "kernel", "list").stdout == texts["kernel-list"]


def test_fake_pin_without_host_menu_fails_in_grub_mode(host: FakeHost) -> None:
    """The root id in the pin comes from the host's /boot/grub/grub.cfg, not from the ESP's."""
    lay_out(host, "two-grub")
    host.path("/boot/grub/grub.cfg").unlink()
    assert tool(host, "refresh").rc == 2
    assert (tool(host, "kernel", "pin", "1.2-pve").rc, tool(host, "nonsense").rc) == (1, 1)
