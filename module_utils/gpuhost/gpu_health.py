"""What the driver's own numbers say of each GPU's health: pure, on gpu_query's report.

Sources: nvidia-smi(1); NVIDIA "Memory Error Management" (row remapping, page retirement); nvml.h for the bits of the
clock event reasons.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from .documents import Finding, Severity
from .gpu_query import Gpu, Report

# nvmlClocksEventReason*: the GPU's clock is held down by this, at this moment.
POWER_CAP, HW_SLOWDOWN, SW_THERMAL, HW_THERMAL, POWER_BRAKE = 0x4, 0x8, 0x20, 0x40, 0x80
_RESET = "Stop what uses the GPU, then: nvidia-smi -i {} -r, or reboot"

_SOURCE = "nvidia-smi --query-gpu"


def findings(report: Report) -> list[Finding]:
    """Every finding of health, the good ones, too. Empty where no GPU answered (``not_answering`` says that)."""
    gpus = report.gpus
    if not gpus:
        return []
    return [
        _ecc_errors(gpus),
        _ecc_mode(gpus),
        _remap(gpus),
        _retired(gpus),
        _recovery(gpus),
        _throttle(gpus),
        _temperature(gpus),
        *_power_cap(gpus),
    ]


def not_answering(report: Report, on_the_bus: Sequence[str]) -> list[Finding]:
    """GPUs that are on the bus, or were named, and do not answer the driver as they should."""
    answered = {gpu.address for gpu in report.gpus}
    silent = [address for address in on_the_bus if address not in answered]
    texts = [f"{', '.join(silent)} on the bus, not in nvidia-smi"] if silent else []
    texts += [f"{gpu.address} says: {', '.join(gpu.errors)}" for gpu in report.gpus if gpu.errors]
    texts += [*report.remarks, *([report.problem] if report.problem else [])]
    expected, why = f"{len(on_the_bus)} GPUs", "A GPU that the driver has lost is missing to every program."
    if not texts:
        observed = f"{len(report.gpus)} GPUs"
        return [Finding("gpu.not_answering", "gpu_state", "good", observed, expected, why, "", _SOURCE)]
    fix = "dmesg | grep -E 'NVRM|Xid'; then a reset (nvidia-smi -r), or a reboot; a power cycle where it is off the bus"
    lost = any("lost" in text.lower() or "reboot" in text.lower() or "on the bus" in text for text in texts)
    severity: Severity = "p1_reboot" if lost else "p0_runtime"
    return [Finding("gpu.not_answering", "gpu_state", severity, "; ".join(texts), expected, why, fix, _SOURCE)]


def _each(gpus: Sequence[Gpu], text: Callable[[Gpu], str]) -> str:
    """``ADDRESS: text`` of every GPU that there is a text for."""
    return "; ".join(f"{gpu.address}: {found}" for gpu in gpus if (found := text(gpu)))


def _one(gpus: Sequence[Gpu]) -> str:
    return ",".join(gpu.address for gpu in gpus)


def _state(code: str, severity: Severity, observed: str, expected: str, why: str, fix: str = "") -> Finding:
    return Finding(code, "gpu_state", severity, observed, expected, why, fix, _SOURCE)


def _ecc_errors(gpus: Sequence[Gpu]) -> Finding:
    code, expected = "gpu.ecc_errors", "no uncorrectable error since boot"
    why = "An uncorrectable memory error has ended programs, or given them wrong numbers."
    bad = [gpu for gpu in gpus if gpu.uncorrected]
    if bad:
        text = _each(bad, lambda gpu: f"{gpu.uncorrected} uncorrectable since the driver was loaded")
        return _state(code, "p0_runtime", text, expected, why, _RESET.format(_one(bad)))
    known = [gpu for gpu in gpus if gpu.uncorrected is not None]
    if not known:
        return _state(code, "info", "not applicable: no GPU counts memory errors", expected, why)
    old = _each(gpus, lambda gpu: f"{gpu.uncorrected_ever} uncorrectable ever" if gpu.uncorrected_ever else "")
    mild = _each(gpus, lambda gpu: f"{gpu.corrected} corrected" if gpu.corrected else "")
    text = "; ".join(item for item in (old, mild) if item)
    return _state(code, "info" if text else "good", text or "none", expected, why)


def _ecc_mode(gpus: Sequence[Gpu]) -> Finding:
    code, expected = "gpu.ecc_mode", "on, and the same after the next boot"
    why = "Without ECC a flipped bit in GPU memory stays unnoticed."
    changes = [gpu for gpu in gpus if gpu.ecc is not None and gpu.ecc_next is not None and gpu.ecc != gpu.ecc_next]
    if changes:
        text = _each(changes, lambda gpu: f"{_on(gpu.ecc)} now, {_on(gpu.ecc_next)} after a reset or a boot")
        return _state(code, "p1_reboot", text, expected, why, "Reboot, or take the change back: nvidia-smi -e 0|1")
    if all(gpu.ecc is None for gpu in gpus):
        return _state(code, "info", "not applicable: no GPU has ECC", expected, why)
    off = [gpu for gpu in gpus if gpu.ecc is False]
    if off:
        fix = f"Where it is not meant: nvidia-smi -i {_one(off)} -e 1, then reboot"
        return _state(code, "info", f"off on {_one(off)}", expected, why, fix)
    return _state(code, "good", "on", expected, why)


def _on(value: bool | None) -> str:
    return "on" if value else "off"


def _remap(gpus: Sequence[Gpu]) -> Finding:
    code, expected = "gpu.row_remap", "nothing pending, nothing failed"
    why = "Memory rows that failed are replaced by spare ones, at the next reset of the GPU."
    failed = [gpu for gpu in gpus if gpu.remap_failed]
    if failed:
        fix = "Replace the GPU: its spare rows are used up (nvidia-smi -q -d ROW_REMAPPER)"
        return _state(code, "p1_reboot", f"{_one(failed)}: remapping has failed", expected, why, fix)
    pending = [gpu for gpu in gpus if gpu.remap_pending]
    if pending:
        return _state(
            code, "p1_reboot", f"{_one(pending)}: remapping is pending", expected, why, _RESET.format(_one(pending))
        )
    if all(gpu.remap_pending is None for gpu in gpus):
        text = "not applicable, or not said by this driver"
        return _state(code, "info", text, expected, why)
    rows = _each(gpus, lambda gpu: f"{n} rows remapped" if (n := _remapped(gpu)) else "")
    return _state(code, "info" if rows else "good", rows or "none", expected, why)


def _remapped(gpu: Gpu) -> int:
    return (gpu.remapped_corrected or 0) + (gpu.remapped_uncorrected or 0)


def _retired(gpus: Sequence[Gpu]) -> Finding:
    """Before Ampere; a GPU that remaps rows has no such list."""
    code, expected = "gpu.retired_pages", "none pending"
    why = "Pages of GPU memory that failed are no longer given out, after the driver is loaded anew."
    pending = [gpu for gpu in gpus if gpu.retired_pending]
    if pending:
        text = f"{_one(pending)}: a page waits to be retired"
        return _state(code, "p1_reboot", text, expected, why, _RESET.format(_one(pending)))
    if all(gpu.retired_single is None and gpu.retired_double is None for gpu in gpus):
        return _state(code, "info", "not applicable: these GPUs remap rows", expected, why)

    def retired(gpu: Gpu) -> str:
        number = (gpu.retired_single or 0) + (gpu.retired_double or 0)
        return f"{number} retired" if number else ""

    counts = _each(gpus, retired)
    return _state(code, "info" if counts else "good", counts or "none", expected, why)


def _recovery(gpus: Sequence[Gpu]) -> Finding:
    """``None``, ``Reset``, ``Reboot``, ``Drain P2P``, ``Drain and Reset``: the driver's own advice (R565 and newer)."""
    code, expected, why = "gpu.recovery_action", "None", "The driver says what a GPU needs to work again."
    asked = [gpu for gpu in gpus if gpu.recovery_action not in (None, "None")]
    if asked:
        reboot = any("reboot" in (gpu.recovery_action or "").lower() for gpu in asked)
        text = _each(asked, lambda gpu: gpu.recovery_action or "")
        return _state(code, "p1_reboot" if reboot else "p0_runtime", text, expected, why, _RESET.format(_one(asked)))
    if all(gpu.recovery_action is None for gpu in gpus):
        return _state(code, "info", "not applicable: this driver gives no such advice", expected, why)
    return _state(code, "good", "None", expected, why)


def _throttle(gpus: Sequence[Gpu]) -> Finding:
    code, expected = "gpu.throttle", "no thermal or power brake slowdown"
    why = "A GPU that is slowed down by heat or by its power supply is slow for everyone, without any error."

    def reasons(gpu: Gpu) -> str:
        bits = gpu.event_reasons or 0
        named = {
            SW_THERMAL: "slowed down by the driver: too hot",
            HW_THERMAL: "slowed down by the hardware: too hot",
            POWER_BRAKE: "slowed down by the power supply's brake signal",
        }
        found = [text for bit, text in named.items() if bits & bit]
        if bits & HW_SLOWDOWN and not bits & (HW_THERMAL | POWER_BRAKE):
            found.append("slowed down by the hardware")
        return ", ".join(found)

    text = _each(gpus, reasons)
    if text:
        fix = "Check fans, air flow and inlet temperature; for the brake: power supplies and their cables"
        return Finding(code, "power_thermal", "p0_runtime", text, expected, why, fix, _SOURCE)
    known = any(gpu.event_reasons is not None for gpu in gpus)
    observed = "none at this moment" if known else "unknown: no GPU says why its clock is what it is"
    return Finding(code, "power_thermal", "good" if known else "unknown", observed, expected, why, "", _SOURCE)


def _temperature(gpus: Sequence[Gpu]) -> Finding:
    code, expected = "gpu.temperature", "below the limit"
    why = "From its limit on a GPU slows itself down, then switches itself off."
    hot = [gpu for gpu in gpus if gpu.thermal_margin_c is not None and gpu.thermal_margin_c <= 0]

    def shown(gpu: Gpu) -> str:
        if gpu.temperature_c is None:
            return ""
        margin = f", {gpu.thermal_margin_c:.0f} C below its limit" if gpu.thermal_margin_c is not None else ""
        draw = f", {gpu.power_draw_w:.0f} W" if gpu.power_draw_w is not None else ""
        return f"{gpu.temperature_c:.0f} C{margin}{draw}"

    text = _each(hot or gpus, shown)
    fix = "Check fans, air flow and inlet temperature" if hot else ""
    severity: Severity = "p0_runtime" if hot else "good" if text else "unknown"
    return Finding(
        code, "power_thermal", severity, text or "unknown: no temperature is given", expected, why, fix, _SOURCE
    )


def _power_cap(gpus: Sequence[Gpu]) -> list[Finding]:
    capped = [gpu for gpu in gpus if (gpu.event_reasons or 0) & POWER_CAP]
    if not capped:
        return []
    text = _each(capped, lambda gpu: f"draws its limit of {gpu.power_limit_w or 0:.0f} W")
    why = "Under load a GPU that draws all the power that it may lowers its clock; that is what the limit is for."
    return [Finding("gpu.power_cap", "power_thermal", "info", text, "", why, "", _SOURCE)]
