"""What is armed on a host now: roll, default, one-shot, dead-man, return service, holds. Read-only."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from . import deadman, devices_boot, devices_unit, loaders, return_service, workloads
from .documents import make_head
from .host_io import Host
from .rollfile import Roll, load

RUNNING = "/proc/sys/kernel/osrelease"


def read(host: Host, name: str = "", run_id: str = "") -> dict[str, Any]:
    """``status.json``."""
    roll = load(host)
    state = loaders.of(host).read()
    return {
        **asdict(make_head("status", name or (roll.head.host if roll else ""), run_id)),
        "running": host.read_line(RUNNING),
        "roll": None if roll is None else _roll(roll),
        "loader": state.loader,
        "default_entry": state.default_entry,
        "one_shot": state.one_shot,
        "deadman": asdict(deadman.state(host)),
        "return_service": return_service.is_installed(host),
        "autostart_held": host.exists(workloads.HOLD_FILE),
        "devices_at_boot": devices_unit.installed(host),
        "healed_at_boot": devices_boot.healed(host),
    }


def _roll(roll: Roll) -> dict[str, Any]:
    return {
        "state": roll.state,
        "result": roll.result,
        "cause": roll.cause or roll.trial.cause,
        "sentence": roll.sentence or roll.trial.sentence,
        "target": roll.target,
        "running_before": roll.running_before,
        "trial_boots": roll.trial.boots,
        "promoted": roll.promoted_at is not None,
        "last_step": f"{roll.steps[-1].stage}: {roll.steps[-1].step}" if roll.steps else None,
    }


def as_lines(status: dict[str, Any]) -> list[str]:
    """For people, most urgent first."""
    roll, dead = status["roll"], status["deadman"]
    lines = [f"runs {status['running']}, boots {status['default_entry'] or 'what cannot be known'} by itself"]
    if roll is None:
        lines.append("no roll on record")
    elif roll["state"] == "open":
        lines.append(f"roll to {roll['target']} is open, last step {roll['last_step'] or 'none'}")
    else:
        lines.append(
            f"last roll to {roll['target']}: {roll['result']}" + (f", {roll['cause']}" if roll["cause"] else "")
        )
    if roll is not None and roll["state"] == "open" and roll["promoted"]:
        lines.append(f"{roll['target']} is promoted, only the hand back is left")
    if roll is not None and roll["sentence"]:
        lines.append(roll["sentence"])
    if status["one_shot"]:
        lines.append(f"one-shot armed: {status['one_shot']}")
    if dead["armed_for"]:
        lines.append(f"dead-man armed for {dead['armed_for']}, deadline at {dead['deadline_s']} s of uptime")
    if dead["fired"]:
        lines.append(f"dead-man has fired: {dead['fired']}")
    if status["return_service"]:
        lines.append("return service installed")
    if status["autostart_held"]:
        lines.append("autostart of containers is held off")
    if status["devices_at_boot"] != "nothing":
        lines.append(f"before containers start at boot: {status['devices_at_boot']} ({devices_unit.UNIT})")
    healed = status["healed_at_boot"]
    if healed:
        lines.append(f"by itself at the boot of {healed['taken_at']}: {'; '.join(healed['lines'])}")
    return lines


def as_text(status: dict[str, Any]) -> str:
    """The lines as one text."""
    return "\n".join(as_lines(status))
