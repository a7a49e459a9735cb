"""What the CPUs' settings are, and which should be others: one file for the module, the boot and CPUs that come later.

It is copied to a host as it is and run there by ``gpuhost-cpu.service`` with the host's own Python: it imports nothing
of this package. Idle states are chosen at each boot anew by their latency: another kernel may number them otherwise.

Sources: Documentation/admin-guide/pm/{cpufreq,cpuidle,amd-pstate,intel_pstate}.rst, admin-guide/mm/transhuge.rst.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from dataclasses import dataclass, field
from typing import Protocol

CPUS = "/sys/devices/system/cpu"
HUGE_PAGES = "/sys/kernel/mm/transparent_hugepage/enabled"
KEEP = "keep"
BOOST_FILES = ((f"{CPUS}/intel_pstate/no_turbo", "0", "1"), (f"{CPUS}/cpufreq/boost", "1", "0"))
"""(file, what it reads with boost, what without); the first that is there counts."""


class Tree(Protocol):
    """A host's files: ``host_io.Host``, or ``Files`` where this file runs by itself."""

    def read_line(self, path: str) -> str:
        """A one-line file; empty where there is none."""

    def names(self, path: str) -> list[str]:
        """Sorted names in a folder; empty where there is none."""


@dataclass(frozen=True)
class Wishes:
    """What is wanted; ``keep`` (or None) leaves a thing as it is."""

    governor: str = KEEP
    epp: str = KEEP
    boost: str = KEEP
    max_idle_latency_us: int | None = None
    huge_pages: str = KEEP


@dataclass(frozen=True)
class Policy:
    """CPUs that share a frequency: ``/sys/devices/system/cpu/cpufreq/policyN``."""

    path: str
    driver: str
    governor: str
    governors: tuple[str, ...] = ()
    epp: str = ""
    epps: tuple[str, ...] = ()


@dataclass(frozen=True)
class IdleState:
    """One idle state of one CPU. ``latency_us``: what leaving it may take; None where the kernel does not say."""

    path: str
    name: str
    latency_us: int | None
    disabled: bool


@dataclass(frozen=True)
class Facts:
    """The settings of all CPUs that are online. ``boost``: the file, and whether it is on; None without such a file."""

    policies: tuple[Policy, ...] = ()
    idle_states: tuple[IdleState, ...] = ()
    boost: tuple[str, bool] | None = None
    huge_pages: str = ""
    huge_page_choices: tuple[str, ...] = field(default=())


@dataclass(frozen=True)
class Setting:
    """A file of /sys and what it should read. ``about`` is for people."""

    path: str
    value: str
    about: str


def _number(text: str) -> tuple[int, str]:
    """CPUs and policies in their own order: cpu10 after cpu9."""
    digits = re.sub(r"\D", "", text)
    return (int(digits) if digits else -1, text)


def read(tree: Tree) -> Facts:
    """The settings as they are."""
    policies = [_policy(tree, f"{CPUS}/cpufreq/{name}") for name in _numbered(tree, f"{CPUS}/cpufreq", "policy")]
    states = [
        _idle_state(tree, f"{CPUS}/{cpu}/cpuidle/{state}")
        for cpu in _numbered(tree, CPUS, "cpu")
        for state in _numbered(tree, f"{CPUS}/{cpu}/cpuidle", "state")
    ]
    choices = tree.read_line(HUGE_PAGES).split()
    chosen = next((word[1:-1] for word in choices if word.startswith("[")), "")
    return Facts(
        tuple(item for item in policies if item.governor),  # a policy whose CPUs are all offline reads nothing
        tuple(states),
        _boost(tree),
        chosen,
        tuple(word.strip("[]") for word in choices),
    )


def _numbered(tree: Tree, folder: str, word: str) -> list[str]:
    return sorted((name for name in tree.names(folder) if re.fullmatch(rf"{word}\d+", name)), key=_number)


def _policy(tree: Tree, path: str) -> Policy:
    return Policy(
        path,
        tree.read_line(f"{path}/scaling_driver"),
        tree.read_line(f"{path}/scaling_governor"),
        tuple(tree.read_line(f"{path}/scaling_available_governors").split()),
        tree.read_line(f"{path}/energy_performance_preference"),
        tuple(tree.read_line(f"{path}/energy_performance_available_preferences").split()),
    )


def _idle_state(tree: Tree, path: str) -> IdleState:
    latency = tree.read_line(f"{path}/latency")
    disabled = tree.read_line(f"{path}/disable") not in ("0", "")
    return IdleState(path, tree.read_line(f"{path}/name"), int(latency) if latency.isdecimal() else None, disabled)


def _boost(tree: Tree) -> tuple[str, bool] | None:
    for path, on, _ in BOOST_FILES:
        value = tree.read_line(path)
        if value:
            return path, value == on
    return None


def settings(facts: Facts, wishes: Wishes) -> list[Setting]:
    """Every setting that is wished and can be made here, also those that are right already.

    A state is on or off by its latency alone: one that was off and is short enough stays as it is.
    """
    found = [item for policy in facts.policies for item in _of_policy(policy, wishes)]
    if facts.boost is not None and wishes.boost != KEEP:
        path = facts.boost[0]
        on, off = next((on, off) for name, on, off in BOOST_FILES if name == path)
        found.append(Setting(path, on if wishes.boost == "on" else off, f"boost {wishes.boost}"))
    found += [Setting(f"{item.path}/disable", "1", about(item)) for item in too_slow(facts, wishes)]
    if wishes.huge_pages in facts.huge_page_choices:
        found.append(Setting(HUGE_PAGES, wishes.huge_pages, "transparent huge pages"))
    return found


def _of_policy(policy: Policy, wishes: Wishes) -> list[Setting]:
    """Governor and energy preference, in the order that the kernel takes.

    Under the governor performance of intel_pstate and amd_pstate the preference can't be changed (EBUSY): it is set
    before that governor comes, or after it has gone. In the opposite order both can be put back.
    """
    governor = [Setting(f"{policy.path}/scaling_governor", item, "governor") for item in governor_of(policy, wishes)]
    epp = [
        Setting(f"{policy.path}/energy_performance_preference", item, "energy preference")
        for item in epp_of(policy, wishes)
    ]
    return [*governor, *epp] if policy.governor == "performance" else [*epp, *governor]


def governor_of(policy: Policy, wishes: Wishes) -> tuple[str, ...]:
    """The governor that is wished, where the driver has it."""
    return (wishes.governor,) if wishes.governor in policy.governors else ()


def epp_of(policy: Policy, wishes: Wishes) -> tuple[str, ...]:
    """The energy preference that is wished, where it can be. The governor performance knows only performance.

    While that governor is in force some kernels list no other: then the wish is taken as it is.
    """
    if not policy.epp or wishes.epp == KEEP:
        return ()
    final = (*governor_of(policy, wishes), policy.governor)[0]
    if final == "performance":
        possible = wishes.epp == "performance"
    else:
        possible = policy.governor == "performance" or wishes.epp in policy.epps
    return (wishes.epp,) if possible else ()


def too_slow(facts: Facts, wishes: Wishes) -> list[IdleState]:
    """The idle states that take longer to leave than is wanted, on or off."""
    limit = wishes.max_idle_latency_us
    return [
        item
        for item in facts.idle_states
        if limit is not None and item.latency_us is not None and item.latency_us > limit
    ]


def about(state: IdleState) -> str:
    """For people: ``idle state C2 (100 us) off``."""
    return f"idle state {state.name} ({state.latency_us} us) off"


def arguments(wishes: Wishes) -> list[str]:
    """The wishes as arguments of this program."""
    latency = KEEP if wishes.max_idle_latency_us is None else str(wishes.max_idle_latency_us)
    return [
        "--governor", wishes.governor, "--epp", wishes.epp, "--boost", wishes.boost,
        "--max-idle-latency-us", latency, "--huge-pages", wishes.huge_pages,
    ]  # fmt: skip


# --- by itself


class Files:
    """The files of the machine that this runs on."""

    def read_line(self, path: str) -> str:
        """A one-line file; empty where there is none or the kernel does not answer."""
        try:
            with open(path) as stream:
                return stream.read().strip()
        except OSError:
            return ""

    def names(self, path: str) -> list[str]:
        """Sorted names in a folder; empty where there is none."""
        try:
            return sorted(os.listdir(path))
        except OSError:
            return []


def _set(files: Files, item: Setting) -> str:
    """Make one setting; a line for the journal, empty where it was right."""
    seen = files.read_line(item.path)
    if seen == item.value or f"[{item.value}]" in seen.split():
        return ""
    try:
        with open(item.path, "w") as stream:
            stream.write(item.value + "\n")
    except OSError as error:
        return f"{item.path}: {item.value!r} can't be written: {error.strerror}"
    return f"{item.path}: {seen} -> {item.value}"


def main(argv: list[str]) -> int:
    """Make the settings. What the kernel refuses is said in the journal, and fails no boot: the audit sees it too."""
    parser = argparse.ArgumentParser(description="Set CPU frequency, idle states and huge pages as gpuhost was told to")
    for name in ("governor", "epp", "boost", "max-idle-latency-us", "huge-pages"):
        parser.add_argument(f"--{name}", default=KEEP)
    given = parser.parse_args(argv)
    latency = given.max_idle_latency_us
    wishes = Wishes(given.governor, given.epp, given.boost, None if latency == KEEP else int(latency), given.huge_pages)
    files = Files()
    lines = [_set(files, item) for item in settings(read(files), wishes)]
    print("\n".join(line for line in lines if line) or "nothing to do")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
