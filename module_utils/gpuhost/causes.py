"""The one registry of cause codes.

A cause is stable text: scripts, dashboards and people's notes refer to it. Each has a sentence for the reader and the
next thing to do. ``docs/causes.md`` is generated from here (``gpuhost causes --markdown``).
"""

from __future__ import annotations

from dataclasses import dataclass

GOOD, FINDINGS, USAGE, BACK_ON_OLD, NEEDS_PERSON, SAFE_STOP = range(6)
"""Exit statuses of the command, see docs/architecture.md "Exit status"."""


@dataclass(frozen=True)
class Cause:
    """One way in which something is not right.

    ``exit_status`` is what a roll that stops with this cause *before the downtime* ends with. Once a host has been
    booted into its trial kernel the outcome of the way back decides instead (``BACK_ON_OLD`` or ``NEEDS_PERSON``).
    """

    code: str
    sentence: str
    next_step: str
    exit_status: int = SAFE_STOP


class UnknownCause(KeyError):
    """A code that is not registered was used: a defect of the caller."""


def _registry(*causes: Cause) -> dict[str, Cause]:
    by_code = {cause.code: cause for cause in causes}
    if len(by_code) != len(causes):
        raise ValueError("a cause code is registered twice")
    return by_code


CAUSES: dict[str, Cause] = _registry(
    # --- input and connection
    Cause(
        "host.unreachable",
        "The host does not answer over ssh.",
        "Check address, port, key and jump host with: ansible -i INVENTORY HOST -m ansible.builtin.ping",
        USAGE,
    ),
    Cause(
        "host.module_failed",
        "A step on the host ended with an error that has no cause code of its own.",
        "Read the message; the run's ansible.log has the whole answer (with -vvv the traceback too).",
    ),
    Cause(
        "host.unit_failed",
        "A unit that the GPU work or its containers rest on has failed already, before the trial: the trial would be "
        "taken back for it.",
        "systemctl status UNIT; then repair it, or disable it where this host does not need it",
    ),
    Cause("host.not_root", "The step needs root.", "Connect as root, or set ansible_become: true for the host.", USAGE),
    Cause("inventory.unreadable", "The inventory can't be read.", "ansible-inventory -i INVENTORY --list", USAGE),
    Cause(
        "inventory.no_hosts",
        "No host of the inventory is in the group to be rolled.",
        "Put the hosts into the group gpu_hosts, or name another with -e gpuhost_hosts=GROUP.",
        USAGE,
    ),
    Cause("input.invalid", "A setting has a value that can't be used.", "Correct the setting that is named.", USAGE),
    # --- plan
    Cause(
        "roll.controller_on_target",
        "The controller runs on the host that it would reboot.",
        "Run the roll from another machine; audit, tune, reconcile and gate are allowed here.",
        USAGE,
    ),
    Cause(
        "roll.reboot_not_allowed",
        "The inventory does not allow this host to be rebooted.",
        "Set host_reboot_allowed: true for the host, or run playbooks/prepare.yml, which needs no downtime.",
        USAGE,
    ),
    Cause(
        "roll.file_unreadable",
        "The roll file on the host can't be read, or a newer gpuhost wrote it.",
        "Look at /var/lib/gpuhost/roll.json on the host; use the gpuhost version that wrote it.",
        NEEDS_PERSON,
    ),
    Cause(
        "roll.other_target",
        "A roll to another kernel is still open on the host.",
        "Finish it with its own --target, or end it with playbooks/rollback.yml.",
    ),
    Cause(
        "roll.busy",
        "Another step of gpuhost still runs on the host, perhaps of a controller that was killed.",
        "Wait for it to end (ps -ef | grep -i ansible), then run the same command again.",
    ),
    Cause(
        "roll.not_open",
        "No roll is open on the host, so there is nothing that this stage could continue.",
        "Start with: gpuhost upgrade, or playbooks/prepare.yml.",
        USAGE,
    ),
    Cause(
        "roll.not_promoted",
        "The new kernel has not passed its gate and been promoted, so the host can't be handed back as good.",
        "Run gpuhost promote, or end the roll on the old kernel: gpuhost rollback",
        USAGE,
    ),
    Cause(
        "target.unknown",
        "No kernel that apt can install matches the target.",
        "Choose one of the series that are listed, or run apt-get update on the host.",
        USAGE,
    ),
    Cause(
        "target.not_newer",
        "The target is older than the running kernel.",
        "Choose a newer target, or go back to this one: gpuhost rollback --to RELEASE",
        USAGE,
    ),
    Cause(
        "target.not_older",
        "The kernel to go back to is not older than the running one.",
        "Go there with: gpuhost upgrade --target RELEASE",
        USAGE,
    ),
    Cause(
        "target.incomplete",
        "Files of the target kernel are gone, although dpkg has its package installed.",
        "Install it again: apt-get install --reinstall PACKAGE",
    ),
    Cause(
        "loader.unsupported",
        "The boot loader of this host is not one that gpuhost can give a trial boot.",
        "This version knows systemd-boot with kernel-install. The host is left untouched.",
        USAGE,
    ),
    Cause(
        "boot.no_space",
        "Too little room for another kernel.",
        "Remove an old kernel (apt-get autoremove --purge), then run the same command again.",
    ),
    Cause(
        "boot.esp_read_only",
        "The ESP can't be written; the kernel remounts a vfat read-only when it finds an error in it.",
        "umount it, fsck.vfat -a on its device (package dosfstools), mount it, then run the same command again.",
    ),
    Cause(
        "boot.esp_list_bad",
        "The list of ESPs has something that proxmox-boot-tool passes over without an error.",
        "Put one UUID a line into /etc/kernel/proxmox-boot-uuids, each with a line end; then proxmox-boot-tool refresh",
    ),
    Cause(
        "boot.esp_unreachable",
        "An ESP on proxmox-boot-tool's list can't be read or written.",
        "Bring its disk back; one that is gone for good goes off the list with: proxmox-boot-tool clean",
    ),
    Cause(
        "boot.esp_differs",
        "The ESPs do not all hold what they should.",
        "Run proxmox-boot-tool refresh and read what it says: it returns 0 where it skips an ESP.",
    ),
    Cause(
        "boot.esp_mixed",
        "The ESPs have different boot loaders, or another one than has booted this machine.",
        "Bring all to one loader: proxmox-boot-tool init PARTITION, or init PARTITION grub. Then boot one of them.",
    ),
    Cause(
        "boot.next_boot_pin",
        "A kernel is pinned for the next boot, which does not fall back when that kernel panics.",
        "Take it back with: proxmox-boot-tool kernel unpin --next-boot, then proxmox-boot-tool refresh",
    ),
    Cause(
        "boot.efi_default_set",
        "The EFI variable LoaderEntryDefault overrides loader.conf.",
        'Remove it with: bootctl set-default ""',
    ),
    Cause(
        "boot.foreign_one_shot",
        "Somebody has set a one-shot boot entry already.",
        'Clear it with: bootctl set-oneshot ""',
    ),
    Cause(
        "boot.fallback_missing",
        "The running kernel has no complete boot entry to fall back to.",
        "Write it with: kernel-install add RELEASE /boot/vmlinuz-RELEASE",
    ),
    Cause(
        "boot.fallback_not_booted",
        "The fallback has other arguments than the running kernel was booted with.",
        "Reboot the host before the roll, so that they are proven; or take the change of the arguments back.",
    ),
    Cause(
        "boot.default_not_held",
        "The boot default did not become the running kernel's entry.",
        "See what the loader has: bootctl list and loader.conf on the ESP, or GRUB_DEFAULT and grub-editenv list.",
    ),
    Cause(
        "boot.entry_missing",
        "The target kernel has no complete boot entry on the ESP.",
        "Look at the output of: kernel-install add TARGET /boot/vmlinuz-TARGET",
    ),
    Cause(
        "boot.cmdline_missing",
        "An argument that was asked for is not on the target's command line.",
        "Look at /etc/kernel/cmdline and at the options line of the entry on the ESP.",
    ),
    Cause(
        "boot.no_panic_reboot",
        "A panic of the target kernel would leave the host dead instead of rebooting it into the old one.",
        "Set boot_config_panic, or take panic=0 out of boot_config_cmdline and /etc/kernel/cmdline.",
    ),
    Cause(
        "loader.no_one_shot",
        "This loader can't boot an entry once from where its files lie.",
        "Mount the ESP on /boot/efi, where the request can be kept. The host is left untouched.",
        USAGE,
    ),
    Cause(
        "boot.loader_failed",
        "A tool of the boot loader ended with an error.",
        "Run the command that is named by hand, repair what it says, then run the same command again.",
    ),
    Cause(
        "grub.config_unreadable",
        "grub.cfg can't be read as GRUB would read it.",
        "Make it again with update-grub; grub-script-check /boot/grub/grub.cfg names the line.",
    ),
    Cause(
        "grub.asks_for_password",
        "GRUB would ask for a password before it boots the entries of a roll.",
        "Set GRUB_DISABLE_SUBMENU=y and put --unrestricted into CLASS in /etc/grub.d/10_linux, then update-grub.",
    ),
    Cause(
        "loader.waits_for_a_key",
        "The boot loader waits at its menu until somebody presses a key.",
        "Set a timeout: GRUB_TIMEOUT (and GRUB_RECORDFAIL_TIMEOUT) with update-grub, or timeout in loader.conf.",
    ),
    Cause(
        "boot.esp_not_booted",
        "The ESP that is mounted is not the one that the machine was booted from.",
        "Mount the ESP that the firmware takes, or put that one first: efibootmgr.",
    ),
    Cause(
        "grub.default_undecided",
        "A condition decides GRUB's default that is only known while GRUB runs.",
        "Remove what sets the default (a script in /etc/grub.d, or custom.cfg), then update-grub.",
    ),
    Cause(
        "grub.defaults_not_understood",
        "A setting in /etc/default/grub or grub.d is no plain assignment.",
        "Write it as a plain assignment: the file and line are named.",
    ),
    Cause(
        "grub.environment_broken",
        "grubenv holds no environment block.",
        "Make it again with: grub-editenv /boot/grub/grubenv create",
    ),
    Cause(
        "boot.one_shot_failed",
        "The loader did not take the request to boot the target once.",
        "Look at what the tool said. The host was not rebooted, and nothing is armed.",
    ),
    Cause(
        "boot.initramfs_missing",
        "The target kernel's initramfs is missing, or older than what goes into it.",
        "Rebuild it with: update-initramfs -u -k TARGET",
    ),
    Cause(
        "boot.initramfs_damaged",
        "The target kernel's initramfs can't be unpacked to its end.",
        "Rebuild it with: update-initramfs -u -k TARGET",
    ),
    Cause(
        "boot.initramfs_tool_missing",
        "The program that unpacks this host's initramfs is not installed, so nothing is known of what is inside.",
        "Install the package that is named (apt-get install zstd), then run the same command again.",
    ),
    Cause(
        "boot.initramfs_foreign_modules",
        "The target kernel's initramfs holds the modules of another kernel.",
        "Rebuild it with: update-initramfs -u -k TARGET",
    ),
    Cause(
        "boot.modprobe_options",
        "A module option that was asked for would not be in force on the target.",
        "Look at the file or the module that is named; then rebuild the initramfs: update-initramfs -u -k TARGET",
    ),
    Cause(
        "boot.module_missing",
        "The target kernel lacks a module that this host needs for its disks or its network.",
        "Install or build the module that is named for the target (linux-modules-extra, dkms autoinstall -k TARGET), "
        "then rebuild its initramfs: update-initramfs -u -k TARGET",
    ),
    Cause(
        "boot.modules_extra_missing",
        "The running kernel has Ubuntu's package of further drivers, the target kernel has not.",
        "Install it: apt-get install linux-modules-extra-TARGET",
    ),
    Cause(
        "boot.depmod_stale",
        "The target's module index does not match its module files, so modprobe would not find them.",
        "Run: depmod TARGET",
    ),
    Cause(
        "boot.kexec_armed",
        "A reboot would jump into a kernel that kexec has loaded, past the boot loader and its one-shot.",
        "Unload it (kexec -u) and set LOAD_KEXEC=false in /etc/default/kexec.",
    ),
    Cause(
        "net.name_unpinned",
        "The network card of the default route may get another name under the target kernel.",
        "Pin it with a .link file: [Match] MACAddress=..., [Link] Name=...",
    ),
    Cause(
        "net.no_default_route",
        "The interface of the default route can't be told, so nothing was proven for the network under the target.",
        "Name the driver of the card that leads to this host (ip route show table all; ethtool -i CARD), then see that "
        "the target has it: modinfo -k TARGET DRIVER",
    ),
    Cause(
        "boot.fallback_changed",
        "Kernel, initrd, options or driver of the fallback are not what they were before the roll.",
        "Do not reboot. Compare with the hashes in the roll file; restore the entry of the running kernel.",
        NEEDS_PERSON,
    ),
    # --- packages and driver
    Cause(
        "apt.failed",
        "apt ended with an error.",
        "Look at the message, repair with apt on the host, then run the same command again.",
    ),
    Cause(
        "apt.locked",
        "Another program holds apt's lock.",
        "Wait for it to end (unattended-upgrades?), then run the same command again.",
    ),
    Cause(
        "apt.would_break",
        "The installation would remove or change packages that keep this host alive.",
        "Read the list of packages; resolve it on the host by hand.",
    ),
    Cause(
        "apt.held",
        "A package that the target needs is on hold.",
        "Decide about the hold yourself (apt-mark unhold PACKAGE), then run the same command again.",
    ),
    Cause(
        "apt.half_configured",
        "Packages on the host are half configured.",
        "Repair them with: dpkg --configure -a",
    ),
    Cause(
        "dkms.headers_missing",
        "No headers for the target kernel, so DKMS would skip the NVIDIA driver without an error.",
        "Make the headers package installable for apt, then run the same command again.",
    ),
    Cause(
        "dkms.not_built",
        "DKMS has not built the driver for the target kernel.",
        "Build it with: dkms autoinstall -k TARGET. Where that fails, its make.log says why; a driver too old for the "
        "kernel has to be upgraded first.",
    ),
    Cause(
        "dkms.module_missing",
        "A module of the NVIDIA driver is missing for the target kernel.",
        "Build it with: dkms autoinstall -k TARGET",
    ),
    Cause(
        "dkms.vermagic",
        "A driver module was built for another kernel.",
        "Remove and build again: dkms build --force -k TARGET",
    ),
    Cause(
        "dkms.version_mismatch",
        "The driver module and its user-space libraries have different versions.",
        "Install the same version of both.",
    ),
    Cause(
        "driver.unsigned",
        "Secure Boot enforces signatures and a driver module has none.",
        "Set DKMS's signing key (mok_signing_key in /etc/dkms/framework.conf), then: dkms build --force -k TARGET",
    ),
    Cause(
        "driver.signer_not_enrolled",
        "A driver module is signed by a key that this machine does not trust.",
        "mokutil --import the key's certificate; it is confirmed at the console during a reboot.",
    ),
    Cause(
        "driver.run_without_dkms",
        "The driver was installed for the running kernel only, and nothing builds it for another one.",
        "Run NVIDIA's installer again with --dkms, or install the driver's packages.",
    ),
    Cause(
        "driver.precompiled_missing",
        "The driver comes as a precompiled package for each kernel, and there is none for the target.",
        "Install the package that is named, or choose a target that has one.",
    ),
    Cause(
        "driver.too_old",
        "The driver is too old to be built for the target kernel.",
        "Upgrade the driver to the version that is named first, or choose an older target.",
    ),
    Cause(
        "driver.wrong_flavour",
        "The driver's open or proprietary kernel modules can't drive the GPUs of this host.",
        "Install the flavour or the version that is named.",
    ),
    Cause(
        "driver.nouveau_not_kept_away",
        "nouveau or nova could take the GPUs before the NVIDIA driver does.",
        "Write 'blacklist nouveau' (nova_core, nova_drm) to /etc/modprobe.d, then: update-initramfs -u -k TARGET",
    ),
    Cause(
        "driver.reboot_pending",
        "The driver's libraries were replaced since the last boot: what is stopped now can't use a GPU on this kernel.",
        "Nothing to do before the roll; a way back to the old kernel ends with the new libraries, too.",
    ),
    Cause(
        "dkms.other_not_built",
        "A DKMS module that the running kernel has is not built for the target; neither boot nor driver need it.",
        "Build it with dkms autoinstall -k TARGET, or remove what nobody uses.",
    ),
    # --- downtime
    Cause(
        "workload.not_stopped",
        "A workload did not stop within its limit; what had been stopped was started again.",
        "Stop it by hand, or raise workload_drain_timeout, then run the same command again.",
    ),
    Cause(
        "workload.blocks",
        "Something runs on the host that this version can't stop and bring back.",
        "Stop it by hand, or set what the message says.",
    ),
    Cause(
        "workload.not_back",
        "What ran before the roll does not run again.",
        "Look at its log (lxc-start -n NAME -F -l INFO).",
        NEEDS_PERSON,
    ),
    Cause(
        "trial.not_back",
        "The host did not come back after the reboot within its limit.",
        "Look at its console; the next power cycle boots the old kernel.",
        NEEDS_PERSON,
    ),
    Cause(
        "trial.wrong_kernel",
        "The host came back with another kernel than the trial's.",
        "It runs the old kernel. Look at the console log of the trial boot.",
        BACK_ON_OLD,
    ),
    Cause(
        "trial.expired",
        "The trial did not hold: the host is back on the old kernel, by a panic or by the dead-man.",
        "Find out why (journalctl -b -1, serial console), then run again with --retry-trial.",
        BACK_ON_OLD,
    ),
    Cause(
        "trial.cmdline",
        "The trial kernel runs without an argument that was asked for.",
        "Compare /proc/cmdline with the boot entry.",
        BACK_ON_OLD,
    ),
    Cause(
        "reboot.hangs_in_shutdown",
        "The host has not gone down for its reboot: it still answers with its old boot id.",
        "Look at its console. host_reboot_sysrq: true lets gpuhost force it.",
        NEEDS_PERSON,
    ),
    Cause(
        "reboot.inhibited",
        "A program on the host asks that it is not shut down now.",
        "See systemd-inhibit --list; let that program finish, then run the same command again.",
        SAFE_STOP,
    ),
    Cause(
        "reboot.ssh_refused",
        "The host is up after the reboot, but its ssh server refuses us.",
        "Compare its host key (ssh-keygen -R HOST) and authorized_keys.",
        NEEDS_PERSON,
    ),
    Cause(
        "reboot.unit_failed",
        "A unit that the GPU work or its containers rest on has failed after the boot.",
        "systemctl status UNIT; journalctl -b -u UNIT",
        BACK_ON_OLD,
    ),
    Cause(
        "reboot.pve_not_ready",
        "Proxmox's /etc/pve is not mounted or not quorate.",
        "systemctl status pve-cluster corosync; pvecm status",
        BACK_ON_OLD,
    ),
    # --- devices in containers
    Cause(
        "lxc.stale_major",
        "A container's device rule names a major number that this kernel has given to somebody else.",
        "Run playbooks/reconcile.yml",
        BACK_ON_OLD,
    ),
    Cause(
        "lxc.leaked_major",
        "A container's stale rule opens a device of another driver to it.",
        "Run playbooks/reconcile.yml",
    ),
    Cause(
        "lxc.config_changed",
        "Somebody else changed the container's config while it was being rewritten.",
        "Run the same command again; nothing was written.",
    ),
    Cause(
        "lxc.rule_missing",
        "A container mounts an NVIDIA device node but has no rule that allows it.",
        "Add the rule to the container's config, or use devN: entries on Proxmox.",
    ),
    # --- checks on devices, see gpu_checks/causes.py
    Cause(
        "driver.not_loaded",
        "The NVIDIA driver, or the part of it that the node belongs to, is not loaded.",
        "modprobe nvidia nvidia-uvm; then look at dmesg.",
        BACK_ON_OLD,
    ),
    Cause("device.node_missing", "An NVIDIA device node does not exist.", "Run playbooks/reconcile.yml", BACK_ON_OLD),
    Cause(
        "device.node_not_char",
        "What should be an NVIDIA device node is something else.",
        "Remove the file; then nvidia-modprobe -c 0 -u",
        BACK_ON_OLD,
    ),
    Cause(
        "device.node_wrong_major",
        "An NVIDIA device node has a major number that is not its driver's.",
        "Run playbooks/reconcile.yml",
        BACK_ON_OLD,
    ),
    Cause(
        "device.denied_cgroup",
        "The container's device rules refuse an NVIDIA device node.",
        "Compare the rules in the container's config with /proc/devices; playbooks/reconcile.yml repairs stale ones.",
        BACK_ON_OLD,
    ),
    Cause(
        "device.denied_mode",
        "The workload's user may not open an NVIDIA device node.",
        "Give the user the node's group, or set the node's mode (options nvidia NVreg_DeviceFileMode).",
        BACK_ON_OLD,
    ),
    Cause(
        "device.open_failed",
        "An NVIDIA device node can't be opened.",
        "Look at dmesg on the host.",
        BACK_ON_OLD,
    ),
    Cause(
        "device.query_failed",
        "An NVIDIA device node opens, but its driver does not answer.",
        "Look at dmesg on the host.",
        BACK_ON_OLD,
    ),
    Cause(
        "device.gpu_count",
        "The number of GPUs is not the expected one.",
        "Compare lspci -d 10de: with ls /dev/nvidia[0-9]*",
        BACK_ON_OLD,
    ),
    # --- gate
    Cause(
        "gate.nothing_required",
        "The inventory does not say which checks this host must pass.",
        "Set gpu_gate_required, for example: [device_access]",
        USAGE,
    ),
    Cause(
        "gate.unknown_check",
        "A check is required that this version does not know.",
        "Choose from: gpuhost checks",
        USAGE,
    ),
    Cause(
        "gate.no_expectation",
        "A required check has nothing to be compared with.",
        "Record a baseline on a host that is known to be good: gpu_gate_first_run: record",
        BACK_ON_OLD,
    ),
    Cause(
        "gate.not_measured",
        "A required check was not measured, and what was not measured has not passed.",
        "Look at the check's own cause.",
        BACK_ON_OLD,
    ),
    Cause(
        "gate.no_target",
        "There is no running container and no host that the checks could run in.",
        "Start the container, or name where to measure with gpu_gate_targets.",
        BACK_ON_OLD,
    ),
    Cause(
        "check.not_in_this_version",
        "The check is known, but this version does not carry it yet.",
        "Leave it out of gpu_gate_required.",
        USAGE,
    ),
    Cause("check.timeout", "A check did not end within its limit and was killed.", "Look at dmesg.", BACK_ON_OLD),
    Cause("check.crashed", "A check ended without an answer.", "Look at its last line of output.", BACK_ON_OLD),
)


def cause(code: str) -> Cause:
    """The registered cause. Raises UnknownCause: an unregistered code is a defect and fails a test."""
    if code not in CAUSES:
        raise UnknownCause(code)
    return CAUSES[code]
