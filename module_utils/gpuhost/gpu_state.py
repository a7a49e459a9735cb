"""What GPUs forget at a reboot and the operator has declared: power limits, locked and application clocks, MIG layouts.

Declared values are checked against the card's own range before anything is set; a card that can't have one gets none.
MIG mode itself is never switched: it takes a reset, or at least an idle GPU, and every container's device nodes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from . import gpu_kinds, mig
from .documents import Blocker, Finding, Severity
from .errors import blocker
from .gpu_query import Gpu
from .host_io import Host
from .tuning import KINDS, Write

REFUSED = "gpu.out_of_range"
ALL = "all"
"""In a MIG layout: every GPU that is not named itself."""
_SOURCE = "nvidia-smi --query-gpu"


@dataclass(frozen=True)
class Declared:
    """What the operator has declared; empty and 0 mean nothing. MIG: by index, address or ``all``, profile names."""

    power_limit_w: float = 0
    lock_clocks_mhz: tuple[int, ...] = ()
    application_clocks_mhz: tuple[int, ...] = ()
    mig_layout: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def anything(self) -> bool:
        """Whether anything is declared."""
        return bool(self.power_limit_w or self.lock_clocks_mhz or self.application_clocks_mhz or self.mig_layout)

    def layout_of(self, gpu: Gpu) -> tuple[str, ...] | None:
        """The layout that is declared for a GPU; None where none is."""
        for key in (gpu.address, str(gpu.index), ALL):
            if key in self.mig_layout:
                return self.mig_layout[key]
        return None


@dataclass(frozen=True)
class Seen:
    """What the GPUs have beside the query's values."""

    locked: Mapping[str, str] = field(default_factory=dict)
    """Address to ``MIN,MAX``, as far as gpuhost has locked it since this boot."""
    instances: tuple[mig.Instance, ...] = ()
    profiles: tuple[mig.Profile, ...] = ()
    users: tuple[str, ...] = ()
    known: bool = True
    """False without root: what was locked and which instances there are is not known then."""


def read(host: Host, gpus: Sequence[Gpu]) -> Seen:
    """MIG is asked about only where its mode is on."""
    if not host.is_root():
        return Seen(known=False)
    if not any(gpu.mig for gpu in gpus):
        return Seen(gpu_kinds.locked_clocks(host))
    profiles = host.run(["nvidia-smi", "mig", "-lgip"])
    instances = host.run(["nvidia-smi", "mig", "-lgi"])
    return Seen(
        gpu_kinds.locked_clocks(host),
        mig.parse_instances(instances.stdout),
        mig.parse_profiles(profiles.stdout),
        tuple(gpu_kinds.users(host)),
    )


def refusals(gpus: Sequence[Gpu], declared: Declared, seen: Seen) -> list[Blocker]:
    """Every declared value that a card can't have. With one of them nothing at all is set."""
    found = []
    for gpu in gpus:
        for what, observed, expected in _misfits(gpu, declared, seen):
            found.append(blocker(REFUSED, f"{gpu.address} ({gpu.name})", f"{what} is declared as {observed}", expected))
    known = {ALL, *(gpu.address for gpu in gpus), *(str(gpu.index) for gpu in gpus)}
    strangers = sorted(set(declared.mig_layout) - known) if gpus else []
    found += [blocker(REFUSED, key, "a MIG layout is declared for a GPU that is not there") for key in strangers]
    return found


def _misfits(gpu: Gpu, declared: Declared, seen: Seen) -> list[tuple[str, str, str]]:
    found = []
    watts, low, high = declared.power_limit_w, gpu.power_min_w, gpu.power_max_w
    if watts and (low is None or high is None):
        found.append(("the power limit", f"{watts:g} W", "nothing: this GPU's limit can't be set"))
    elif watts and not (low or 0) <= watts <= (high or 0):
        found.append(("the power limit", f"{watts:g} W", f"{low:g} to {high:g} W"))
    memory_max, graphics_max = gpu.max_clocks_mhz or (None, None)
    locked = declared.lock_clocks_mhz
    if locked and (len(locked) > 2 or min(locked) <= 0 or locked[0] > locked[-1]):
        found.append(("the locked clock", f"{list(locked)} MHz", "one clock, or the lowest and the highest"))
    elif locked and graphics_max is not None and locked[-1] > graphics_max:
        found.append(("the locked clock", f"{locked[-1]} MHz", f"at most {graphics_max} MHz"))
    clocks = declared.application_clocks_mhz
    if clocks and (len(clocks) != 2 or min(clocks) <= 0):
        found.append(("the application clocks", f"{list(clocks)} MHz", "two: memory, graphics"))
    elif clocks and gpu.application_clocks_mhz is None:
        found.append(("the application clocks", f"{list(clocks)} MHz", "nothing: this GPU has none"))
    elif clocks and memory_max and graphics_max and (clocks[0] > memory_max or clocks[1] > graphics_max):
        found.append(("the application clocks", f"{list(clocks)} MHz", f"at most {memory_max} and {graphics_max} MHz"))
    layout = declared.layout_of(gpu)
    if layout and gpu.mig is None:
        found.append(("the MIG layout", ",".join(layout), "nothing: this GPU has no MIG"))
    elif layout and gpu.mig and seen.profiles:
        reason = mig.misfit(layout, [item for item in seen.profiles if item.gpu == gpu.index])
        found += [("the MIG layout", ",".join(layout), f"what fits: this GPU {reason}")] if reason else []
    return found


def declared_findings(gpus: Sequence[Gpu], declared: Declared, seen: Seen) -> tuple[list[Finding], list[Write]]:
    """The findings and writes of all that is declared. A refused value gives a finding and no write at all."""
    refused = refusals(gpus, declared, seen)
    if refused:
        text = "; ".join(f"{item.object}: {item.observed}" for item in refused)
        expected = "; ".join(dict.fromkeys(item.expected for item in refused))
        return [_finding(REFUSED, "p0_runtime", text, expected, "Correct what is declared; nothing is set")], []
    findings, writes = [], []
    for code, kind, targets in _targets(gpus, declared):
        if kind == gpu_kinds.LOCKED and not seen.known:
            findings.append(_finding(code, "unknown", "unknown: needs root", "as declared"))
            continue
        pairs = [(gpu, _now(kind, gpu, seen), value) for gpu, value in targets]
        other = [(gpu, now, value) for gpu, now, value in pairs if not _same(kind, now, value)]
        text = "; ".join(f"{gpu.address} {_shown(now)}, declared {value}" for gpu, now, value in other)
        if other:
            findings.append(_finding(code, "p0_runtime", text, "as declared", "gpuhost tune"))
            writes += [gpu_kinds.write_of(kind, gpu.address, value, "as declared") for gpu, _, value in other]
        elif pairs:
            findings.append(_finding(code, "good", f"{pairs[0][2]}, {len(pairs)} GPUs", "as declared"))
    more, made = _mig(gpus, declared, seen)
    return findings + more, writes + made


_Targets = list[tuple[str, str, list[tuple[Gpu, str]]]]


def _targets(gpus: Sequence[Gpu], declared: Declared) -> _Targets:
    found: _Targets = []

    def everywhere(code: str, kind: str, value: str) -> None:
        found.append((code, kind, [(gpu, value) for gpu in gpus]))

    if declared.power_limit_w:
        everywhere("gpu.power_limit", gpu_kinds.POWER, f"{declared.power_limit_w:g}")
    if declared.lock_clocks_mhz:
        low, high = declared.lock_clocks_mhz[0], declared.lock_clocks_mhz[-1]
        everywhere("gpu.locked_clocks", gpu_kinds.LOCKED, f"{low},{high}")
    if declared.application_clocks_mhz:
        value = ",".join(map(str, declared.application_clocks_mhz))
        everywhere("gpu.application_clocks", gpu_kinds.APPLICATION, value)
    return found


def _now(kind: str, gpu: Gpu, seen: Seen) -> str | None:
    if kind == gpu_kinds.POWER:
        return None if gpu.power_limit_w is None else f"{gpu.power_limit_w:g}"
    if kind == gpu_kinds.LOCKED:
        return seen.locked.get(gpu.address, "none")
    return None if gpu.application_clocks_mhz is None else ",".join(map(str, gpu.application_clocks_mhz))


def _same(kind: str, now: str | None, value: str) -> bool:
    return KINDS[kind].same(now, value)


def _shown(value: str | None) -> str:
    return "does not say" if value is None else f"has {value}"


def _mig(gpus: Sequence[Gpu], declared: Declared, seen: Seen) -> tuple[list[Finding], list[Write]]:
    code = "gpu.mig_layout"
    asked = [(gpu, layout) for gpu in gpus if (layout := declared.layout_of(gpu)) is not None]
    mode_off = [gpu.address for gpu, layout in asked if layout and not gpu.mig]
    if asked and not seen.known:
        return [_finding(code, "unknown", "unknown: needs root", "as declared")], []
    texts, fixes, writes = [], [], []
    for gpu, layout in asked:
        have = [item.name for item in seen.instances if item.gpu == gpu.index]
        missing, more = mig.missing_and_more(have, layout)
        if not gpu.mig or not (missing or more):
            continue
        texts.append(f"{gpu.address} has {mig.layout(have) or 'no instance'}, declared {mig.layout(layout) or 'none'}")
        if more:
            fixes.append(
                f"Other instances are never removed: nvidia-smi mig -i {gpu.address} -dci; ... -dgi, then tune"
            )
        elif seen.users:
            fixes.append(f"GPUs are in use by {', '.join(seen.users[:3])}: stop it, then tune")
        else:
            fixes.append("gpuhost tune")
            writes.append(gpu_kinds.write_of(gpu_kinds.MIG, gpu.address, mig.layout(layout), "as declared"))
    found = []
    if mode_off:
        text = f"MIG mode is off on {', '.join(mode_off)}"
        fix = f"Drain the host; nvidia-smi -i {','.join(mode_off)} -mig 1; reset or reboot; then gpuhost tune"
        found.append(_finding("gpu.mig_mode", "p1_reboot", text, "on, for the declared layout", fix))
    if texts:
        found.append(_finding(code, "p0_runtime", "; ".join(texts), "as declared", "; ".join(dict.fromkeys(fixes))))
    elif asked and not mode_off:
        found.append(_finding(code, "good", f"as declared on {len(asked)} GPUs", "as declared"))
    return found, writes


def _finding(code: str, severity: Severity, observed: str, expected: str, fix: str = "") -> Finding:
    why = "A GPU forgets it at every boot; it is set again before containers start."
    return Finding(code, "gpu_state", severity, observed, expected, why, fix, _SOURCE)
