"""Where the lab's guest gets its packages from: LAB_MIRROR, the machine's own Debian sources, Debian's own."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuhost_lab.apt_sources import Archive, archives

BACKPORTS = ("bookworm-backports",)


def machine(tmp_path: Path, name: str, text: str) -> Path:
    folder = tmp_path / "sources.list.d"
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(text)
    return tmp_path


def sources(uri: str, *suites: str, components: str = "main", signed_by: str = "") -> str:
    signed = f"Signed-By: {signed_by}\n" if signed_by else ""
    return f"Types: deb\nURIs: {uri}\nSuites: {' '.join(suites)}\nComponents: {components}\n{signed}"


def test_lab_mirror_wins_over_the_machine(tmp_path: Path) -> None:
    apt = machine(tmp_path, "debian.sources", sources("http://mirror.example.com/debian", "bookworm"))
    assert archives({"LAB_MIRROR": "http://lab.example.com/debian/"}, apt) == [
        Archive("http://lab.example.com/debian", ("bookworm", "bookworm-updates")),
        Archive("http://lab.example.com/debian-security", ("bookworm-security",)),
        Archive("http://lab.example.com/debian", BACKPORTS),
    ]


def test_the_machines_own_sources(tmp_path: Path) -> None:
    own = sources("http://mirror.example.com/debian", "bookworm", "bookworm-updates")
    own += "\n" + sources("http://mirror.example.com/debian-security", "bookworm-security")
    assert archives({}, machine(tmp_path, "debian.sources", own)) == [
        Archive("http://mirror.example.com/debian", ("bookworm", "bookworm-updates")),
        Archive("http://mirror.example.com/debian-security", ("bookworm-security",)),
        Archive("http://mirror.example.com/debian", BACKPORTS),
    ]


def test_a_machine_of_another_suite_lends_its_mirror(tmp_path: Path) -> None:
    """The guest is bookworm whatever the building machine runs."""
    apt = machine(tmp_path, "debian.sources", sources("http://mirror.example.com/debian", "trixie", "trixie-updates"))
    assert archives({}, apt) == [
        Archive("http://mirror.example.com/debian", ("bookworm", "bookworm-updates")),
        Archive("http://mirror.example.com/debian-security", ("bookworm-security",)),
        Archive("http://mirror.example.com/debian", BACKPORTS),
    ]


@pytest.mark.parametrize(
    "text",
    [
        sources("https://download.example.com/linux/debian", "bookworm", components="stable"),
        sources("https://packages.example.com/debian", "bookworm", signed_by="/etc/apt/keyrings/other.gpg"),
        sources("https://apt.example.com/repos/apt", "bookworm"),
        "Enabled: no\n" + sources("http://mirror.example.com/debian", "bookworm"),
    ],
    ids=["component", "key", "path", "disabled"],
)
def test_what_is_not_debians_is_left_out(tmp_path: Path, text: str) -> None:
    found = archives({}, machine(tmp_path, "other.sources", text))
    assert {archive.uri for archive in found} == {
        "http://deb.debian.org/debian",
        "http://deb.debian.org/debian-security",
    }


def test_one_line_sources(tmp_path: Path) -> None:
    key = "/usr/share/keyrings/debian-archive-keyring.gpg"
    text = f"deb [signed-by={key}] http://mirror.example.com/debian bookworm main\n"
    assert archives({}, machine(tmp_path, "debian.list", text))[0] == Archive(
        "http://mirror.example.com/debian", ("bookworm",)
    )
