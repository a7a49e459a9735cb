"""Rolls for tests: a ready fake host, the modules' own work functions called on it, and its power button."""

from __future__ import annotations

import importlib.util
import sys
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from fake_host import FakeHost
from fake_tools import install_programs
from fake_tree import CONTAINER, NEW, booted, lay_tree, set_variable

import gpuhost
from gpuhost import loaders
from gpuhost.documents import as_dict
from gpuhost.errors import Stop
from gpuhost.plan import Wishes, make_plan
from gpuhost.rollfile import Roll, load
from gpuhost.survey import collect

REPOSITORY = Path(__file__).resolve().parents[2]
HOST_NAME = "gpu-1"
RUN_ID = "20261130T010000Z-0001"
CONTROLLER = "ffffffff-0000-4000-8000-000000000000"
ARGUMENTS = {"panic": "30"}
PASSED = {"status": "pass", "kernel": NEW}


def debian_host(folder: Path, *, installed: bool = True) -> FakeHost:
    """A Debian 12 systemd-boot GPU host on 6.1, with 6.12 installed or only installable."""
    host = FakeHost(folder)
    install_programs(host)
    lay_tree(host, installed=installed)
    return host


def wishes(**changes: Any) -> Wishes:
    """What an operator asks for who wants 6.12."""
    values: dict[str, Any] = {
        "target": "6.12",
        "reboot_allowed": True,
        "gate_required": ("device_access",),
        "cmdline": ARGUMENTS,
    }
    return Wishes(**{**values, **changes})


def facts_of(host: FakeHost) -> dict[str, Any]:
    """The host's facts."""
    return collect(host, HOST_NAME, RUN_ID, None)


def plan_of(host: FakeHost, **changes: Any) -> dict[str, Any]:
    """The plan for this host, as the modules get it."""
    return as_dict(make_plan(facts_of(host), wishes(**changes), RUN_ID, CONTROLLER))


@cache
def library(name: str) -> tuple[ModuleType, dict[str, Any]]:
    """A module of library/ and its argument spec. ``ansible.module_utils.gpuhost`` is the installed package here."""
    for part in [part for part in sys.modules if part == "gpuhost" or part.startswith("gpuhost.")]:
        sys.modules.setdefault(f"ansible.module_utils.{part}", sys.modules[part])
    sys.modules["ansible.module_utils.gpuhost"] = gpuhost
    spec = importlib.util.spec_from_file_location(name, REPOSITORY / "library" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    taken: dict[str, Any] = {}
    real, module.run_module = module.run_module, lambda arguments, work, **_: taken.update(arguments)
    module.main()
    module.run_module = real
    return module, taken


def step(host: FakeHost, name: str, *, check: bool = False, **given: Any) -> dict[str, Any]:
    """Call a module's work as Ansible would, with its defaults."""
    module, spec = library(name)
    unknown = set(given) - set(spec)
    assert not unknown, f"{name} has no {unknown}"
    known = {"host_name": HOST_NAME, "run_id": RUN_ID, **given}
    params = {key: known.get(key, item.get("default")) for key, item in spec.items()}
    answer: dict[str, Any] = module.work(host, params, check)
    return answer


def prepared(host: FakeHost, **changes: Any) -> dict[str, Any]:
    """Everything up to the drain; the plan."""
    plan = plan_of(host, **changes)
    step(host, "gpuhost_boot_trial", action="hold", plan=plan)
    step(host, "gpuhost_boot_config", rebuild=False)
    step(host, "gpuhost_kernel_upgrade")
    step(host, "gpuhost_boot_config")
    step(host, "gpuhost_preflight")
    return plan


def roll_of(host: FakeHost) -> Roll:
    """The roll file, which has to be there and readable."""
    roll = load(host)
    assert roll is not None
    return roll


def power_cycle(host: FakeHost) -> str:
    """Boot what the loader chooses, consume the one-shot, start what starts by itself; the release that came up."""
    entry = loaders.of(host).read().next_boot()
    assert entry is not None
    assert entry.release is not None
    set_variable(host, "LoaderEntryOneShot", None)
    booted(host, entry.release, entry.options)
    host.rebooting = False
    host.running = set() if host.exists("/var/lib/gpuhost/hold") else {CONTAINER}
    return entry.release


def one_shot(host: FakeHost) -> str | None:
    """The one-shot that is set."""
    return loaders.of(host).read().one_shot


def boots_by_itself(host: FakeHost) -> str | None:
    """The release that boots when there is no one-shot."""
    entry = loaders.of(host).read().next_boot(one_shot=False)
    return entry.release if entry else None


def act(host: FakeHost, action: str, **given: Any) -> dict[str, Any]:
    """One action of the trial's module."""
    return step(host, "gpuhost_boot_trial", action=action, **given)


def cause_of(host: FakeHost, action: str, **given: Any) -> str:
    """The cause with which an action stops; it has to."""
    try:
        act(host, action, **given)
    except Stop as error:
        return error.blocker.cause
    raise AssertionError(f"{action} did not stop")


def on_trial(host: FakeHost) -> None:
    """The host in its trial boot."""
    prepared(host)
    act(host, "boot", allowed=True)
    assert power_cycle(host) == NEW
