"""/etc/default/grub and its drop-ins: case cmdline-04, real sh as the oracle, and laws by hypothesis."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuhost import cmdline
from gpuhost.grub_config import received
from gpuhost.grub_defaults import OWN, Effective, effective, render_dropin, with_default
from gpuhost.shell_assignments import NEEDED, assignments

CASES = Path(__file__).parent.parent / "cases"
WANTED: cmdline.Wanted = {"amd_pstate": "active", "processor.max_cstate": "1", "nmi_watchdog": "0"}
ADDED = "amd_pstate=active processor.max_cstate=1 nmi_watchdog=0"
DEBIAN = """# If you change this file, run 'update-grub' afterwards to update
GRUB_DEFAULT=0
GRUB_TIMEOUT=5
GRUB_DISTRIBUTOR=`lsb_release -i -s 2> /dev/null || echo Debian`
GRUB_CMDLINE_LINUX_DEFAULT="quiet"
GRUB_CMDLINE_LINUX=""
#GRUB_DISABLE_LINUX_UUID=true
"""
Files = list[tuple[str, str]]


def case() -> Files:
    """The three files of case cmdline-04."""
    text = (CASES / "cmdline-04-grub-dropin-overrides.in.txt").read_text()
    return re.findall(r"--- (\S+)\n(.*?)(?=^--- |\Z)", text, re.DOTALL | re.MULTILINE)


def values(found: Effective) -> tuple[str | None, str | None, str | None]:
    return found.cmdline_linux, found.cmdline_linux_default, found.default


def by_shell(files: Files, folder: Path) -> tuple[str, ...]:
    """The same by the shell that update-grub uses."""
    script = "set -e\n"
    for number, (_, text) in enumerate(files):
        (folder / f"f{number}").write_text(text)
        script += f". '{folder}/f{number}'\n"
    script += "printf '%s\\0' " + " ".join(f'"${name}"' for name in NEEDED) + "\n"
    (folder / "script").write_text(script)
    done = subprocess.run(["sh", folder / "script"], capture_output=True, check=True, timeout=20)
    return tuple(done.stdout.decode().split("\0")[-4:-1])


def test_case_cmdline_04(tmp_path: Path) -> None:
    before = effective(case())
    assert before.cmdline_linux_default == "console=tty1 console=ttyS0"
    assert before.cmdline_linux == 'root=ZFS=rpool/ROOT/pve-1 dyndbg="file drivers/pci/* +p"'
    text = render_dropin(before, WANTED)
    assert text.splitlines()[-1] == f'GRUB_CMDLINE_LINUX_DEFAULT="$GRUB_CMDLINE_LINUX_DEFAULT {ADDED}"'
    assert "None" not in text
    files = [*case(), (OWN, text)]
    after = effective(files)
    assert after.cmdline_linux_default == f"console=tty1 console=ttyS0 {ADDED}"
    assert after.cmdline_linux == before.cmdline_linux
    assert after.assigned["GRUB_CMDLINE_LINUX_RECOVERY"] == ("/etc/default/grub",)
    assert by_shell(files, tmp_path)[:2] == (after.cmdline_linux, after.cmdline_linux_default)
    assert render_dropin(effective(files, without_ours=True), WANTED) == text


def test_files_are_read_in_their_order() -> None:
    files = [
        ("/etc/default/grub.d/b.cfg", "GRUB_DEFAULT=b"),
        ("/etc/default/grub.d/a.conf", "GRUB_DEFAULT=conf"),
        ("/etc/default/grub.d/.c.cfg", "GRUB_DEFAULT=hidden"),
        ("/etc/default/grub.d/B.cfg", "GRUB_DEFAULT=B"),
        ("/etc/default/grub", "GRUB_DEFAULT=main"),
        ("/etc/default/grub.d/zz.cfg.dpkg-old", "GRUB_DEFAULT=dpkg"),
    ]
    found = effective(files)
    assert found.default == "b"
    assert found.assigned["GRUB_DEFAULT"] == tuple(files[index][0] for index in (4, 3, 0))


def test_a_distribution_that_asks_a_program_for_its_name() -> None:
    assert values(effective([("grub", DEBIAN)])) == ("", "quiet", "0")
    ubuntu = (
        'GRUB_DISTRIBUTOR=`( . /etc/os-release; echo ${NAME:-Ubuntu} ) 2>/dev/null || echo "Ubuntu"`\nGRUB_DEFAULT=1\n'
    )
    assert effective([("grub", ubuntu)]).default == "1"
    assert effective([("grub", "A=$(echo $(x) )\nGRUB_DEFAULT=2\n")]).default == "2"


UNDERSTOOD = [
    DEBIAN,
    "GRUB_CMDLINE_LINUX='root=ZFS=rpool/ROOT/pve-1 dyndbg=\"file drivers/pci/* +p\"'",
    'GRUB_CMDLINE_LINUX="dyndbg=\\"file x +p\\" a=\\$b c=\\`d\\` e=\\\\ f=\\g"',
    "GRUB_CMDLINE_LINUX=quiet",
    "GRUB_CMDLINE_LINUX=a'b c'\"d e\"f\\ g",
    'GRUB_CMDLINE_LINUX="quiet \\\n  splash"\nGRUB_DEFAULT=\\\n3\n',
    "GRUB_CMDLINE_LINUX='a\\\nb'",
    "A=1 GRUB_DEFAULT=2; GRUB_CMDLINE_LINUX=$A # B=3",
    'A="x y"\nGRUB_CMDLINE_LINUX=$A" z"\nGRUB_CMDLINE_LINUX_DEFAULT="${A}b $A"',
    'export GRUB_CMDLINE_LINUX_DEFAULT="x y" A=1\nexport GRUB_DEFAULT',
    'GRUB_CMDLINE_LINUX="a"\nGRUB_CMDLINE_LINUX="$GRUB_CMDLINE_LINUX crashkernel=512M-:192M"',
    'GRUB_CMDLINE_LINUX_DEFAULT="$GRUB_CMDLINE_LINUX_DEFAULT x"',
    "GRUB_CMDLINE_LINUX=a#b\nGRUB_DEFAULT='x'#y",
    'if [ -d /nowhere ]; then\n  X=1\nfi\necho "GRUB" >&2\nGRUB_DEFAULT="a>b"',
    'GRUB_CMDLINE_LINUX="cost $ 5 $"',
    "GRUB_CMDLINE_LINUX=\n\n\nGRUB_CMDLINE_LINUX_DEFAULT=''",
    "case x in a) X=1;; *) X=2;; esac; GRUB_DEFAULT=7",
    "GRUB_CMDLINE_LINUX=$UNSET_BEFORE.",
    "GRUB_DEFAULT=x~y",
    "GRUB_DEFAULT=${HOME_OF_NOBODY:-x}\nGRUB_DEFAULT=8\n",
]


@pytest.mark.parametrize("text", UNDERSTOOD)
def test_the_real_shell_says_the_same(text: str, tmp_path: Path) -> None:
    if "lsb_release" in text:
        text = text.replace("lsb_release -i -s", "false")
    ours = tuple(value or "" for value in values(effective([("grub", text)])))
    assert by_shell([("grub", text)], tmp_path) == ours


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("\nGRUB_DEFAULT=$(cat /x)", 2),
        ("GRUB_DEFAULT=`cat /x`", 1),
        ('GRUB_DEFAULT="a`cat "/x"`"', 1),
        ('GRUB_DEFAULT="$(echo "x")"', 1),
        ('GRUB_DEFAULT="${A:-"b c"}"', 1),
        ("GRUB_DEFAULT=${A#b}", 1),
        ("GRUB_DEFAULT=$1", 1),
        ("GRUB_DEFAULT=~/x", 1),
        ("A=`x`\nB=1$A\nGRUB_DEFAULT=$B", 1),
        ("if true; then\n  GRUB_DEFAULT=1\nfi", 2),
        ("if true; then if x; then A=1; fi\nGRUB_DEFAULT=1; fi", 2),
        ("case x in a) B=1; GRUB_DEFAULT=1;; esac", 1),
        ("true && GRUB_DEFAULT=1", 1),
        ("GRUB_DEFAULT=1 || A=2", 1),
        ("GRUB_DEFAULT=1 true", 1),
        ("( GRUB_DEFAULT=1 )", 1),
        ("unset GRUB_DEFAULT", 1),
        ("GRUB_DEFAULT=1\n. /etc/default/more", 2),
        ("GRUB_DEFAULT=1\neval x", 2),
        ("f() { GRUB_DEFAULT=1; }\nGRUB_DEFAULT=2\nf", 3),
        ("A='b c'\nexport GRUB_DEFAULT=$A", 2),
        (': "${GRUB_DEFAULT:=1}"', 1),
    ],
)
def test_what_is_not_understood_stops_where_it_matters(text: str, line: int) -> None:
    with pytest.raises(ValueError, match=f"grub, line {line}\\b"):
        effective([("grub", text)])
    if not text.startswith("f()"):
        assert effective(
            [("grub", text), ("z.cfg", "GRUB_DEFAULT=0\nGRUB_CMDLINE_LINUX=\nGRUB_CMDLINE_LINUX_DEFAULT=")]
        )


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("A=1\nX+=' y'", r"x\.cfg, line 2: a POSIX shell has no \+="),
        ("A=1\nX='y", r"x\.cfg, line 2: a quote that is not closed"),
        ('X="y\n', "line 1: a quote that is not closed"),
        ("X=`y", "line 1: a quote that is not closed"),
        ("X=$(echo ')' )", "line 1: a quote that is not closed"),  # the shell could, we could not
        ("cat <<E\nGRUB_DEFAULT=1\nE\n", "here-document"),
    ],
)
def test_what_the_shell_could_not_read_stops_always(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        effective([("x.cfg", text)])


def test_assignments_say_where_they_are() -> None:
    assert [(item.line, item.name, item.parts) for item in assignments('A=x\n\nexport B="y" C=`z`\n')] == [
        (1, "A", ("x",)),
        (3, "B", ("y",)),
        (3, "C", None),
    ]


# --- the drop-in


def after(before: Effective, wanted: cmdline.Wanted) -> Effective:
    """What the files come to with our drop-in."""
    quoted = {
        name: "'" + (value or "").replace("'", "'\\''") + "'"
        for name, value in zip(NEEDED, values(before), strict=True)
    }
    main = "".join(f"{name}={value}\n" for name, value in quoted.items())
    text = render_dropin(effective([("grub", main)]), wanted)
    found = effective([("grub", main), (OWN, text)])
    assert render_dropin(effective([("grub", main), (OWN, text)], without_ours=True), wanted) == text
    assert render_dropin(found, wanted) == ""
    return found


@pytest.mark.parametrize(
    ("linux", "default", "wanted", "expected"),
    [
        ("", "quiet", {"a": "1"}, ("", "quiet a=1")),
        ("", "", {"a": "1"}, ("", " a=1")),
        ("", "quiet ", {"a": "1"}, ("", "quiet  a=1")),
        ("", "a=0 quiet", {"a": "1"}, ("", "a=1 quiet")),
        ("a=0", "quiet", {"a": "1"}, ("a=1", "quiet")),
        ("a=0", "quiet a=1", {"a": "1"}, ("a=1", "quiet")),  # never twice
        ("a=1", "quiet a=0", {"a": "1"}, ("a=1", "quiet")),
        ("a-b=0", "quiet", {"a_b": "1"}, ("a_b=1", "quiet")),
        ("x a", "a quiet", {"a": None}, ("x", "quiet")),
        ("x -- single", "quiet", {"a": "1"}, ("x a=1 -- single", "quiet")),
        ("", "quiet -- 3", {"a": "1"}, ("", "quiet a=1 -- 3")),
        ('dyndbg="file x +p"', "y=0", {"y": "a b"}, ('dyndbg="file x +p"', 'y="a b"')),
        ("console=tty0", "console=ttyS0", {"console": "ttyS0"}, ("console=tty0", "console=ttyS0")),
    ],
)
def test_arguments_go_where_their_key_is(
    linux: str, default: str, wanted: cmdline.Wanted, expected: tuple[str, str]
) -> None:
    found = after(Effective(linux, default, None), wanted)
    assert (found.cmdline_linux, found.cmdline_linux_default) == expected


def test_nothing_to_do_is_no_drop_in() -> None:
    assert render_dropin(Effective("a=1", "b", None), {"a": "1", "b": True, "c": None}) == ""
    assert render_dropin(Effective(None, None, None), {}) == ""


def test_absent_variables_are_no_word() -> None:
    text = render_dropin(Effective(None, None, None), {"a": "1"})
    assert "None" not in text
    assert effective([(OWN, text)]).cmdline_linux_default == " a=1"


def test_a_replaced_argument_says_what_it_was_made_from() -> None:
    text = render_dropin(effective([("/etc/default/grub", "GRUB_CMDLINE_LINUX='a=0 b=\"c d\"'")]), {"a": "1"})
    assert '/etc/default/grub came to: a=0 b="c d"' in text
    assert text.endswith('GRUB_CMDLINE_LINUX="a=1 b=\\"c d\\""\n')


def test_guesses_are_refused() -> None:
    with pytest.raises(ValueError, match="console occurs several times"):
        render_dropin(Effective("console=tty0", "console=ttyS0", None), {"console": "ttyS1"})
    for value in ("a;b", "$x", "a{b", "it's", "a|b"):
        with pytest.raises(ValueError, match="GRUB"):
            render_dropin(Effective("", "quiet", None), {"a": value})
    with pytest.raises(ValueError, match="GRUB"):  # in single quotes, which the kernel's rules do not know
        render_dropin(Effective("", "x='b a=0'", None), {"a": "1"})
    with pytest.raises(ValueError, match="line end"):
        render_dropin(Effective("", "quiet\n", None), {"a": "1"})


def test_a_file_behind_ours_is_refused() -> None:
    files = [("grub", DEBIAN), ("zz-local.cfg", 'GRUB_CMDLINE_LINUX_DEFAULT="loud"')]
    with pytest.raises(ValueError, match=r"zz-local\.cfg sorts behind zz-gpuhost\.cfg"):
        render_dropin(effective(files), WANTED)
    assert render_dropin(effective([("grub", DEBIAN), ("zz-local.cfg", "GRUB_TIMEOUT=1")]), WANTED)


PIECES = ["quiet", "a=0", "a=1", "b", 'c="d e"', '"f=g h"', "i=j\\\\k", "l=\\$m", 'n="o\\`p"', "q='r'", "s=t,u*v"]


@given(
    st.lists(st.sampled_from(PIECES), max_size=4),
    st.lists(st.sampled_from(PIECES), max_size=4),
    st.dictionaries(st.sampled_from("abcx"), st.sampled_from(["0", "1", "a b", True, None]), max_size=3),
)
def test_what_is_not_ours_stays_and_ours_is_there_once(
    linux: list[str], default: list[str], wanted: dict[str, str | bool | None]
) -> None:
    before = Effective(" ".join(linux), " ".join(default), None)
    text_before = f"{before.cmdline_linux} {before.cmdline_linux_default}"
    found = after(before, wanted)
    line = received(found.line)
    assert cmdline.missing(line, wanted) == []
    others = [item.text for item in cmdline.parse(text_before).arguments if item.key not in wanted]
    assert [item.text for item in cmdline.parse(found.line).arguments if item.key not in wanted] == others


@pytest.mark.parametrize("value", ['a=0 b="c d"', r"a=0 x=\\y", 'a=0 x="\\`z\\`"', "a=0 x=\\$y", "a=0 '`'"])
@pytest.mark.parametrize("wanted", [{"a": "1"}, {"new": "1"}, {"a": None}])
def test_the_real_shell_reads_our_drop_in(value: str, wanted: dict[str, str | None], tmp_path: Path) -> None:
    files = [("grub", "GRUB_CMDLINE_LINUX_DEFAULT='" + value.replace("'", "'\\''") + "'\n")]
    files.append((OWN, render_dropin(effective(files), wanted)))
    assert by_shell(files, tmp_path)[1] == effective(files).cmdline_linux_default == cmdline.apply(value, wanted)


def test_a_default_of_ours(tmp_path: Path) -> None:
    entry = "gnulinux-advanced-x>gnulinux-6.1.0-57-amd64-advanced-x"
    assert with_default(entry) == f'GRUB_DEFAULT="{entry}"\n'
    assert by_shell([("grub", with_default(entry))], tmp_path)[2] == entry
    for bad in ("", 'a"b', "$x", "a\nb", "a`b", "a\\b"):
        with pytest.raises(ValueError, match="cannot be"):
            with_default(bad)
