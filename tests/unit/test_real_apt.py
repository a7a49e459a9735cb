"""The machine's own apt, on an archive and a dpkg database made here: a transaction that would break the host."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from fake_host import FakeHost
from fake_roll import debian_host, plan_of
from fake_tree import NEW

from gpuhost import packages
from gpuhost.documents import Target
from gpuhost.errors import Stop

pytestmark = pytest.mark.skipif(shutil.which("apt-get") is None, reason="no apt-get here: not a Debian or Ubuntu")
VERSION = "6.12.117-1"


def stanza(name: str, version: str, *fields: str) -> str:
    """A package as Packages has it."""
    lines = (f"Package: {name}", f"Version: {version}", "Architecture: all", "Maintainer: nobody <nobody@example.com>")
    file = (f"Filename: ./{name}.deb", "Size: 1000", f"SHA256: {'0' * 64}", "Description: made for a test")
    return "\n".join([*lines, *fields, *file]) + "\n\n"


def installed(name: str, version: str, *fields: str) -> str:
    """A package as dpkg's database has it."""
    return stanza(name, version, "Status: install ok installed", *fields)


def with_apt(folder: Path, archive: str, status: str) -> tuple[FakeHost, Target]:
    """A host whose apt-get is the real one, on these packages."""
    host = debian_host(folder / "host", installed=False)
    target = Target(**plan_of(host)["target"])
    root = folder / "apt"
    for path in ("archive", "state/lists/partial", "cache/archives/partial", "etc"):
        (root / path).mkdir(parents=True)
    (root / "archive" / "Packages").write_text(archive)
    (root / "status").write_text(status)
    (root / "etc" / "sources.list").write_text(f"deb [trusted=yes] file:{root}/archive ./\n")
    settings = {
        "Dir::State": root / "state",
        "Dir::State::status": root / "status",
        "Dir::Cache": root / "cache",
        "Dir::Etc": root / "etc",
        "APT::Sandbox::User": "root",
        "Debug::NoLocking": "true",
    }
    options = [word for key, value in settings.items() for word in ("-o", f"{key}={value}")]

    def apt_get(_: FakeHost, argv: list[str]) -> tuple[int, str, str]:
        result = subprocess.run(["apt-get", *options, *argv[1:]], capture_output=True, text=True, check=False)
        return result.returncode, result.stdout, result.stderr

    host.programs["apt-get",] = apt_get
    assert apt_get(host, ["apt-get", "update", "-q"])[0] == 0
    return host, target


def kernel_archive(*image_fields: str) -> str:
    """The target's two packages."""
    return stanza(f"linux-image-{NEW}", VERSION, *image_fields) + stanza(f"linux-headers-{NEW}", VERSION)


DRIVER = installed("nvidia-driver", "550.1-1") + installed("libcuda1", "550.1-1")


def test_a_clean_transaction_is_let_through(tmp_path: Path) -> None:
    host, target = with_apt(tmp_path, kernel_archive(), DRIVER)
    lines = packages.simulate(host, target, 10).lines
    names = [f"linux-headers-{NEW}", f"linux-image-{NEW}"]
    assert sorted(line.split()[:2] for line in lines) == [["install", name] for name in names]


@pytest.mark.parametrize(
    ("archive", "observed"),
    [
        (kernel_archive("Conflicts: nvidia-driver"), "would remove nvidia-driver 550.1-1"),
        (
            kernel_archive("Depends: libcuda1 (>= 570)") + stanza("libcuda1", "570.2-1"),
            "would change libcuda1 550.1-1 -> 570.2-1",
        ),
        (
            kernel_archive("Breaks: nvidia-driver (<< 570)") + stanza("nvidia-driver", "570.2-1"),
            "would change nvidia-driver 550.1-1 -> 570.2-1",
        ),
    ],
    ids=["removes the driver", "changes its library", "upgrades the driver"],
)
def test_a_transaction_that_touches_the_driver_is_blocked_and_shown(
    tmp_path: Path, archive: str, observed: str
) -> None:
    host, target = with_apt(tmp_path, archive, DRIVER)
    with pytest.raises(Stop) as caught:
        packages.simulate(host, target, 10)
    assert caught.value.blocker.cause == "apt.would_break"
    assert observed in caught.value.blocker.observed
