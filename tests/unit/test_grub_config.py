"""grub.cfg: files of grub-mkconfig (see fixtures/grub/README.md), GRUB's rules for a default, what a kernel gets."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuhost.grub_config import GrubConfig, next_boot, parse, received, resolve

FIXTURES = Path(__file__).parent.parent / "fixtures" / "grub"
ROOT = "0f1e2d3c-4b5a-4697-8877-665544332211"
ADVANCED = f"gnulinux-advanced-{ROOT}"
SIMPLE = f"gnulinux-simple-{ROOT}"
OLD, NEW = "6.1.0-57-amd64", "6.12.117+deb12-amd64"
#: Like the one that reads a request from the ESP: obeyed only where it could be cleared.
SNIPPET = """
search --no-floppy --fs-uuid --set=our_esp A1B2-C3D4
if [ -n "${our_esp}" ]; then
  load_env --file=(${our_esp})/ours/grubenv our_next
  if [ -n "${our_next}" ]; then
    set our_entry="${our_next}"
    set our_next=
    save_env --file=(${our_esp})/ours/grubenv our_next
    set our_next=unread
    load_env --file=(${our_esp})/ours/grubenv our_next
    if [ -z "${our_next}" ]; then
      set default="${our_entry}"
    fi
  fi
fi
"""


def load(name: str) -> GrubConfig:
    return parse((FIXTURES / f"{name}.cfg").read_text())


def nested(release: str, kind: str = "advanced", root: str = ROOT) -> str:
    return f"gnulinux-advanced-{root}>gnulinux-{release}-{kind}-{root}"


def chosen(config: GrubConfig, word: str) -> str | None:
    found = resolve(config, word)
    return found.id if found else None


def booted(config: GrubConfig, env: dict[str, str], one_shot: bool = True) -> str | None:
    found = next_boot(config, env, one_shot)
    return found.id if found else None


def test_debian_12_menu() -> None:
    config = load("debian12")
    assert [(entry.id, entry.release, entry.recovery) for entry in config.entries] == [
        (SIMPLE, NEW, False),
        (nested(NEW), NEW, False),
        (nested(NEW, "recovery"), NEW, True),
        (nested(OLD), OLD, False),
        (nested(OLD, "recovery"), OLD, True),
    ]
    entry = config.entries[3]
    assert entry.title == ("Advanced options for Debian GNU/Linux", f"Debian GNU/Linux, with Linux {OLD}")
    assert (entry.device, entry.linux) == ("", f"/boot/vmlinuz-{OLD}")
    assert entry.initrd == (f"/boot/initrd.img-{OLD}",)
    assert entry.options == f"root=UUID={ROOT} ro  quiet"
    assert config.entries[4].options == f"root=UUID={ROOT} ro single"
    assert (config.default_word, config.honours_next_entry, config.clears_next_entry) == ("0", True, True)
    assert config.sources == ("${config_directory}/custom.cfg", "${prefix}/custom.cfg")


def test_two_initrds_and_quotes() -> None:
    entry = load("debian12-saved").entries[1]
    assert entry.initrd == ("/boot/amd-uc.img", f"/boot/initrd.img-{NEW}")
    assert entry.options == f'root=UUID={ROOT} ro dyndbg="file drivers/pci/* +p" quiet iommu=pt'
    assert received(entry.options) == f'root=UUID={ROOT} ro "dyndbg=file drivers/pci/* +p" quiet iommu=pt'


@pytest.mark.parametrize(
    ("name", "word"),
    [
        ("debian12", "0"),
        ("debian12-saved", "${saved_entry}"),
        ("debian13-pinned", nested("6.12.48+deb13-amd64")),
        ("debian13-flat", "1"),
        ("debian13-old-title", "Debian GNU/Linux, with Linux 6.12.48+deb13-amd64"),
        ("ubuntu2204-saved", "${saved_entry}"),
        ("ubuntu2404-cloud", "0"),
        ("proxmox-esp", nested("6.8.12-9-pve", root="7d0f53f2b6a1c944")),
    ],
)
def test_the_default_of_each_file(name: str, word: str) -> None:
    config = load(name)
    assert config.default_word == word
    assert config.honours_next_entry
    assert config.clears_next_entry


def test_a_saved_default() -> None:
    config = load("debian12-saved")
    assert booted(config, {}) == SIMPLE
    assert booted(config, {"saved_entry": nested(OLD)}) == nested(OLD)
    assert booted(config, {"saved_entry": nested(OLD), "next_entry": nested(NEW)}) == nested(NEW)
    assert booted(config, {"saved_entry": nested(OLD), "next_entry": nested(NEW)}, one_shot=False) == nested(OLD)
    assert booted(config, {"saved_entry": nested(OLD), "next_entry": ""}) == nested(OLD)


def test_a_removed_kernel_leaves_a_saved_entry_that_boots_the_first_of_its_submenu() -> None:
    assert booted(load("debian12-saved"), {"saved_entry": nested("5.10.0-1-amd64")}) == nested(NEW)
    assert booted(load("debian12-saved"), {"saved_entry": "gnulinux-advanced-other>x"}) == SIMPLE


def test_a_fixed_default_ignores_saved_entry_but_not_a_one_shot() -> None:
    config, root = load("proxmox-esp"), "7d0f53f2b6a1c944"
    new, pinned = nested("6.14.11-3-pve", root=root), nested("6.8.12-9-pve", root=root)
    assert booted(config, {"saved_entry": new}) == pinned
    assert booted(config, {"next_entry": new}) == new


def test_ubuntu_tries_a_failed_one_shot_again() -> None:
    config = load("ubuntu2404-cloud")
    old = nested("5.15.0-151-generic")
    assert booted(config, {"initrdfail": "1", "prev_entry": old}) == old
    assert booted(config, {"initrdfail": "1", "prev_entry": old}, one_shot=False) == SIMPLE
    assert booted(config, {"prev_entry": old, "recordfail": "1"}) == SIMPLE


def test_ubuntu_entries_with_a_second_linux_line() -> None:
    entry = load("ubuntu2404-cloud").entries[0]
    assert entry.initrd == ()
    assert "root=PARTUUID=" in entry.options
    assert [option.split()[0].partition("=")[2][:8] for option in entry.all_options] == ["UUID=0f1", "PARTUUID"]
    assert received(load("ubuntu2204-saved").entries[0].options).endswith("ro quiet splash")
    assert received("quiet $vt_handoff", {"vt_handoff": "vt.handoff=7"}) == "quiet vt.handoff=7"


def test_the_correction_of_an_old_title_never_applies() -> None:
    config = load("debian13-old-title")
    assert booted(config, {}) == SIMPLE


# --- get_entry_number and menuentry_eq


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("0", SIMPLE),
        ("", SIMPLE),
        ("1", nested(NEW)),  # the submenu without a further part: its first line
        (ADVANCED, nested(NEW)),
        (f"{ADVANCED}>", nested(NEW)),
        ("1>2", nested(OLD)),
        (" 1>2", nested(OLD)),
        ("0x1>0x2", nested(OLD)),
        ("01>02", nested(OLD)),
        ("1>99", nested(NEW)),
        ("99", SIMPLE),
        ("-1", SIMPLE),
        ("18446744073709551616", SIMPLE),
        ("4294967297>2", nested(OLD)),
        (nested(OLD), nested(OLD)),
        (f"{ADVANCED}>2", nested(OLD)),
        (f"1>Debian GNU/Linux, with Linux {OLD}", nested(OLD)),
        (f"Advanced options for Debian GNU/Linux>Debian GNU/Linux, with Linux {OLD}", nested(OLD)),
        ("Debian GNU/Linux", SIMPLE),
        (f"gnulinux-{OLD}-advanced-{ROOT}", SIMPLE),  # without its submenu it is not found
        (f"Debian GNU/Linux, with Linux {OLD}", SIMPLE),
        (f"{ADVANCED}>gnulinux-nothing", nested(NEW)),
        (f"{ADVANCED}>>x", SIMPLE),
        (f"{SIMPLE}>2", SIMPLE),
        (OLD, SIMPLE),  # 6.1 begins with a number: line 6, which is not there
        ("1 of these>2", nested(OLD)),
    ],
)
def test_which_entry_a_word_selects(word: str, expected: str) -> None:
    assert chosen(load("debian12"), word) == expected


def test_names_with_a_sign_of_levels_are_doubled() -> None:
    config = parse("menuentry 'x' {\n}\nsubmenu 'a > b' {\nmenuentry one --id 'c>d' {\nlinux /vmlinuz-1\n}\n}\n")
    assert config.entries[1].id == "a >> b>c>>d"
    assert chosen(config, "a >> b>c>>d") == "a >> b>c>>d"
    assert chosen(config, "a > b>c>d") == "x"


def test_an_empty_menu_boots_nothing() -> None:
    assert next_boot(parse(""), {"next_entry": "1"}) is None
    assert parse("").default_word is None
    assert chosen(parse("submenu a {\n}\n"), "0") is None


def test_a_menu_in_a_menu() -> None:
    text = "submenu a --id=A {\nsubmenu b --id=B {\nmenuentry c --id=C {\nlinux ($root)/vmlinuz-6.1 quiet\n}\n}\n}\n"
    config = parse(text)
    assert config.entries[0].id == "A>B>C"
    assert (config.entries[0].device, config.entries[0].linux, config.entries[0].release) == (
        "(${root})",
        "/vmlinuz-6.1",
        "6.1",
    )
    assert chosen(config, "0>0>0") == chosen(config, "A") == "A>B>C"


@pytest.mark.parametrize(
    ("path", "release"),
    [
        ("/ROOT/pve-1@/boot/vmlinuz-6.8.12-9-pve", "6.8.12-9-pve"),
        ("/boot/vmlinuz-6.8.0-79-generic.efi.signed", "6.8.0-79-generic"),
        ("/boot/memtest86+x64.efi", None),
        ("/boot/gpuhost/vmlinuz-6.1", "6.1"),
        ("/vmlinuz", None),
    ],
)
def test_release_is_the_kernel_file(path: str, release: str | None) -> None:
    assert parse(f'menuentry x {{\n linux "{path}" ro\n}}\n').entries[0].release == release


# --- later defaults


def test_an_unconditional_line_overrides() -> None:
    text = (FIXTURES / "debian12.cfg").read_text() + f'set default="{nested(OLD)}"\n'
    config = parse(text)
    assert config.default_word == "0"
    assert booted(config, {"next_entry": nested(NEW)}) == nested(OLD)


def test_a_condition_on_the_environment_is_followed() -> None:
    text = (FIXTURES / "debian12.cfg").read_text()
    text += 'if [ "${ours}" = yes ]; then\n  set default="1>2"\nfi\n'
    assert booted(parse(text), {}) == SIMPLE
    assert booted(parse(text), {"ours": "yes"}) == nested(OLD)


def test_a_condition_that_is_not_known_is_not_guessed() -> None:
    text = (FIXTURES / "debian12.cfg").read_text()
    for condition in ('[ "$grub_platform" = efi ]', "[ -f /boot/flag ]", "cmostest 1:2", "true; sleep 1"):
        config = parse(f'{text}if {condition}; then\n  set default="1>2"\nfi\n')
        with pytest.raises(ValueError, match='line 219: default="1>2"'):
            next_boot(config, {})
    assert booted(parse(f"{text}if [ -f /x ]; then\nset default=1\nfi\nset default='1>2'\n"), {}) == nested(OLD)


def test_a_request_on_the_esp() -> None:
    config = parse((FIXTURES / "debian12.cfg").read_text() + SNIPPET)
    assert booted(config, {}) == SIMPLE
    assert booted(config, {"our_esp": "hd0,gpt1", "our_next": nested(OLD)}) == nested(OLD)
    assert booted(config, {"our_esp": "", "our_next": nested(OLD)}) == SIMPLE
    with pytest.raises(ValueError, match="not known"):
        next_boot(config, {"our_next": nested(OLD)})


def test_a_default_within_a_function_or_an_entry_is_none() -> None:
    config = parse(
        "set default=1\nfunction f {\n set default=2\n}\nmenuentry a {\n set default=0\n}\nmenuentry b {\n}\n"
    )
    assert (config.default_word, config.honours_next_entry) == ("1", False)
    assert booted(config, {}) == "b"


def test_without_the_block_a_one_shot_is_ignored() -> None:
    config = parse("set default=0\nmenuentry a {\n}\nmenuentry b {\n}\n")
    assert not config.honours_next_entry
    assert booted(config, {"next_entry": "b"}) == "a"


def test_a_one_shot_that_is_never_cleared_shows() -> None:
    text = (FIXTURES / "debian12.cfg").read_text().replace("   save_env next_entry\n", "")
    assert parse(text).honours_next_entry
    assert not parse(text).clears_next_entry


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("menuentry 'a' {\nlinux /vmlinuz\n", "line 3 .*} is missing"),
        ("if [ a ]; then\n", "fi is missing"),
        ("set a='b\n", "line 1 .*could not read"),
        ("}\n", "nothing leads to"),
        ("echo a | b\n", "could not read"),
        ("echo {\n", "belongs to no menu entry"),
    ],
)
def test_what_grub_could_not_read_is_refused(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        parse(text)


# --- what the kernel receives


@pytest.mark.parametrize(
    ("options", "kernel"),
    [
        ("quiet  ro\t", "quiet ro"),
        ('a="b"', "a=b"),
        ("a='b c'", '"a=b c"'),
        (r"a=b\ c", '"a=b c"'),
        (r"a=\"b\"", r"a=\"b\""),
        (r"a='\'", r"a=\\"),
        ("root=ZFS='rpool/ROOT/pve-1'", "root=ZFS=rpool/ROOT/pve-1"),
        ("$nothing quiet", "quiet"),
        ('"$nothing" x # y', " x"),
    ],
)
def test_what_the_kernel_receives(options: str, kernel: str) -> None:
    assert received(options) == kernel


@pytest.mark.parametrize("options", ["a;b", "a & b", "a {", "a > b", "a\nb", 'a="b'])
def test_options_that_would_not_stay_one_command(options: str) -> None:
    with pytest.raises(ValueError):
        received(options)
