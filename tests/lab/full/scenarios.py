"""What a trial can meet, and where each is booted for real. ``docs/test-matrix.md`` has a row for each of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tests.lab import defects

SYSTEMD_BOOT, GRUB, GRUB_LVM = "systemd-boot", "grub", "grub-lvm"
DEADLINE = ("-e", "boot_trial_deadline=100")
EVERY_KERNEL_PANICS = ("-e", '{"boot_config_cmdline": {"init": "/nonexistent", "rdinit": "/nonexistent"}}')
"""With both, a kernel finds neither its initramfs's init nor one on the root, and panics."""


@dataclass(frozen=True)
class Scenario:
    """``plant`` prepares the machine before the upgrade. ``cause`` is None where the new kernel is promoted.

    loaders   where it is booted in ``make test-full``; where ``make test`` has it already, it is not repeated
    sentence  a part of what the roll file has to say
    """

    key: str
    name: str
    cause: str | None
    loaders: tuple[str, ...]
    plant: Callable[[str], None] | None = None
    arguments: tuple[str, ...] = ()
    sentence: str = ""
    controller: bool = True


SCENARIOS = (
    Scenario("a", "good kernel", None, (GRUB, GRUB_LVM)),
    Scenario("b", "early panic", "trial.expired", (GRUB, GRUB_LVM), defects.early_panic),
    Scenario(
        "c",
        "network never comes up",
        "trial.expired",
        (SYSTEMD_BOOT, GRUB),
        defects.no_network,
        DEADLINE,
        "nobody renewed the deadline of 100 s",
    ),
    Scenario("d", "gate fails", "lxc.stale_major", (GRUB,), arguments=("--skip-tags", "reconcile")),
    Scenario(
        "e",
        "controller killed right after the reboot command",
        "trial.expired",
        (SYSTEMD_BOOT, GRUB),
        arguments=DEADLINE,
        sentence="nobody renewed the deadline of 100 s",
        controller=False,
    ),
    Scenario(
        "f",
        "an argument that panics every kernel",
        "trial.expired",
        (SYSTEMD_BOOT, GRUB),
        arguments=EVERY_KERNEL_PANICS,
    ),
    Scenario(
        "g",
        "broken fstab line, emergency mode",
        "trial.expired",
        (SYSTEMD_BOOT, GRUB),
        defects.emergency_mode,
        DEADLINE,
        "system maintenance",
    ),
    Scenario("h", "root not found in the initramfs", "trial.expired", (SYSTEMD_BOOT, GRUB), defects.root_not_found),
    Scenario(
        "i",
        "gate longer than the deadline",
        None,
        (SYSTEMD_BOOT,),
        defects.slow_interpreter,
        (*DEADLINE, "-e", f"gpu_gate_python={defects.SLOW_PYTHON}"),
    ),
)
CASES = [
    (scenario, loader)
    for loader in (SYSTEMD_BOOT, GRUB, GRUB_LVM)
    for scenario in SCENARIOS
    if loader in scenario.loaders
]
