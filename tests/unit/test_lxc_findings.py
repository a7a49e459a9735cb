"""Every id that a finding about a container can have is a registered cause."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from gpuhost import lxc_file_findings, lxc_findings
from gpuhost.causes import CAUSES, UnknownCause
from gpuhost.lxc_file_findings import finding

MAKERS = ("finding", "_stale_finding")


def ids() -> set[str]:
    """The ids in the arguments of every call that makes a finding."""
    found: set[str] = set()
    for module in (lxc_findings, lxc_file_findings):
        tree = ast.parse(Path(str(module.__file__)).read_text())
        calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)]
        for call in calls:
            if isinstance(call.func, ast.Name) and call.func.id in MAKERS:
                texts = [node.value for node in ast.walk(call) if isinstance(node, ast.Constant)]
                found |= {text for text in texts if isinstance(text, str) and re.fullmatch(r"lxc\.[a-z_]+", text)}
    return found


def test_the_search_finds_ids_of_all_kinds() -> None:
    assert {"lxc.locked", "lxc.allow_all", "lxc.leaked_major", "lxc.presumed_stale", "lxc.managed"} <= ids()
    assert len(ids()) == 24


def test_every_id_is_registered() -> None:
    assert ids() <= set(CAUSES)


def test_an_unregistered_id_is_a_defect() -> None:
    with pytest.raises(UnknownCause):
        finding("lxc.no_such_thing", "info", "config", "", "", "")
