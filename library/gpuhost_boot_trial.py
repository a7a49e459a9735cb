#!/usr/bin/python
# SPDX-License-Identifier: MIT
"""Hold the fallback, boot the trial once, promote or undo: see DOCUMENTATION."""

from __future__ import annotations

DOCUMENTATION = r"""
module: gpuhost_boot_trial
short_description: Hold the fallback as default, boot a kernel on trial, promote it or undo
description:
  - V(hold) opens the roll, records the fallback and makes it the explicit boot default before anything is installed.
  - V(boot) sets the loader's one-shot and reboots in the same call. V(prove) proves what was booted.
  - V(promote) makes the trial's kernel what boots by itself.
  - V(boot_fallback) takes back the one-shot, holds the fallback, and reboots where the trial's kernel still runs.
options:
  host_name: {description: Name of the host in the inventory., type: str, required: true}
  run_id: {description: Name of the run., type: str, required: true}
  plan: {description: 'The plan, which opens the roll where none is open.', type: dict}
  action:
    description: What to do.
    type: str
    choices: [hold, boot, prove, promote, boot_fallback]
    required: true
  allowed: {description: The inventory's consent to a reboot., type: bool, default: false}
  controller_boot_id: {description: Boot id of the controller., type: str, default: ""}
  retry_trial: {description: Allow one more trial boot., type: bool, default: false}
  verdict: {description: 'The gate, which only lets V(promote) happen with status pass.', type: dict}
author: gpuhost
attributes:
  check_mode: {support: full, description: Says what would change and changes nothing.}
  diff_mode: {support: full, description: Shows the loader's configuration.}
"""

RETURN = r"""
lines: {description: What differed and was changed, a line each., returned: success, type: list, elements: str}
"""

from dataclasses import replace
from typing import Any

from ansible.module_utils.gpuhost import boot, devices, steps, trial, workloads
from ansible.module_utils.gpuhost.documents import utc_now
from ansible.module_utils.gpuhost.errors import Stop, stop
from ansible.module_utils.gpuhost.host_io import Host
from ansible.module_utils.gpuhost.module import run_module
from ansible.module_utils.gpuhost.rollfile import Roll, load, save

STOP_FOR_GATE_S = 60


def hold(host: Host, params: dict[str, Any], check: bool, roll: Roll) -> steps.Done:
    """Record the fallback once, then make it the explicit default. A promoted kernel is not taken back by a rerun."""
    if roll.is_promoted(host.read_line(trial.RUNNING)):
        return steps.Done(roll)
    fallback = roll.fallback or trial.record_fallback(host, roll.running_before, load(host))
    path, before, after = trial.loader_conf_change(boot.read(host), fallback.entry)
    roll = replace(roll, fallback=fallback)
    if not check:
        save(host, roll)
        trial.clear_own_one_shot(host, roll)
        devices.write_record(host, devices.read_record(host) or roll.majors_before)
        trial.hold_fallback(host, fallback)
    differs = before != after
    lines = (
        (f"default held: {fallback.entry} (was {fallback.policy_before or 'no explicit default'})",) if differs else ()
    )
    diffs = ({"before_header": path, "after_header": path, "before": before, "after": after},) if differs else ()
    return steps.Done(roll, lines, diffs)


def boot_trial(host: Host, params: dict[str, Any], check: bool, roll: Roll) -> steps.Done:
    """One boot of the target, unless it runs already."""
    boot_id = host.read_line(trial.BOOT_ID)
    if host.read_line(trial.RUNNING) == roll.target:
        return steps.Done(roll, answer={"rebooting": False, "boot_id": boot_id})
    may_reboot(host, params)
    trial.may_boot_trial(host, roll, params["retry_trial"])
    if check:
        return steps.Done(roll, (f"would reboot once into {roll.target}",), answer={"rebooting": False})
    roll = trial.armed(host, roll, boot_id)
    save(host, roll)
    trial.start(host, roll)
    line = f"one-shot entry set for {roll.target}, rebooting"
    return steps.Done(roll, (line,), answer={"rebooting": True, "boot_id": boot_id})


def prove(host: Host, params: dict[str, Any], check: bool, roll: Roll) -> steps.Done:
    """What really booted."""
    return steps.Done(roll, tuple(trial.prove_booted(host, roll)), changed=False)


def promote(host: Host, params: dict[str, Any], check: bool, roll: Roll) -> steps.Done:
    """Only a passed gate promotes."""
    verdict = params["verdict"] or {}
    if verdict.get("status") != "pass" or verdict.get("kernel") != roll.target:
        raise stop("gate.not_measured", roll.target, f"gate status {verdict.get('status')}", "pass on this kernel")
    if check:
        return steps.Done(roll, (f"{roll.target} would boot by itself",))
    lines = trial.promote(host, roll)
    return steps.Done(replace(roll, promoted_at=roll.promoted_at or utc_now()), tuple(lines))


def boot_fallback(host: Host, params: dict[str, Any], check: bool, roll: Roll) -> steps.Done:
    """Take the trial back, and leave its kernel where it runs. A promoted kernel is not left by itself."""
    running = host.read_line(trial.RUNNING)
    promoted = roll.is_promoted(running)
    reboots = running != roll.running_before and not promoted
    answer = {
        "rebooting": False,
        "roll_open": not promoted,
        "trial_booted": roll.trial.boots > 0,
        "boot_id": host.read_line(trial.BOOT_ID),
    }
    if check:
        lines = [f"would reboot from {running} to {roll.running_before}"] if reboots else []
        return steps.Done(roll, tuple(lines), answer=answer)
    if promoted:
        return steps.Done(roll, answer=answer)
    if reboots:
        may_reboot(host, params)
    lines = trial.undo(host, roll)
    if reboots:
        lines += stop_what_the_gate_started(host, roll)
        lines.append(f"rebooting from {running} to {roll.running_before}")
        trial.reboot(host)
        answer["rebooting"] = True
    return steps.Done(roll, tuple(lines), answer=answer)


def stop_what_the_gate_started(host: Host, roll: Roll) -> list[str]:
    """A clean stop before the reboot. These containers are not in service: one that hangs does not hold the host."""
    try:
        return workloads.drain(host, roll, STOP_FOR_GATE_S)[1]
    except Stop as error:
        return [f"{error.blocker.object}: {error.blocker.observed}; rebooting all the same"]


def may_reboot(host: Host, params: dict[str, Any]) -> None:
    """Consent, and never the controller's own machine. Raises Stop."""
    if not params["allowed"]:
        raise stop("roll.reboot_not_allowed", params["host_name"], "host_reboot_allowed is not set", "true")
    if host.read_line(trial.BOOT_ID) == params["controller_boot_id"].strip():
        raise stop("roll.controller_on_target", params["host_name"], "has the controller's own boot id", "another")


def is_open(roll: Roll | None) -> bool:
    """Whether there is a roll to go back from."""
    return roll is not None and roll.is_open


ACTIONS = {
    "hold": ("prepare", "hold the fallback as default", hold),
    "boot": ("trial", "boot once into the target", boot_trial),
    "prove": ("trial", "prove what booted", prove),
    "promote": ("promote", "make the new kernel the default", promote),
    "boot_fallback": ("rollback", "boot the old kernel", boot_fallback),
}


def work(host: Host, params: dict[str, Any], check: bool) -> dict[str, Any]:
    """Do one of the actions."""
    stage, step, action = ACTIONS[params["action"]]
    if params["action"] == "boot_fallback" and not is_open(load(host)):
        # What failed came before the roll was opened: nothing has to be taken back.
        return {"changed": False, "rebooting": False, "roll_open": False, "trial_booted": False, "boot_id": ""}
    opens = params["action"] == "hold"
    return steps.run_step(
        host, params, check, stage, step, lambda roll: action(host, params, check, roll), may_open=opens
    )


def main() -> None:
    """Run as a module."""
    arguments = {
        **steps.ARGUMENTS,
        "action": {"type": "str", "choices": list(ACTIONS), "required": True},
        "allowed": {"type": "bool", "default": False},
        "controller_boot_id": {"type": "str", "default": ""},
        "retry_trial": {"type": "bool", "default": False},
        "verdict": {"type": "dict"},
    }
    run_module(arguments, work)


if __name__ == "__main__":
    main()
