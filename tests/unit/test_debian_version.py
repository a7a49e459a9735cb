"""dpkg's order of versions: a table, laws by hypothesis, and dpkg itself where it is installed."""

from __future__ import annotations

import itertools
import shutil
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuhost.debian_version import compare, compare_part, part_sort_key, sort_key, split

# Oldest first; each differs from the next by one rule of deb-version(7).
ORDERED = [
    "1.0~rc1-1",
    "1.0~rc1-2",
    "1.0-1~bpo12+1",
    "1.0-1",
    "1.0-1+b1",
    "1.0-1+b13",
    "1.0-2",
    "1.0-10",
    "1.0a-1",
    "1.0+dfsg-1",
    "1.0.1-1",
    "1.2-1",
    "1.10-1",
    "6.1.192-2",
    "6.1.192-3",
    "6.12.9-1~deb12u1",
    "6.12.115-2~deb12u1",
    "6.12.117-1~deb12u1",
    "6.12.117-1",
    "1:0.1-1",
    "2:0.0.1",
]

versions = st.from_regex(r"([0-9]:)?[0-9][0-9A-Za-z.+~-]{0,12}", fullmatch=True)


@pytest.mark.parametrize(("older", "newer"), list(itertools.combinations(ORDERED, 2)))
def test_table(older: str, newer: str) -> None:
    assert compare(older, newer) == -1
    assert compare(newer, older) == 1


@pytest.mark.parametrize(
    ("a", "b"), [("1.0", "1.0"), ("0:1.0", "1.0"), ("1.0-0", "1.0"), ("1.01", "1.1"), ("1.", "1.0")]
)
def test_equal(a: str, b: str) -> None:
    assert compare(a, b) == 0


def test_split() -> None:
    assert split("1:2.36-9+deb12u14") == (1, "2.36", "9+deb12u14")
    assert split("6.1.0-57-bpo") == (0, "6.1.0-57", "bpo")
    assert split("6.12") == (0, "6.12", "")
    assert split("x:1") == (0, "x:1", "")  # no dpkg version, but no reason to fail in a sort


def test_kernel_releases_have_no_revision() -> None:
    """``-bpo12`` is no Debian revision: 6.14.11-10 is newer, which the package rule gets wrong."""
    assert compare_part("6.14.11-10", "6.14.11-5-bpo12") == 1
    assert compare("6.14.11-10", "6.14.11-5-bpo12") == -1
    assert sorted(["6.1.0-57", "6.12.9+bpo", "6.12.117+deb12", "6.8.12-9"], key=part_sort_key) == [
        "6.1.0-57",
        "6.8.12-9",
        "6.12.9+bpo",
        "6.12.117+deb12",
    ]


@given(versions, versions)
def test_antisymmetric(a: str, b: str) -> None:
    assert compare(a, b) == -compare(b, a)
    assert (a != b) or compare(a, b) == 0


@given(st.lists(versions, max_size=8))
def test_sort_is_total(items: list[str]) -> None:
    ordered = sorted(items, key=sort_key)
    assert all(compare(a, b) <= 0 for a, b in itertools.combinations(ordered, 2))


@given(st.text(max_size=20), st.text(max_size=20))
def test_any_text_compares(a: str, b: str) -> None:
    assert compare(a, b) in (-1, 0, 1)


@pytest.mark.skipif(shutil.which("dpkg") is None, reason="no dpkg on this machine to compare with")
def test_as_dpkg_does() -> None:
    names = {-1: "lt", 0: "eq", 1: "gt"}
    odd = ["1.0~", "1.0", "1.0+", "1.0-a", "1.0-1a~", "1.0-1a", "0:1.0", "1.0.", "1.00", "1.0~~", "1.0~a"]
    for a, b in itertools.combinations(odd, 2):
        argv = ["dpkg", "--compare-versions", a, names[compare(a, b)], b]
        assert subprocess.run(argv, check=False, capture_output=True).returncode == 0, (a, b)
