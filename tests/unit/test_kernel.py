"""Releases, package names, candidates and the choice among them, on Debian 12's real archive and on other systems'."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuhost.apt import MadisonLine, parse_madison
from gpuhost.kernel import (
    Candidate,
    candidates,
    choose,
    headers_package_names,
    image_name_patterns,
    image_package_names,
    matches,
    parse_release,
    release_of_image_package,
)

TESTS = Path(__file__).parent.parent
MADISON = parse_madison((TESTS / "fixtures/apt/madison-bookworm.txt").read_text())
PKGNAMES = (TESTS / "fixtures/apt/pkgnames-linux-image.txt").read_text().split()
CASE_DKMS_03 = (TESTS / "cases/dkms-03-header-package-names.in.txt").read_text()


@pytest.mark.parametrize(
    ("text", "version", "flavour"),
    [
        ("6.12.117+deb12-cloud-amd64", "6.12.117+deb12", "cloud-amd64"),
        ("6.12.74+deb13+1-amd64", "6.12.74+deb13+1", "amd64"),
        ("6.1.0-57-amd64", "6.1.0-57", "amd64"),
        ("6.1.0-28-rt-amd64", "6.1.0-28", "rt-amd64"),
        ("6.1.0-0.deb11.57-cloud-amd64", "6.1.0-0.deb11.57", "cloud-amd64"),
        ("6.12.9+bpo-amd64", "6.12.9+bpo", "amd64"),
        ("6.12-rc6-amd64", "6.12-rc6", "amd64"),
        ("6.14.11-5-bpo12-pve", "6.14.11-5-bpo12", "pve"),
        ("6.8.12-9-pve", "6.8.12-9", "pve"),
        ("6.8.0-45-generic", "6.8.0-45", "generic"),
        ("6.8.0-45-lowlatency", "6.8.0-45", "lowlatency"),
        ("6.8.0-1030-nvidia", "6.8.0-1030", "nvidia"),
        ("6.8.0-1030-nvidia-64k", "6.8.0-1030", "nvidia-64k"),
        ("6.17.11-061711-generic", "6.17.11-061711", "generic"),
        ("6.12.5", "6.12.5", ""),
    ],
)
def test_parse_release(text: str, version: str, flavour: str) -> None:
    release = parse_release(text)
    assert (release.text, release.version, release.flavour) == (text, version, flavour)


@pytest.mark.parametrize("text", ["", "6", "linux", "6.1.0-57-amd64 ", "v6.1.0", "6.1.0-57-", "6.1.0/57", "-amd64"])
def test_nonsense_is_no_release(text: str) -> None:
    with pytest.raises(ValueError, match="not a kernel release"):
        parse_release(text)


def _case_rows() -> list[tuple[str, str]]:
    rows = [line.split() for line in CASE_DKMS_03.splitlines() if line and not line.startswith("#")]
    return [(row[0], row[row.index("->") + 1]) for row in rows]


@pytest.mark.parametrize(("release", "package"), _case_rows())
def test_case_dkms_03_headers_names(release: str, package: str) -> None:
    names = headers_package_names(release)
    assert package in names
    if release.endswith("-pve"):
        assert names[0].startswith("proxmox-headers-")
        assert not any(name.startswith("linux-headers-") for name in names)


def test_image_names_and_back() -> None:
    assert image_package_names("6.12.117+deb12-cloud-amd64") == (
        "linux-image-6.12.117+deb12-cloud-amd64",
        "linux-image-6.12.117+deb12-cloud-amd64-unsigned",
    )
    assert image_package_names("6.14.11-5-bpo12-pve") == (
        "proxmox-kernel-6.14.11-5-bpo12-pve-signed",
        "proxmox-kernel-6.14.11-5-bpo12-pve",
        "pve-kernel-6.14.11-5-bpo12-pve",
    )
    assert image_package_names("6.8.0-45-generic")[-1] == "linux-image-unsigned-6.8.0-45-generic"
    for release in ("6.12.117+deb12-cloud-amd64", "6.14.11-5-bpo12-pve", "6.8.0-45-generic", "6.1.0-28-rt-amd64"):
        assert {release_of_image_package(name) for name in image_package_names(release)} == {release}


@pytest.mark.parametrize(
    "name",
    [
        "linux-image-amd64",
        "linux-image-6.12-amd64",
        "linux-image-6.12-amd64-signed-template",
        "linux-image-6.1.0-57-amd64-dbg",
        "linux-image-generic-hwe-24.04",
        "linux-image-unsigned-6.8.0-45-generic-dbgsym",
        "linux-image-6.14.11-5-pve",
        "linux-headers-6.1.0-57-amd64",
        "proxmox-kernel-6.14",
        "proxmox-kernel-helper",
        "proxmox-kernel-6.14.11-5-bpo12-pve-signed-template",
        "proxmox-kernel-6.14.11-5-bpo12-pve-dbgsym",
        "proxmox-default-kernel",
        "pve-kernel-5.15",
    ],
)
def test_no_versioned_image(name: str) -> None:
    assert release_of_image_package(name) is None


def test_every_image_of_the_archive_is_understood() -> None:
    for name in PKGNAMES:
        release = release_of_image_package(name)
        versioned = name.removeprefix("linux-image-").split("-")[0].count(".") == 2
        assert (release is not None) == (versioned and not name.endswith("-dbg")), name


def test_patterns() -> None:
    assert image_name_patterns("6.1.0-57-amd64") == ("linux-image-",)
    assert image_name_patterns("6.8.12-9-pve") == ("proxmox-kernel-", "pve-kernel-")


def test_candidates_of_the_real_archive() -> None:
    found = candidates(MADISON, {}, "cloud-amd64")
    releases = [candidate.release for candidate in found]
    assert releases[0] == "6.12.117+deb12-cloud-amd64"
    assert releases[-1] == "6.1.0-47-cloud-amd64"
    assert len(set(releases)) == len(releases)
    assert releases.index("6.12.100+deb12-cloud-amd64") > releases.index("6.12.107+deb12-cloud-amd64")
    assert all(release.endswith("-cloud-amd64") for release in releases)
    assert not any(candidate.image_package.endswith("-unsigned") for candidate in found)
    assert found[0] == Candidate(
        release="6.12.117+deb12-cloud-amd64",
        image_package="linux-image-6.12.117+deb12-cloud-amd64",
        image_version="6.12.117-1~deb12u1",
        image_suite="bookworm-security",
        headers_package="linux-headers-6.12.117+deb12-cloud-amd64",
        headers_version="6.12.117-1~deb12u1",
        headers_suite="bookworm-security",
        installed=False,
    )
    plain = [candidate.release for candidate in candidates(MADISON, {}, "amd64")]
    assert "6.1.0-57-amd64" in plain
    assert not any("cloud" in release or "rt" in release for release in plain)


def test_installed_kernel_that_no_archive_has() -> None:
    installed = {
        "linux-image-6.1.0-9-cloud-amd64": "6.1.27-1",
        "linux-headers-6.1.0-9-cloud-amd64": "6.1.27-1",
        "linux-image-6.1.0-57-cloud-amd64": "6.1.192-3",
        "bash": "5.2.15-2+b8",
    }
    found = {candidate.release: candidate for candidate in candidates(MADISON, installed, "cloud-amd64")}
    gone = found["6.1.0-9-cloud-amd64"]
    assert gone.installed
    assert (gone.image_suite, gone.headers_version, gone.headers_suite) == (None, "6.1.27-1", None)
    running = found["6.1.0-57-cloud-amd64"]
    assert running.installed
    assert running.image_suite == "bookworm-security"
    assert not found["6.12.117+deb12-cloud-amd64"].installed


def _lines(*rows: str) -> list[MadisonLine]:
    return [MadisonLine(*row.split()) for row in rows]


def test_proxmox_names_old_and_new() -> None:
    """Synthetic: PVE 8's archive in short."""
    lines = _lines(
        "proxmox-kernel-6.14.11-5-bpo12-pve-signed 6.14.11-5~bpo12+1 bookworm",
        "proxmox-kernel-6.14.11-5-bpo12-pve 6.14.11-5~bpo12+1 bookworm",
        "proxmox-headers-6.14.11-5-bpo12-pve 6.14.11-5~bpo12+1 bookworm",
        "proxmox-kernel-6.14 6.14.11-5~bpo12+1 bookworm",
        "pve-kernel-6.2.16-3-pve 6.2.16-3 bookworm",
        "pve-headers-6.2.16-3-pve 6.2.16-3 bookworm",
    )
    new, old = candidates(lines, {}, "pve")
    assert new.image_package == "proxmox-kernel-6.14.11-5-bpo12-pve-signed"
    assert (old.image_package, old.headers_package) == ("pve-kernel-6.2.16-3-pve", "pve-headers-6.2.16-3-pve")


def test_one_candidate_per_release_with_the_highest_version() -> None:
    lines = _lines(
        "linux-image-6.1.0-57-amd64 6.1.192-3 bookworm-security",
        "linux-image-6.1.0-57-amd64 6.1.192-4 bookworm-updates",
        "linux-headers-6.1.0-57-amd64 6.1.192-5 elsewhere",
        "linux-headers-6.1.0-57-amd64 6.1.192-4 bookworm-updates",
    )
    installed = {"linux-image-6.1.0-57-amd64": "6.1.192-3"}
    (only,) = candidates(lines, installed, "amd64")
    assert (only.image_version, only.image_suite, only.installed) == ("6.1.192-4", "bookworm-updates", False)
    assert only.headers_version == "6.1.192-4"  # the image's own, not the highest


def test_unsigned_only_where_it_is_all_there_is() -> None:
    lines = _lines(
        "linux-image-6.1.0-57-amd64-unsigned 6.1.192-9 bookworm",
        "linux-image-6.1.0-57-amd64 6.1.192-3 bookworm",
        "linux-image-6.1.0-58-amd64-unsigned 6.1.193-1 bookworm",
    )
    newer, older = candidates(lines, {}, "amd64")
    assert older.image_package == "linux-image-6.1.0-57-amd64"
    assert newer.image_package == "linux-image-6.1.0-58-amd64-unsigned"
    installed = {"linux-image-6.1.0-57-amd64-unsigned": "6.1.192-9"}
    kept = candidates(lines, installed, "amd64")[1]  # signed and unsigned conflict: what is there stays
    assert (kept.image_package, kept.installed) == ("linux-image-6.1.0-57-amd64-unsigned", True)


@pytest.mark.parametrize(
    ("target", "release", "yes"),
    [
        ("6.12", "6.12.117+deb12-amd64", True),
        ("6.1", "6.12.117+deb12-amd64", False),
        ("6.1", "6.1.0-57-amd64", True),
        ("6", "6.1.0-57-amd64", True),
        ("6.12.11", "6.12.117+deb12-amd64", False),
        ("6.12.117", "6.12.117+deb12-amd64", True),
        ("6.12.117+deb12", "6.12.117+deb12-amd64", True),
        ("6.12.117+deb1", "6.12.117+deb12-amd64", False),
        ("6.12.117+deb12-amd64", "6.12.117+deb12-amd64", True),
        ("6.12.117+deb12-amd64", "6.12.117+deb12-cloud-amd64", False),
        ("6.1.0-5", "6.1.0-57-amd64", False),
        ("6.14.11-5", "6.14.11-5-bpo12-pve", True),
        ("", "6.1.0-57-amd64", False),
    ],
)
def test_matches(target: str, release: str, yes: bool) -> None:
    assert matches(release, target) is yes


def test_choose_newest_of_a_prefix() -> None:
    found = candidates(MADISON, {}, "cloud-amd64")
    for target in ("6.12", "6", "6.12.117+deb12", "6.12.117+deb12-cloud-amd64"):
        choice = choose(found, target)
        assert choice.candidate is not None
        assert choice.candidate.release == "6.12.117+deb12-cloud-amd64"
        assert choice.newest_without_headers is None
    older = choose(tuple(reversed(found)), "6.1")
    assert older.candidate is not None
    assert older.candidate.release == "6.1.0-57-cloud-amd64"
    assert older.known == ("6.12", "6.1")


def test_choose_skips_a_newer_one_without_headers() -> None:
    """The archive keeps images longer than headers. 6.12.118 is made up, an image without headers."""
    lines = [*MADISON, *_lines("linux-image-6.12.118+deb12-cloud-amd64 6.12.118-1~deb12u1 bookworm-security")]
    choice = choose(candidates(lines, {}, "cloud-amd64"), "6.12")
    assert choice.candidate is not None
    assert choice.candidate.release == "6.12.117+deb12-cloud-amd64"
    assert choice.newest_without_headers is not None
    assert choice.newest_without_headers.release == "6.12.118+deb12-cloud-amd64"
    assert "6.12.118" in choice.reason


def test_choose_when_every_match_lacks_headers() -> None:
    choice = choose(candidates(MADISON, {}, "cloud-amd64"), "6.12.101")
    assert choice.candidate is None
    assert choice.newest_without_headers is not None
    assert choice.newest_without_headers.release == "6.12.101+deb12-cloud-amd64"
    assert "linux-headers-6.12.101+deb12-cloud-amd64" in choice.reason


def test_choose_without_any_match() -> None:
    choice = choose(candidates(MADISON, {}, "cloud-amd64"), "6.13")
    assert (choice.candidate, choice.newest_without_headers) == (None, None)
    assert choice.known == ("6.12", "6.1")
    assert "6.12 (newest 6.12.117+deb12)" in choice.reason
    assert choose((), "6").known == ()
