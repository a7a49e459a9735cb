"""What is said about the PCIe path of each GPU. Pure: facts, a selection and wishes in, findings out.

Where several devices show the same, one finding names them all; a device that tune would change has a finding of its
own, since its write may be refused by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from .causes import cause
from .documents import Finding, Severity
from .pcie_config import ACS_REDIRECTS, NO_SNOOP, RELAXED_ORDERING, Registers
from .pcie_register import NOT_READABLE
from .pcie_tree import DEVICES, LOCKDOWN, Facts, Function, Selection, Wishes

NONE_HERE = "not applicable: no NVIDIA GPU that the nvidia driver has"
NEEDS_ROOT = "unknown: needs root"
_CONFIG = f"{DEVICES}/*/config"
_GENERATIONS = {2.5: 1, 5.0: 2, 8.0: 3, 16.0: 4, 32.0: 5, 64.0: 6}
_WHY_REQUEST = (
    "pcie_tuning_max_read_request_bytes asks for it. Fewer, larger reads of host memory; others measured no effect of "
    "it on GPUs of this class, and gpuhost claims none."
)


def findings(facts: Facts, chosen: Selection, wishes: Wishes) -> tuple[Finding, ...]:
    """All of them, as the host is now."""
    found = [*_missing(chosen), *_left_alone(chosen)]
    if not chosen.gpus:
        return (*found, _finding("pcie.max_read_request", "info", NONE_HERE, "", "There is nothing to set.", DEVICES))
    judged = [gpu.address for gpu in chosen.gpus] + (list(chosen.root_ports) if wishes.bridges else [])
    found += [*_no_answer(facts, chosen), *_requests(facts, chosen, wishes, judged), *_forbidden(facts, wishes, judged)]
    for code, bit, good, reason in _CONTROL_BITS:
        found += _control_bit(facts, chosen, code, bit, good, reason)
    found += [*_payload(facts, chosen), *_links(facts, chosen), *_acs(facts, chosen), *_aer(facts, chosen)]
    return tuple(found)


def _finding(code: str, severity: Severity, observed: str, expected: str, why: str, source: str) -> Finding:
    fix = "" if severity in ("good", "info", "unknown") else cause(code).next_step
    return Finding(code, "pcie", severity, observed, expected, why, fix, source)


def grouped(values: Iterable[tuple[str, str]]) -> str:
    """``512 bytes: 0000:01:00.0, 0000:41:00.0; 4096 bytes: 0000:c1:00.0`` of pairs of value and address."""
    groups: dict[str, list[str]] = {}
    for value, address in values:
        groups.setdefault(value, []).append(address)
    return "; ".join(f"{value}: {', '.join(found)}" for value, found in groups.items())


def _size(size: int | None) -> str:
    return "a reserved code" if size is None else f"{size} bytes"


def _readable(facts: Facts, addresses: Iterable[str]) -> dict[str, Registers]:
    found = {address: facts.registers[address] for address in addresses if address in facts.registers}
    return {address: item for address, item in found.items() if item.state == "readable"}


# --- which devices


def _missing(chosen: Selection) -> list[Finding]:
    why = "pcie_tuning_devices names it, and nothing has this address: another slot, or it has fallen off the bus."
    return [
        _finding("pcie.device_missing", "p1_reboot", f"{address}: no such device", "a GPU", why, DEVICES)
        for address in chosen.missing
    ]


def _left_alone(chosen: Selection) -> list[Finding]:
    if not chosen.left_alone:
        return []
    observed = grouped((reason, item.address) for item, reason in chosen.left_alone)
    why = "Only GPUs of the nvidia driver, or those of pcie_tuning_devices, are tuned; what these are is said here."
    return [_finding("pcie.left_alone", "info", observed, "", why, DEVICES)]


def _no_answer(facts: Facts, chosen: Selection) -> list[Finding]:
    silent = [
        address
        for address in dict.fromkeys(item for gpu in chosen.gpus for item in gpu.path)
        if facts.registers[address].state == "no_answer"
    ]
    if not silent:
        return []
    observed = grouped((NOT_READABLE["no_answer"], address) for address in silent)
    return [_finding("pcie.no_answer", "p1_reboot", observed, "an answer", cause("pcie.no_answer").sentence, _CONFIG)]


# --- MaxReadReq


def _requests(facts: Facts, chosen: Selection, wishes: Wishes, judged: list[str]) -> list[Finding]:
    code, wanted = "pcie.max_read_request", wishes.max_read_request_bytes
    expected = _size(wanted) if wanted else ""
    found = []
    states = {address: facts.registers[address] for address in judged}
    hidden = [address for address, item in states.items() if item.state in ("needs_root", "no_express")]
    if hidden:
        observed = grouped((NOT_READABLE[states[address].state], address) for address in hidden)
        found.append(_finding(code, "unknown", observed, expected, _WHY_REQUEST, _CONFIG))
    seen = _readable(facts, judged)
    right = [address for address, item in seen.items() if wanted in (0, item.request_bytes)]
    if right:
        observed = grouped((_size(seen[address].request_bytes), address) for address in right)
        why = _WHY_REQUEST if wanted else "pcie_tuning_max_read_request_bytes is 0: it stays as it is."
        found.append(_finding(code, "good" if wanted else "info", observed, expected, why, _CONFIG))
    severity: Severity = "info" if facts.forbids else "p0_runtime"
    for address in (item for item in seen if item not in right):
        # tune_step takes this finding away by its source, where the write is refused and has a finding of its own
        observed = f"{_size(seen[address].request_bytes)}: {address}"
        found.append(_finding(code, severity, observed, expected, _WHY_REQUEST, address))
    return [*found, *_beside(facts, chosen, wishes)]


def _beside(facts: Facts, chosen: Selection, wishes: Wishes) -> list[Finding]:
    """What is only listed: ports that issue no reads of their own, and those that a virtual machine does not show."""
    found = []
    listed = chosen.between if wishes.bridges else (*chosen.root_ports, *chosen.between)
    seen = _readable(facts, listed)
    if seen:
        observed = grouped((_size(item.request_bytes), address) for address, item in seen.items())
        why = "Bridges between GPU and root port pass reads on and issue none of their own: not judged."
        found.append(_finding("pcie.bridges", "info", observed, "", why, _CONFIG))
    alone = [gpu.address for gpu in chosen.gpus if gpu.root_port is None]
    if alone:
        observed = grouped(("not applicable: no root port is shown above", address) for address in alone)
        found.append(_finding("pcie.bridges", "info", observed, "", "A virtual machine often has none.", DEVICES))
    return found


def _forbidden(facts: Facts, wishes: Wishes, judged: list[str]) -> list[Finding]:
    """Why nothing is written: worth a reboot only where something would be."""
    wanted = wishes.max_read_request_bytes
    differs = wanted and any(item.request_bytes != wanted for item in _readable(facts, judged).values())
    severity: Severity = "p1_reboot" if differs else "info"
    found = []
    if facts.is_locked_down:
        observed, why = f"the kernel is locked down ({facts.lockdown})", cause("pcie.locked_down").sentence
        found.append(_finding("pcie.locked_down", severity, observed, "", why, LOCKDOWN))
    if facts.bus_perf:
        observed, why = "the kernel runs with pci=pcie_bus_perf", cause("pcie.bus_perf").sentence
        found.append(_finding("pcie.bus_perf", severity, observed, "", why, "/proc/cmdline"))
    return found


# --- what is only looked at

_CONTROL_BITS = (
    (
        "pcie.relaxed_ordering", RELAXED_ORDERING, "on",
        "Lets completions and writes pass each other on the way; the driver asks for it, firmware may forbid it.",
    ),
    (
        "pcie.no_snoop", NO_SNOOP, "on",
        "Lets a device mark accesses that need no cache lookup; hypervisors turn it off. Neither is a fault.",
    ),
)  # fmt: skip


def _control_bit(facts: Facts, chosen: Selection, code: str, bit: int, good: str, why: str) -> list[Finding]:
    seen = {gpu.address: facts.registers[gpu.address] for gpu in chosen.gpus}
    found = []
    severities: tuple[tuple[Severity, bool], ...] = (("good", True), ("info", False))
    for severity, is_on in severities:
        those = [key for key, item in seen.items() if item.state == "readable" and bool(item.control & bit) is is_on]
        if those:
            observed = grouped(("on" if is_on else "off", address) for address in those)
            found.append(_finding(code, severity, observed, good, why, _CONFIG))
    hidden = [address for address, item in seen.items() if item.state == "needs_root"]
    if hidden:
        observed = grouped((NEEDS_ROOT, address) for address in hidden)
        found.append(_finding(code, "unknown", observed, good, why, _CONFIG))
    return found


def _payload(facts: Facts, chosen: Selection) -> list[Finding]:
    why = "The kernel or the firmware sets it so that it fits the whole path, which is why it is never written here."
    found, same = [], []
    for gpu in chosen.gpus:
        path = _readable(facts, gpu.path)
        values = [(_size(item.payload_bytes), address) for address, item in path.items()]
        if len({value for value, _ in values}) > 1:
            found.append(_finding("pcie.max_payload", "info", grouped(values), "one size", why, _CONFIG))
        elif values:
            same += [item for item in values if item not in same]
    if same:
        found.append(_finding("pcie.max_payload", "good", grouped(same), "one size on each path", why, _CONFIG))
    return found


def _acs(facts: Facts, chosen: Selection) -> list[Finding]:
    bridges = _readable(facts, (*chosen.root_ports, *chosen.between))
    values = [
        ("redirects traffic between GPUs upwards" if item.acs & ACS_REDIRECTS else "redirects nothing", address)
        for address, item in bridges.items()
        if item.acs is not None
    ]
    if not values:
        return []
    why = "A redirect sends peer-to-peer traffic up to the root complex: isolation for passthrough, slower P2P."
    return [_finding("pcie.acs", "info", grouped(values), "", why, _CONFIG)]


def _aer(facts: Facts, chosen: Selection) -> list[Finding]:
    path = dict.fromkeys(item for gpu in chosen.gpus for item in gpu.path)
    counted = {address: facts.errors[address] for address in path if address in facts.errors}
    values = [
        (f"{', '.join(f'{count} {kind}' for kind, count in kinds.items()) or 'no errors'} since boot", address)
        for address, kinds in counted.items()
    ]
    values += [
        ("errors are not counted by this kernel" if item.has_aer else "no error reporting", address)
        for address, item in _readable(facts, path).items()
        if address not in counted
    ]
    if not values:
        return []
    why = "Advanced Error Reporting: correctable errors that keep coming point at a riser, a slot or a retimer."
    return [_finding("pcie.aer", "info", grouped(values), "", why, f"{DEVICES}/*/aer_dev_*")]


# --- links


def _links(facts: Facts, chosen: Selection) -> list[Finding]:
    """Width and speed of each GPU's own link, against what both of its ends can do."""
    widths: dict[Severity, list[tuple[str, str]]] = {}
    speeds: dict[Severity, list[tuple[str, str]]] = {}
    for gpu in chosen.gpus:
        for groups, judge in ((widths, _width), (speeds, _speed)):
            severity, text = judge(facts, gpu)
            groups.setdefault(severity, []).append((text, gpu.address))
    why_width = "Each missing lane takes its share of the bandwidth: a riser, the slot's wiring, a card not seated."
    why_speed = "An idle GPU lowers its link's speed and raises it under load: a low one at rest is no fault."
    return [
        *_of_links("pcie.link_width", widths, "all lanes", why_width),
        *_of_links("pcie.link_speed", speeds, "the highest of both ends, under load", why_speed),
    ]


def _of_links(code: str, groups: dict[Severity, list[tuple[str, str]]], expected: str, why: str) -> list[Finding]:
    source = f"{DEVICES}/*/current_link_*"
    return [_finding(code, severity, grouped(values), expected, why, source) for severity, values in groups.items()]


def _ends(facts: Facts, gpu: Function, of: Callable[[str], float]) -> tuple[float, float]:
    """The most that the GPU can do, and the most that both ends of its link can."""
    own = of(gpu.address)
    above = of(gpu.bridges[-1]) if gpu.bridges else 0
    return own, min(own, above) if above else own


def _width(facts: Facts, gpu: Function) -> tuple[Severity, str]:
    now = facts.links[gpu.address].width
    own, both = (int(item) for item in _ends(facts, gpu, lambda address: facts.links[address].max_width))
    if not now or not both:
        return "unknown", "unknown: the kernel does not say"
    if now < both:
        return "p1_reboot", f"x{now} of x{both}"
    return ("good", f"x{now}") if both == own else ("info", f"x{now}: its slot has no more, the card has x{own}")


def _speed(facts: Facts, gpu: Function) -> tuple[Severity, str]:
    now = facts.links[gpu.address].speed
    own, both = _ends(facts, gpu, lambda address: facts.links[address].max_speed)
    if not now or not both:
        return "unknown", "unknown: the kernel does not say"
    if now < both:
        return "info", f"{_speed_text(now)} of {_speed_text(both)}"
    if both == own:
        return "good", _speed_text(now)
    return "info", f"{_speed_text(now)}: its slot has no more, the card has {_speed_text(own)}"


def _speed_text(speed: float) -> str:
    return f"{speed:.1f} GT/s (Gen{_GENERATIONS.get(speed, '?')})"
