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
  - V(promote) makes the trial's kernel what boots by itself, and disarms the dead-man.
  - V(boot_fallback) takes back the one-shot, holds the fallback, and reboots where the trial's kernel still runs.
  - V(come_back) brings a host that runs its old kernel into service again, unless it has done so by itself.
options:
  host_name: {description: Name of the host in the inventory., type: str, required: true}
  run_id: {description: Name of the run., type: str, required: true}
  plan: {description: 'The plan, which opens the roll where none is open.', type: dict}
  action:
    description: What to do.
    type: str
    choices: [hold, boot, prove, promote, boot_fallback, come_back]
    required: true
  allowed: {description: The inventory's consent to a reboot., type: bool, default: false}
  controller_boot_id: {description: Boot id of the controller., type: str, default: ""}
  retry_trial: {description: Allow one more trial boot., type: bool, default: false}
  verdict: {description: 'The gate, which only lets V(promote) happen with status pass.', type: dict}
  program: {description: 'Our own code for the host, base64; filled in by the action plugin.', type: str, default: ""}
  archive: {description: 'The checks, base64; filled in by the action plugin.', type: str, default: ""}
  deadline_s: {description: Seconds of uptime after which an unattended trial reboots., type: int, default: 900}
  maximum_s: {description: Seconds of uptime that renewals may bring the deadline to., type: int, default: 14400}
  force_after_s: {description: Seconds that the reboot at the deadline may take., type: int, default: 120}
  keep_days: {description: Days that the old kernel's packages stay on hold., type: int, default: 14}
  orders: {description: What the host needs to go back into service by itself., type: dict, default: {}}
  failed: {description: 'The way back was not chosen, something failed.', type: bool, default: false}
  roll: {description: 'With V(come_back): the roll that V(boot_fallback) found open.', type: str, default: ""}
  cause: {description: Cause code of what failed., type: str}
  sentence: {description: What failed., type: str, default: ""}
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

from ansible.module_utils.gpuhost import (
    check_runner,
    deadman,
    fallbacks,
    handback,
    homecoming,
    loaders,
    majors_record,
    packages,
    preflight_entry,
    preflight_evidence,
    return_service,
    steps,
    trial,
    units,
    workloads,
)
from ansible.module_utils.gpuhost.documents import as_dict
from ansible.module_utils.gpuhost.errors import Stop, stop
from ansible.module_utils.gpuhost.host_io import Host
from ansible.module_utils.gpuhost.module import run_module
from ansible.module_utils.gpuhost.rollfile import ROLL_FILE, ReturnOrders, Roll, load, save

BY_CHOICE = "rolled back by choice"


def hold(host: Host, params: dict[str, Any], check: bool, roll: Roll) -> steps.Done:
    """Record the fallback once, then make it the explicit default. A promoted kernel is not taken back by a rerun."""
    if roll.is_promoted(host.read_line(trial.RUNNING)):
        return steps.Done(roll)
    deadman.prove_settings(params["deadline_s"], params["maximum_s"], params["force_after_s"])
    if roll.fallback is None and roll.running_before == roll.target:  # the host has finished the plan's roll since
        raise stop("roll.not_open", ROLL_FILE, f"{roll.target} runs already, no roll is left", "an open roll")
    loader = loaders.of(host)
    state = loader.read()
    if state.problems:
        raise Stop(state.problems[0])
    change = fallbacks.held_change(loader, roll.running_before)
    diffs = (change.as_diff(),) if change else ()
    if check:
        lines = [f"{roll.running_before} would be held as the boot default"] if change else []
        return steps.Done(roll, tuple(lines), diffs)
    fallback = roll.fallback
    if fallback is None:
        policy = fallbacks.record_policy(loader, state, roll.running_before, load(host))
        fallback = fallbacks.make(host, loader, roll.running_before, policy)
    roll = replace(roll, fallback=fallback)
    save(host, roll)
    trial.clear_own_one_shot(loader, roll)
    majors_record.write(host, majors_record.read(host) or majors_record.settled({}, roll.majors_before))
    lines = []
    if fallbacks.hold(loader, fallback):
        lines.append(f"default held: {fallback.entry} (was {fallback.policy_before or 'no explicit default'})")
    if not roll.kept_packages:
        roll = replace(roll, kept_packages=packages.keep(host, roll.running_before))
        lines += [f"packages held: {', '.join(roll.kept_packages)}"] if roll.kept_packages else []
    return steps.Done(roll, tuple(lines), diffs)


def boot_trial(host: Host, params: dict[str, Any], check: bool, roll: Roll) -> steps.Done:
    """One boot of the target, unless it runs already. Dead-man and return service are there before the one-shot is."""
    boot_id = host.read_line(trial.BOOT_ID)
    if host.read_line(trial.RUNNING) == roll.target:
        return steps.Done(roll, answer={"rebooting": False, "boot_id": boot_id})
    trial.may_reboot(host, params["host_name"], params["allowed"], params["controller_boot_id"])
    trial.may_boot_trial(host, roll, params["retry_trial"])
    deadman.prove_settings(params["deadline_s"], params["maximum_s"], params["force_after_s"])
    units.prove_no_inhibitor(host)
    if check:
        return steps.Done(roll, (f"would reboot once into {roll.target}",), answer={"rebooting": False})
    prove_still_ready(host, roll)
    loader = loaders.of(host)
    orders = ReturnOrders(**{**params["orders"], "targets": tuple(params["orders"].get("targets", ()))})
    roll = trial.armed(loader, replace(roll, orders=orders), boot_id)
    save(host, roll)
    host.remove(homecoming.RECORD)
    return_service.install(host, params["program"], check_runner.ARCHIVE, params["archive"])
    deadman.install(host)
    deadman.arm(host, roll.target, params["deadline_s"], params["maximum_s"], params["force_after_s"])
    trial.start(host, loader, roll)
    lines = (
        f"dead-man armed: back to {roll.running_before} {params['deadline_s']} s after boot unless a stage renews it",
        f"one-shot entry set for {roll.target}, rebooting",
    )
    return steps.Done(roll, lines, answer={"rebooting": True, "boot_id": boot_id})


def prove_still_ready(host: Host, roll: Roll) -> None:
    """What may have changed since the preflight: somebody's apt, and what the host is to fall back on. Raises Stop."""
    packages.prove_apt_idle(host, f"the reboot into {roll.target}")
    for item in preflight_entry.fallback_proofs(preflight_evidence.Evidence(host, roll)):
        if item.blocks and not item.ok:
            raise stop(item.cause or "", item.name, item.observed, item.expected, item.next_step)


def prove(host: Host, params: dict[str, Any], check: bool, roll: Roll) -> steps.Done:
    """What really booted. A host that is back on its old kernel has come back by itself: with what is known of why."""
    if homecoming.is_back(host, roll):
        raise homecoming.came_back(roll, homecoming.why(host, roll).sentence)
    lines = trial.prove_booted(host, roll)
    # With several ESPs GRUB clears the request on the one that was booted; another would boot the trial once more.
    cleared = not check and trial.clear_one_shot(loaders.of(host))
    return steps.Done(roll, (*lines, *(["one-shot cleared on the other ESPs"] if cleared else [])), changed=cleared)


def promote(host: Host, params: dict[str, Any], check: bool, roll: Roll) -> steps.Done:
    """Only a passed gate promotes."""
    verdict = params["verdict"] or {}
    if verdict.get("status") != "pass" or verdict.get("kernel") != roll.target:
        raise stop("gate.not_measured", roll.target, f"gate status {verdict.get('status')}", "pass on this kernel")
    if check:
        return steps.Done(roll, (f"{roll.target} would boot by itself",))
    roll, lines = handback.promote(host, roll, params["keep_days"])
    return steps.Done(roll, tuple(lines))


def boot_fallback(host: Host, params: dict[str, Any], check: bool, roll: Roll) -> steps.Done:
    """Take the trial back, and leave its kernel where it runs. A promoted kernel is not left by itself."""
    running = host.read_line(trial.RUNNING)
    answer = {"rebooting": False, "boot_id": host.read_line(trial.BOOT_ID), "roll": roll.head.run_id}
    reboots = running != roll.running_before and not roll.is_promoted(running)
    if check:
        lines = [f"would reboot from {running} to {roll.running_before}"] if reboots else []
        return steps.Done(roll, tuple(lines), answer=answer)
    if roll.is_promoted(running):
        return steps.Done(roll, answer=answer)
    if reboots:
        trial.may_reboot(host, params["host_name"], params["allowed"], params["controller_boot_id"])
    if roll.trial.boots and (params["failed"] or not roll.trial.cause):
        # The host may be at the way back before the controller is there again, and has to know why.
        sentence = params["sentence"] or BY_CHOICE
        roll = replace(roll, trial=replace(roll.trial, cause=cause_of(params), sentence=sentence))
        save(host, roll)
    loader = loaders.of(host)
    lines = trial.undo(host, loader, roll)
    if reboots:
        lines += workloads.stop_for_reboot(host, roll)
        lines.append(f"rebooting from {running} to {roll.running_before}")
        trial.reboot(host, loader)
        answer["rebooting"] = True
    return steps.Done(roll, tuple(lines), answer=answer)


def cause_of(params: dict[str, Any]) -> str | None:
    """Why the roll goes back: None where somebody chose it."""
    return (params["cause"] or "host.module_failed") if params["failed"] else None


def come_back(host: Host, params: dict[str, Any], check: bool, roll: Roll) -> steps.Done:
    """Into service on the old kernel. Not where the new one is promoted: there the roll only has to be handed back."""
    running = host.read_line(trial.RUNNING)
    if roll.is_promoted(running):
        return steps.Done(roll)
    if check:
        return steps.Done(roll, (f"would go back into service on {roll.running_before}",))
    reason = homecoming.Reason(params["failed"], cause_of(params), params["sentence"] or BY_CHOICE)
    if roll.trial.cause and not params["failed"]:
        reason = homecoming.why(host, roll)  # a trial that failed before anybody chose to go back
    found = homecoming.come_back(host, roll, reason)
    return steps.Done(found.roll, found.lines, documents=found.documents)


ACTIONS = {
    "hold": ("prepare", "hold the fallback as default", hold),
    "boot": ("trial", "boot once into the target", boot_trial),
    "prove": ("trial", "prove what booted", prove),
    "promote": ("promote", "make the new kernel the default", promote),
    "boot_fallback": ("rollback", "boot the old kernel", boot_fallback),
    "come_back": ("rollback", "back into service", come_back),
}
AFTER_TRIAL = ("prove", "boot_fallback", "come_back")
"""Where the host itself may be at work, or may have ended the roll before the controller came."""


def ended_by_host(params: dict[str, Any], roll: Roll | None) -> Roll | None:
    """The roll that this run follows, where the host itself has ended it on the old kernel; else None."""
    return homecoming.ended_by_host(roll, {(params["plan"] or {}).get("run_id"), params["roll"]}, "good_on_old")


def after_the_end(host: Host, action: str, roll: Roll | None) -> dict[str, Any]:
    """What is left to do where no roll is open: say how the host has ended it, where it has."""
    answer = {"changed": False, "rebooting": False, "boot_id": host.read_line(trial.BOOT_ID), "lines": []}
    if roll is None:
        return answer
    documents = [*homecoming.read_record(host), as_dict(roll), as_dict(homecoming.outcome_of(roll))]
    if action == "prove":
        raise Stop(homecoming.came_back(roll, roll.sentence).blocker, tuple(documents))
    if action == "boot_fallback":
        return answer
    line = f"the host went back into service by itself at {roll.closed_at}"
    return {**answer, "lines": [line], "gpuhost_documents": documents}


def work(host: Host, params: dict[str, Any], check: bool) -> dict[str, Any]:
    """Do one of the actions."""
    action = params["action"]
    stage, step, function = ACTIONS[action]
    late = action in AFTER_TRIAL and not check
    try:
        roll = load(host)
        ended = ended_by_host(params, roll)
        if late and (ended or (action != "prove" and not (roll and roll.is_open))):
            return after_the_end(host, action, ended)
        return steps.run_step(
            host,
            params,
            check,
            stage,
            step,
            lambda now: function(host, params, check, now),
            may_open=action == "hold",
            wait_s=homecoming.LOCK_S if late or action == "hold" else 0,  # a killed controller's gate may still run
        )
    except Stop as error:
        # The host may have ended the roll while this waited for its lock.
        ended = ended_by_host(params, load(host)) if late and error.blocker.cause == "roll.not_open" else None
        if ended is None:
            raise
        return after_the_end(host, action, ended)


def main() -> None:
    """Run as a module."""
    arguments = {
        **steps.ARGUMENTS,
        "action": {"type": "str", "choices": list(ACTIONS), "required": True},
        "allowed": {"type": "bool", "default": False},
        "controller_boot_id": {"type": "str", "default": ""},
        "retry_trial": {"type": "bool", "default": False},
        "verdict": {"type": "dict"},
        "program": {"type": "str", "default": ""},
        "archive": {"type": "str", "default": ""},
        "deadline_s": {"type": "int", "default": deadman.DEADLINE_S},
        "maximum_s": {"type": "int", "default": deadman.MAXIMUM_S},
        "force_after_s": {"type": "int", "default": deadman.FORCE_AFTER_S},
        "keep_days": {"type": "int", "default": packages.KEEP_DAYS},
        "orders": {"type": "dict", "default": {}},
        "failed": {"type": "bool", "default": False},
        "roll": {"type": "str", "default": ""},
        "cause": {"type": "str"},
        "sentence": {"type": "str", "default": ""},
    }
    run_module(arguments, work)


if __name__ == "__main__":
    main()
