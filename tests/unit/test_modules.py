"""The thin modules: documentation and argument spec say the same, roles pass what they take, files stay short."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from fake_roll import REPOSITORY, library

from gpuhost.errors import Stop, blocker, defect
from gpuhost.module import failure

MODULES = sorted(path.stem for path in (REPOSITORY / "library").glob("*.py"))
SAME = ("type", "required", "default", "choices", "elements")
# Filled in by the action plugin, not by a task.
CHECK_MODULES = [name for name in MODULES if name.endswith("_check")]
FROM_PLUGIN = {name: {"archive"} for name in ("gpuhost_gpu_checks", *CHECK_MODULES)}


def constants(name: str) -> dict[str, Any]:
    """DOCUMENTATION and RETURN, parsed."""
    found = _assigned(REPOSITORY / "library" / f"{name}.py")
    if fragment := found["DOCUMENTATION"].get("extends_documentation_fragment"):
        shared = _assigned(REPOSITORY / "doc_fragments" / f"{fragment}.py")["DOCUMENTATION"]["options"]
        # A module's own words come before the shared ones, as in ansible-doc.
        found["DOCUMENTATION"]["options"] = {**shared, **found["DOCUMENTATION"].get("options", {})}
    return found


def _assigned(path: Path) -> dict[str, Any]:
    return {
        node.targets[0].id: yaml.safe_load(node.value.value)
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Name)
        and node.targets[0].id in ("DOCUMENTATION", "RETURN", "EXAMPLES")
        and isinstance(node.value, ast.Constant)
    }


@pytest.mark.parametrize("name", MODULES)
def test_the_documentation_is_the_argument_spec(name: str) -> None:
    documented = constants(name)["DOCUMENTATION"]["options"]
    _, spec = library(name)
    assert set(documented) == set(spec)
    for option, facts in spec.items():
        for key in SAME:
            assert documented[option].get(key, False if key == "required" else None) == facts.get(
                key, False if key == "required" else None
            ), f"{option}.{key}"


@pytest.mark.parametrize("name", MODULES)
def test_the_documentation_is_whole(name: str) -> None:
    found = constants(name)["DOCUMENTATION"]
    assert found["module"] == name
    assert found["short_description"]
    assert set(found["attributes"]) == {"check_mode", "diff_mode"}
    for attribute in found["attributes"].values():
        assert attribute["support"] in ("full", "none", "partial")
        assert attribute["description"]
    for option in found["options"].values():
        assert option["description"]
    assert found["attributes"]["check_mode"]["support"] == "full"
    assert constants(name)["RETURN"]
    description = found["description"]
    for sentence in [description] if isinstance(description, str) else description:
        assert sentence.rstrip().endswith((".", ":")), f"cut off: {sentence}"


@pytest.mark.parametrize("name", MODULES)
def test_a_module_is_thin(name: str) -> None:
    path = REPOSITORY / "library" / f"{name}.py"
    text = path.read_text()
    assert len(text.splitlines()) < 300
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            assert (node.end_lineno or 0) - node.lineno < 40, node.name
    called = {ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    assert not {"open", "subprocess.run", "os.system"} & called  # host_io is the only file with input and output


@pytest.mark.parametrize("name", MODULES)
def test_the_core_is_imported_as_ansible_ships_it(name: str) -> None:
    text = (REPOSITORY / "library" / f"{name}.py").read_text()
    assert "ansible.module_utils.gpuhost" in text
    assert not re.search(r"^\s*(?:from|import) gpuhost\b", text, re.MULTILINE)


def _tasks(node: Any) -> list[dict[str, Any]]:
    if isinstance(node, list):
        return [task for item in node for task in _tasks(item)]
    if isinstance(node, dict):
        inner = [node[key] for key in ("block", "rescue", "always", "tasks", "pre_tasks", "post_tasks") if key in node]
        return [node, *(task for item in inner for task in _tasks(item))]
    return []


def _calls() -> list[tuple[str, str, dict[str, Any]]]:
    files = [*(REPOSITORY / "roles").glob("*/tasks/*.yml"), *(REPOSITORY / "playbooks").glob("**/*.yml")]
    return [
        (str(path.relative_to(REPOSITORY)), name, task[name])
        for path in sorted(files)
        for task in _tasks(yaml.safe_load(path.read_text()))
        for name in task
        if name in MODULES
    ]


@pytest.mark.parametrize(("path", "name", "given"), _calls(), ids=lambda item: item if isinstance(item, str) else "")
def test_a_task_passes_what_the_module_takes(path: str, name: str, given: dict[str, Any]) -> None:
    _, spec = library(name)
    unknown = set(given) - set(spec)
    assert not unknown, f"{path}: unsupported parameters for {name}: {unknown}"
    required = {key for key, facts in spec.items() if facts.get("required")} - FROM_PLUGIN.get(name, set())
    assert required <= set(given), f"{path}: {name} misses {required - set(given)}"


def test_every_module_is_called() -> None:
    assert {name for _, name, _ in _calls()} == set(MODULES)


def test_a_failure_says_cause_object_and_way_out() -> None:
    found = failure(blocker("apt.failed", "apt install x", "E: no", "rc 0"))
    assert found["msg"].startswith("apt.failed: apt install x: E: no, expected rc 0: ")
    assert (found["cause"], found["object"], found["observed"], found["expected"]) == (
        "apt.failed", "apt install x", "E: no", "rc 0",
    )  # fmt: skip
    assert found["next_step"]


@pytest.mark.parametrize("error", [ValueError("odd"), OSError(28, "No space left on device"), RuntimeError()])
def test_a_defect_is_named(error: Exception) -> None:
    found = defect(error)
    assert (found.cause, found.object) == ("host.module_failed", type(error).__name__)
    assert found.observed


@pytest.mark.parametrize(
    ("value", "text"), [("off", "off"), (30, "30"), ("", ""), (True, ""), (None, None), (False, None), (0, "0")]
)
def test_a_kernel_argument_is_taken_as_the_inventory_has_it(value: Any, text: str | None) -> None:
    module, _ = library("gpuhost_plan")
    assert module.argument_value("key", value) == text


@pytest.mark.parametrize("value", [[], {}, ["a"]])
def test_no_other_value_is_an_argument(value: Any) -> None:
    module, _ = library("gpuhost_plan")
    with pytest.raises(Stop) as caught:
        module.argument_value("key", value)
    assert caught.value.blocker.cause == "input.invalid"


def test_files_of_the_core_stay_short() -> None:
    for path in Path(REPOSITORY, "module_utils/gpuhost").glob("*.py"):
        # A table, the one file with input and output, and a loader that is to be cut when it is offered.
        if path.name not in ("causes.py", "host_io.py"):
            assert len(path.read_text().splitlines()) < 300, path.name
