"""systemd-boot: loader.conf byte for byte, entries, their order, and what boots next. All texts are synthetic."""

from __future__ import annotations

import dataclasses
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuhost.efi_variables import decode_efi_string, encode_efi_string
from gpuhost.systemd_boot import (
    Entry,
    compare_versions,
    default_of,
    find,
    order,
    parse_entry,
    release_of,
    selected,
    with_default,
)

MACHINE = "0123456789abcdef0123456789abcdef"
LOADER_CONF = "timeout 3\n# default old.conf\ndefault  proxmox-6.8.12-9-pve.conf  \nconsole-mode keep\n"


def entry_text(release: str, sort_key: str | None = "debian") -> str:
    """A boot entry as Debian's kernel-install writes it."""
    lines = [
        "# Boot Loader Specification type#1 entry",
        "title      Debian GNU/Linux 12 (bookworm)",
        f"version    {release}",
        f"machine-id {MACHINE}",
        f"sort-key   {sort_key}" if sort_key else "",
        "options    root=LABEL=root ro",
        "options    panic=30",
        f"linux      /{MACHINE}/{release}/linux",
        f"initrd     /{MACHINE}/{release}/initrd.img-{release}",
    ]
    return "\n".join(lines) + "\n"


def debian(release: str, sort_key: str | None = "debian") -> Entry:
    return parse_entry(f"{MACHINE}-{release}.conf", entry_text(release, sort_key))


def proxmox(release: str) -> Entry:
    """A boot entry as proxmox-boot-tool writes it: no sort-key, no machine-id."""
    text = (
        f"title    Proxmox Virtual Environment\nversion  {release}\noptions   root=ZFS=rpool/ROOT/pve-1 boot=zfs\n"
        f"linux    /EFI/proxmox/{release}/vmlinuz-{release}\ninitrd   /EFI/proxmox/{release}/initrd.img-{release}\n"
    )
    return parse_entry(f"proxmox-{release}.conf", text)


def plain(filename: str) -> Entry:
    return Entry(filename, None, None, None, None, "/vmlinuz", (), "")


OLD, NEW = "6.1.0-57-cloud-amd64", "6.12.117+deb12-cloud-amd64"
PAIR = [debian(OLD), debian(NEW)]


# --- loader.conf


def test_loader_conf() -> None:
    assert default_of(LOADER_CONF) == "proxmox-6.8.12-9-pve.conf"
    assert default_of('default "a.conf"\n\tdefault\tb.conf\r\n') == "b.conf"
    assert default_of("default\n#default x\ndefaults y\n") is None
    assert default_of("default x.conf\ndefault @nonsense\n") == "x.conf"
    assert default_of("default @saved") == "@saved"


def test_with_default() -> None:
    assert with_default(LOADER_CONF, "proxmox-6.8.12-9-pve.conf") == LOADER_CONF
    assert with_default(LOADER_CONF, "new.conf") == (
        "timeout 3\n# default old.conf\ndefault new.conf\nconsole-mode keep\n"
    )
    assert with_default(LOADER_CONF, None) == "timeout 3\n# default old.conf\nconsole-mode keep\n"
    assert with_default("timeout 3", "a.conf") == "timeout 3\ndefault a.conf\n"
    assert with_default("timeout 3\r\n", "a.conf") == "timeout 3\r\ndefault a.conf\r\n"
    assert with_default("", "a.conf") == "default a.conf\n"
    assert with_default("default a.conf\r\ntimeout 3\ndefault b.conf", "c.conf") == "timeout 3\ndefault c.conf"


@pytest.mark.parametrize("name", ["", "a b.conf", "a\n.conf"])
def test_with_default_refuses(name: str) -> None:
    with pytest.raises(ValueError, match="not the name of a boot entry"):
        with_default(LOADER_CONF, name)


conf_lines = st.sampled_from(
    [
        "timeout 3",
        "default a.conf",
        " default\tb.conf ",
        "#default c",
        "",
        "default",
        "editor no",
        'default "d.conf"',
        "x",
    ]
)
confs = st.builds(
    lambda lines, end, last: end.join(lines) + last, st.lists(conf_lines, max_size=6), st.sampled_from(["\n", "\r\n"]),
    st.sampled_from(["", "\n"]),
)  # fmt: skip


@given(confs | st.text(alphabet='default x#\t\r\n"@é', max_size=40), st.sampled_from(["a.conf", "proxmox-*", None]))
def test_with_default_says_so_and_keeps_the_rest(text: str, entry: str | None) -> None:
    result = with_default(text, entry)
    assert default_of(result) == entry
    assert with_default(result, entry) == result

    def others(conf: str) -> list[str]:
        return [line for line in conf.replace("\r", "\n").split("\n") if line.split()[:1] != ["default"] and line]

    assert others(result) == others(text)


# --- entries


def test_parse_entry() -> None:
    entry = debian(NEW)
    assert entry == Entry(
        filename=f"{MACHINE}-{NEW}.conf",
        title="Debian GNU/Linux 12 (bookworm)",
        version=NEW,
        machine_id=MACHINE,
        sort_key="debian",
        linux=f"/{MACHINE}/{NEW}/linux",
        initrd=(f"/{MACHINE}/{NEW}/initrd.img-{NEW}",),
        options="root=LABEL=root ro panic=30",
    )
    several = parse_entry("x.conf", "initrd /ucode.img\ninitrd /initrd.img\nefi /x.efi\nunknown y\n")
    assert (several.initrd, several.linux, several.options) == (("/ucode.img", "/initrd.img"), "/x.efi", "")


@pytest.mark.parametrize(
    ("filename", "tries"),
    [
        ("a.conf", None),
        ("a+3.conf", (3, 0)),
        ("a+0-3.conf", (0, 3)),
        ("debian-6.12.117+deb12-cloud-amd64.conf", None),
        ("debian-6.12.74+deb13+1-amd64.conf", None),
        ("debian-6.12.117+deb12-amd64+2-1.conf", (2, 1)),
    ],
)
def test_boot_counter(filename: str, tries: tuple[int, int] | None) -> None:
    assert plain(filename).tries == tries


def test_versions_as_systemd_orders_them() -> None:
    """The list in the comment of strverscmp_improved, oldest first, and kernels."""
    versions = ["122.1", "123~rc1-1", "123", "123-a", "123-a.1", "123-1", "123-1.1", "123^post1", "123.a-1", "123.1-1"]
    versions += ["123a-1", "124-1"]
    for older, newer in itertools.combinations(versions, 2):
        assert compare_versions(older, newer) == -1
        assert compare_versions(newer, older) == 1
    assert compare_versions(OLD, NEW) == -1
    assert compare_versions("6.8.12-9-pve", "6.8.12-10-pve") == -1
    assert compare_versions("123_a", "123a") == 0
    assert compare_versions("0012", "12") == 0
    assert compare_versions("", "") == 0


@given(st.text(alphabet="019ab.-~^+_", max_size=10), st.text(alphabet="019ab.-~^+_", max_size=10))
def test_version_order_is_antisymmetric(a: str, b: str) -> None:
    assert compare_versions(a, b) == -compare_versions(b, a)


def test_order_by_sort_key_then_version_then_name() -> None:
    foreign = dataclasses.replace(debian("7.0.0-amd64"), sort_key="zz", filename="zz.conf")
    names = [entry.filename for entry in order([plain("a.conf"), foreign, *PAIR, plain("b.conf")])]
    assert names == [PAIR[1].filename, PAIR[0].filename, "zz.conf", "b.conf", "a.conf"]
    other_machine = dataclasses.replace(debian("9.9.9-amd64"), machine_id="ffff")
    assert order([other_machine, *PAIR])[-1] == other_machine


def test_order_of_proxmox_entries_is_by_name() -> None:
    entries = [proxmox(release) for release in ("6.8.12-9-pve", "6.14.11-5-bpo12-pve", "6.8.12-10-pve")]
    assert [entry.version for entry in order(entries)] == ["6.14.11-5-bpo12-pve", "6.8.12-10-pve", "6.8.12-9-pve"]


def test_order_of_counted_entries() -> None:
    names = ["z+0-3.conf", "a+3.conf", "a.conf", "m+1-2.conf"]
    assert [entry.filename for entry in order(map(plain, names))][-1] == "z+0-3.conf"
    spent_is_newest = [dataclasses.replace(PAIR[1], filename="new+0-3.conf"), PAIR[0]]
    assert selected(spent_is_newest, None, None, None) == PAIR[0]


# --- what boots next


def test_selected_without_any_default_is_the_newest() -> None:
    assert selected(PAIR, None, None, None) == PAIR[1]
    assert selected([], None, None, None) is None
    assert selected([], "x.conf", None, "y.conf") is None


def test_selected_precedence() -> None:
    old, new = PAIR
    assert selected(PAIR, old.filename, None, None) == old
    assert selected(PAIR, old.filename, new.filename, None) == new  # LoaderEntryDefault beats loader.conf
    assert selected(PAIR, new.filename, new.filename, old.filename) == old  # LoaderEntryOneShot beats both


def test_unknown_names_are_passed_over() -> None:
    old, new = PAIR
    assert selected(PAIR, old.filename, None, "invented.conf") == old
    assert selected(PAIR, old.filename, "removed.conf", "invented.conf") == old
    assert selected(PAIR, "removed.conf", None, None) == new
    assert selected(PAIR, "@saved", None, None) == new


def test_names_match_whole_with_conf_in_any_case_and_as_a_glob() -> None:
    old, new = PAIR
    assert selected(PAIR, old.filename.upper(), None, None) == old
    assert selected(PAIR, old.filename.removesuffix(".conf"), None, None) == new  # no ".conf": fits nothing
    assert selected(PAIR, "*-6.1.*.conf", None, None) == old
    assert find(PAIR, "*6.1*") == new  # the first in order that fits: why a default must be a whole name
    assert find(PAIR, f"{MACHINE}-6.1.0-5[6-8]-cloud-amd64.conf") == old
    assert find(PAIR, f"{MACHINE}-6.1.0-5[z-a]-cloud-amd64.conf") is None
    assert find([plain("a+1.conf")], r"a\+1.conf") is not None
    assert find([plain("a.conf")], "?.conf") is not None
    assert find([plain("axconf")], "a.conf") is None
    assert find(PAIR, "") is None


def test_files_that_systemd_boot_does_not_list() -> None:
    entries = [plain(".hidden.conf"), plain("auto-windows.conf"), plain("x.conf.bak"), PAIR[0]]
    nothing_to_boot = dataclasses.replace(PAIR[1], linux=None)
    assert selected([*entries, nothing_to_boot], "*", None, None) == PAIR[0]


def test_the_release_of_an_entry() -> None:
    """By its version, else by its kernel's path; never by part of a name."""
    pve = [proxmox("6.8.12-9-pve"), proxmox("6.8.12-90-pve")]
    assert [release_of(entry) for entry in [*PAIR, *pve]] == [OLD, NEW, "6.8.12-9-pve", "6.8.12-90-pve"]
    silent = [dataclasses.replace(entry, version=None) for entry in [*PAIR, *pve]]
    assert [release_of(entry) for entry in silent] == [OLD, NEW, "6.8.12-9-pve", "6.8.12-90-pve"]
    assert release_of(dataclasses.replace(PAIR[0], version=None, linux="/EFI/memtest86+x64.efi")) is None


# --- EFI variables


def test_efi_strings() -> None:
    data = bytes.fromhex("07000000") + "a.conf".encode("utf-16-le") + b"\0\0"
    assert encode_efi_string("a.conf") == data
    assert decode_efi_string(data) == "a.conf"
    assert decode_efi_string(data[:-2]) == "a.conf"  # some firmware stores no NUL
    assert decode_efi_string(data + data[4:]) == "a.conf"
    assert decode_efi_string(bytes(4)) == ""


@pytest.mark.parametrize("data", [b"", b"\7\0\0", b"\7\0\0\0a", b"\7\0\0\0\0\xd8"])
def test_no_efi_string(data: bytes) -> None:
    with pytest.raises(ValueError, match="EFI"):
        decode_efi_string(data)
    with pytest.raises(ValueError, match="NUL"):
        encode_efi_string("a\0b")


@given(st.text(alphabet=st.characters(codec="utf-16-le", exclude_characters="\0")))
def test_efi_strings_read_back(text: str) -> None:
    assert decode_efi_string(encode_efi_string(text)) == text
