"""``gpu.state_lost``: what was set on a GPU before the last reboot, by whomever, and is not any more.

Every tune, every gate and our unit at boot keep the state as they see it, beside the last one of the boot before.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from . import mig
from .documents import Finding, utc_now
from .gpu_query import Gpu
from .gpu_state import Seen
from .host_io import Host

RECORD = "/var/lib/gpuhost/gpu_state.json"
LOST = "gpu.state_lost"


def state_of(gpu: Gpu, seen: Seen) -> dict[str, str]:
    """What can be set on a GPU, as text. What it does not say is left out: nothing can be said of its loss."""
    switches = {"persistence": gpu.persistence, "ECC": gpu.ecc, "MIG": gpu.mig}
    found = {name: "on" if value else "off" for name, value in switches.items() if value is not None}
    if gpu.power_limit_w is not None:
        found["power limit"] = f"{gpu.power_limit_w:g} W"
    if gpu.application_clocks_mhz is not None:
        found["application clocks"] = ",".join(map(str, gpu.application_clocks_mhz)) + " MHz"
    if gpu.compute_mode is not None:
        found["compute mode"] = gpu.compute_mode
    found["locked clocks"] = seen.locked.get(gpu.address, "none")
    if gpu.mig:
        names = [item.name for item in seen.instances if item.gpu == gpu.index]
        found["MIG instances"] = mig.layout(names) or "none"
    return found


def remember(host: Host, gpus: Sequence[Gpu], seen: Seen, boot_id: str) -> bool:
    """Keep the state as it is now, and that of the last boot before this one; whether the record has changed."""
    states = {gpu.uuid or gpu.address: state_of(gpu, seen) for gpu in gpus}
    if not states:
        return False
    old = load(host)
    if old.get("boot_id") == boot_id:
        before = old.get("before")
        if old.get("gpus") == states:
            return False
    else:
        before = {"boot_id": old["boot_id"], "gpus": old.get("gpus", {})} if old.get("boot_id") else None
    record = {
        "schema": "gpuhost/gpu-state",
        "taken_at": utc_now(),
        "boot_id": boot_id,
        "gpus": states,
        "before": before,
    }
    host.write_atomic(RECORD, (json.dumps(record, indent=2) + "\n").encode(), 0o600)
    return True


def load(host: Host) -> dict[str, Any]:
    """The record; empty where there is none. One that can't be read is as good as none: only findings rest on it."""
    try:
        found = json.loads(host.read(RECORD) or "null")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def before_boot(record: Mapping[str, Any], boot_id: str) -> dict[str, dict[str, str]]:
    """The last known states of an earlier boot, by UUID."""
    source = record if record.get("boot_id") not in (None, boot_id) else record.get("before")
    gpus = source.get("gpus") if isinstance(source, Mapping) else None
    return {key: value for key, value in gpus.items() if isinstance(value, dict)} if isinstance(gpus, dict) else {}


def lost(gpus: Sequence[Gpu], seen: Seen, before: Mapping[str, Mapping[str, str]]) -> Finding:
    """``gpu.state_lost``: what was set before the last reboot and is not now."""
    why = "What was set by hand on a GPU is gone with the reboot; nobody notices before it is slow or hot."
    expected, source = "as before the last reboot", RECORD
    if not seen.known:
        return Finding(LOST, "gpu_state", "unknown", "unknown: needs root", expected, why, "", source)
    if not before:
        text = "unknown: no state was recorded before the last reboot"
        return Finding(LOST, "gpu_state", "unknown", text, expected, why, "gpuhost tune records it", source)
    texts = []
    for gpu in gpus:
        now = state_of(gpu, seen)
        then = before.get(gpu.uuid or gpu.address, {})
        changed = [
            f"{name} was {value}, is {now[name]}" for name, value in then.items() if now.get(name, value) != value
        ]
        texts += [f"{gpu.address}: {', '.join(changed)}"] if changed else []
    present = {gpu.uuid or gpu.address for gpu in gpus}
    texts += [f"{key} is not there any more" for key in before if key not in present]
    if not texts:
        return Finding(LOST, "gpu_state", "good", "nothing", expected, why, "", source)
    fix = "Declare what is meant to stay (gpu_runtime_power_limit_w, ...), then gpuhost tune; or set it again by hand"
    return Finding(LOST, "gpu_state", "p0_runtime", "; ".join(texts), expected, why, fix, source)
