"""One registry of causes: nothing is used that is not in it, and nothing lies in it that nobody can give."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest
from fake_roll import REPOSITORY

from gpu_checks.causes import CAUSES as CHECK_CAUSES
from gpuhost.causes import BACK_ON_OLD, CAUSES, FINDINGS, GOOD, NEEDS_PERSON, SAFE_STOP, USAGE, UnknownCause, cause

FOLDERS = ("module_utils/gpuhost", "library", "action_plugins", "callback_plugins", "cli", "gpu_checks")
GROUPS = {code.partition(".")[0] for code in CAUSES}
SHAPE = re.compile(rf"(?:{'|'.join(sorted(GROUPS))})\.[a-z][a-z0-9_]*")
# Texts of a cause's shape that are something else: files, units, measurements; ids of findings and keys of liblxc.
NO_CAUSES = {
    *("device_access.gpu_count", "roll.json", "plan.json", "host.md", "host.html", "loader.conf"),
    *("lxc.service", "lxc.hook", "lxc.environment", "lxc.mount"),
}
NO_CAUSE_FILES = {
    f"module_utils/gpuhost/lxc_{name}.py" for name in ("findings", "config", "lines", "plan", "attribution")
}

#: Registered, and given by nobody yet. Each with the reason why it may stay.
NOT_YET_USED: dict[str, str] = {}


@cache
def literals() -> dict[str, set[str]]:
    """Every string of a cause's shape in the code, with the files that hold it."""
    found: dict[str, set[str]] = {}
    for folder in FOLDERS:
        for path in sorted((REPOSITORY / folder).rglob("*.py")):
            if path.name == "causes.py":
                continue
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Constant) and isinstance(node.value, str) and SHAPE.fullmatch(node.value):
                    found.setdefault(node.value, set()).add(str(path.relative_to(REPOSITORY)))
    return found


def test_every_code_that_is_used_is_registered() -> None:
    unknown = {
        code: places
        for code, places in literals().items()
        if code not in CAUSES and code not in NO_CAUSES and places - NO_CAUSE_FILES
    }
    assert unknown == {}


def test_every_registered_code_is_used_or_listed() -> None:
    used = {*literals(), *CHECK_CAUSES}
    assert set(CAUSES) - used == set(NOT_YET_USED)


def test_what_the_checks_can_give_is_registered() -> None:
    assert set(CHECK_CAUSES) <= set(CAUSES)


def test_the_search_finds_what_is_there() -> None:
    assert "module_utils/gpuhost/trial.py" in literals()["trial.expired"]
    assert "action_plugins/gpuhost_wait_for_boot.py" in literals()["trial.not_back"]


def test_playbooks_and_roles_use_registered_codes_only() -> None:
    for path in [*REPOSITORY.glob("playbooks/**/*.yml"), *REPOSITORY.glob("roles/**/*.yml")]:
        for word in re.findall(r"""['"]([a-z]+\.[a-z0-9_]+)['"]""", path.read_text()):
            if SHAPE.fullmatch(word) and not word.endswith((".yml", ".json")):
                assert word in CAUSES, f"{path}: {word}"


@pytest.mark.parametrize("code", CAUSES)
def test_a_cause_helps(code: str) -> None:
    item = CAUSES[code]
    assert re.fullmatch(r"[a-z][a-z0-9]*\.[a-z][a-z0-9_]*", item.code)
    assert item.sentence.endswith(".")
    assert len(item.next_step) > 10
    assert item.exit_status in (FINDINGS, USAGE, BACK_ON_OLD, NEEDS_PERSON, SAFE_STOP)
    assert item.exit_status != GOOD


def test_an_unknown_code_is_a_defect() -> None:
    with pytest.raises(UnknownCause):
        cause("no.such")


def test_a_next_step_names_playbooks_that_exist() -> None:
    for item in CAUSES.values():
        for name in re.findall(r"playbooks/(\w+\.yml)", item.next_step):
            assert (Path(REPOSITORY) / "playbooks" / name).is_file(), f"{item.code}: {name}"
