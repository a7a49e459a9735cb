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
        "lxc.config_locked",
        "Another program has the lock on a container's config, and keeps it.",
        "Wait for it to end, then run the same command again; nothing was written.",
    ),
    Cause(
        "lxc.config_not_written",
        "A container's config could not be written; the old one is there, complete.",
        "Look at df -h for its folder, and at dmesg; then run the same command again.",
    ),
    Cause(
        "lxc.no_quorum",
        "Proxmox's /etc/pve is read-only or not mounted: no guest of this node can be changed or started.",
        "systemctl status pve-cluster corosync; pvecm status",
    ),
    Cause(
        "lxc.rule_missing",
        "A container mounts an NVIDIA device node but has no rule that allows it.",
        "Add the rule to the container's config, or use devN: entries on Proxmox.",
    ),
    Cause(
        "lxc.presumed_stale",
        "A container's device rule is presumed to name an old NVIDIA number: no record says so, and nothing else fits.",
        "Look at the diff, then run playbooks/reconcile.yml with lxc_devices_presumed: apply",
        FINDINGS,
    ),
    Cause(
        "lxc.swap_undecided",
        "Device numbers changed hands among NVIDIA drivers, and nothing tells which driver a container's rule is for.",
        "Mount the container's GPU nodes in its config, as it is to have them; then run playbooks/reconcile.yml",
        FINDINGS,
    ),
    Cause(
        "lxc.driver_not_registered",
        "A container needs a part of the NVIDIA driver that is not loaded, so its number is not known.",
        "Load it (nvidia-modprobe -c 0 -u); then run playbooks/reconcile.yml",
        BACK_ON_OLD,
    ),
    Cause(
        "lxc.rule_access",
        "A container's device rule covers an NVIDIA node with fewer rights than it needs.",
        "Give the rule the missing rights, if the container is to have them.",
        FINDINGS,
    ),
    Cause(
        "lxc.rule_denied",
        "A container mounts an NVIDIA node that one of its rules denies.",
        "Remove the deny rule or the mount.",
        FINDINGS,
    ),
    Cause(
        "lxc.rule_malformed",
        "A device rule of a container has a form that liblxc refuses, and with it the container's start.",
        "Correct the line: type major:minor access, e.g. c 195:* rwm",
        FINDINGS,
    ),
    Cause(
        "lxc.rule_ignored",
        "A line of a container's config looks like a device rule and is not read as one.",
        "Correct the line: the key at column 1, in lower case.",
        FINDINGS,
    ),
    Cause(
        "lxc.foreign_major",
        "A container's rule opens a driver's devices to it that nothing in its config asks for.",
        "Remove the rule, unless the container is to have that device.",
        FINDINGS,
    ),
    Cause(
        "lxc.unowned_major",
        "A container's rule names a number that no driver has; the next one to get it would be open to the container.",
        "Remove the rule if nobody knows what it is for.",
        FINDINGS,
    ),
    Cause(
        "lxc.dead_cgroup_key",
        "A container has device rules under the key of the cgroup version that is not mounted; they have no effect.",
        "Nothing; remove what is left over.",
        FINDINGS,
    ),
    Cause(
        "lxc.allow_all",
        "A container may open every device, the GPU among them; the isolation of devices is off.",
        "Nothing for the GPU; name single devices to have isolation.",
        FINDINGS,
    ),
    Cause(
        "lxc.allow_all_unusual",
        "A rule of type 'a' with numbers is not liblxc's allow-all, and reading does not show what it allows.",
        "Open the nodes inside the container to see what it allows.",
        FINDINGS,
    ),
    Cause(
        "lxc.include",
        "A container's config includes a file that may hold device rules.",
        "Look at the device rules in the included file; after a change restart every container that includes it.",
        FINDINGS,
    ),
    Cause(
        "lxc.include_missing",
        "A container's config includes a file that can't be read, and then the container does not start.",
        "Correct the line, or bring the file back.",
        FINDINGS,
    ),
    Cause(
        "lxc.include_stale",
        "A file of the distribution that a container includes names an old number of an NVIDIA driver.",
        "Move the line into the container's config; then run playbooks/reconcile.yml",
        FINDINGS,
    ),
    Cause(
        "lxc.hook_style",
        "A container gets NVIDIA devices by a hook, a script or an environment variable, which is left alone.",
        "Look whether it names device numbers; after an upgrade test the container's GPU.",
        FINDINGS,
    ),
    Cause(
        "lxc.managed",
        "A container's config is generated by Incus or LXD at each start, and is left alone.",
        "Give the container its GPU with the manager's own device of type gpu.",
        FINDINGS,
    ),
    Cause(
        "lxc.gpu_only_in_snapshot",
        "A container's GPU lines stand in a snapshot's section, where they do nothing.",
        "Mount the container's GPU nodes in its config, if it is to have them.",
        FINDINGS,
    ),
    Cause(
        "lxc.snapshot_stale",
        "A container's snapshot names old numbers; a rollback brings them back.",
        "After a rollback run playbooks/reconcile.yml",
        FINDINGS,
    ),
    Cause(
        "lxc.backup_section",
        "A container's config has a backup's section: a backup runs, or was broken off.",
        "Look whether a backup runs; else pct delsnapshot N vzdump",
        FINDINGS,
    ),
    Cause(
        "lxc.locked",
        "The container's config carries a lock: a job of Proxmox works on it, or was broken off.",
        "Wait for the job, or pct unlock when it is gone; then run the same command again.",
    ),
    Cause(
        "lxc.native_too_old",
        "Proxmox's pve-container is too old for what the devN: entries have to say.",
        "Upgrade pve-container, or leave lxc_devices_style at keep.",
    ),
    Cause(
        "lxc.native_node_missing",
        "A node that is to come by a devN: entry does not exist, and then the container would not start.",
        "Make the node (nvidia-modprobe -c 0 -u; at boot: lxc_devices_at_boot), or remove its mount; then run again.",
    ),
    Cause(
        "lxc.native_mount",
        "A container mounts NVIDIA nodes in a way that devN: entries can't express.",
        "Mount single nodes on their own paths, or leave lxc_devices_style at keep.",
    ),
    Cause(
        "lxc.native_rule",
        "A device rule of the container does not go together with devN: entries.",
        "Change or remove the rule, or leave lxc_devices_style at keep.",
    ),
    Cause(
        "lxc.native_not_right",
        "A node that the container mounts can't be opened by its rules, so nothing says which access it should have.",
        "Run playbooks/reconcile.yml first; rules that are only presumed stale need lxc_devices_presumed: apply.",
    ),
    Cause(
        "lxc.native_closed",
        "By its owner and mode nobody in the container can open a node; a devN: entry would open it to root there.",
        "Give the node on the host the mode that the container needs, or remove its mount.",
    ),
    Cause(
        "lxc.native_hook",
        "Something beside mounts and rules gives the container its nodes: a hook, an include, or an fstab.",
        "Remove it if nothing else needs it (lxc_devices_at_boot makes the nodes at boot), or stay with keep.",
    ),
    Cause(
        "lxc.native_no_index",
        "The container has no free devN: key left.",
        "Remove devN: entries that nobody needs.",
    ),
    # --- checks on devices, see gpu_checks/causes.py
    Cause(
        "driver.not_loaded",
        "The NVIDIA driver, or the part of it that the node belongs to, is not loaded.",
        "On the host: modprobe -a nvidia nvidia-uvm && nvidia-modprobe -c 0 -u || dmesg | tail -n 50; then restart the "
        "container.",
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
        "On the host: run playbooks/reconcile.yml. In a container: mount the node, don't make it in a hook (mknod).",
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
    Cause(
        "driver.gpu_not_started",
        "The driver could not start a GPU.",
        "On the host: dmesg | grep -E 'NVRM|Xid'. Suspects: open or closed modules for this GPU, the firmware's "
        "above-4G decoding and Resizable BAR, the slot.",
        BACK_ON_OLD,
    ),
    # --- the check cuda, in the order of CUDA's own start
    Cause(
        "cuda.library_missing",
        "A library of the driver that CUDA needs can't be loaded where the workload runs.",
        "Where the workload runs: ldconfig -p | grep -E 'libcuda|ptxjit'; install the driver's libraries in the "
        "version of /proc/driver/nvidia/version.",
        BACK_ON_OLD,
    ),
    Cause(
        "cuda.version_mismatch",
        "The workload's libcuda and the host's kernel module are of different driver versions.",
        "Install the container's driver libraries in the version of: cat /proc/driver/nvidia/version",
        BACK_ON_OLD,
    ),
    Cause(
        "cuda.compat_library",
        "CUDA's compatibility libraries are in front of the driver's, on a GPU that does not support them.",
        "Take the compat folder out of LD_LIBRARY_PATH and /etc/ld.so.conf.d, then: ldconfig",
        BACK_ON_OLD,
    ),
    Cause(
        "cuda.device_hidden",
        "CUDA_VISIBLE_DEVICES hides GPUs from the workload; the host is not to blame.",
        "grep -r CUDA_VISIBLE_DEVICES /etc/environment /etc/profile.d /etc/systemd, where the workload runs",
        BACK_ON_OLD,
    ),
    Cause(
        "cuda.fabric_manager",
        "The host's NVSwitch fabric is not ready, so CUDA waits for it.",
        "On the host: systemctl status nvidia-fabricmanager; its version must be the driver's.",
        BACK_ON_OLD,
    ),
    Cause(
        "cuda.system_not_ready",
        "CUDA says that the system is not ready, and no NVSwitch is there that could be why.",
        "On the host: nvidia-smi conf-compute -f; nvidia-smi -q | grep -A 4 Fabric. Don't install a fabric manager.",
        BACK_ON_OLD,
    ),
    Cause(
        "cuda.hmm_failed",
        "HMM support in nvidia-uvm keeps CUDA from starting on this kernel.",
        "On the host: echo 'options nvidia_uvm uvm_disable_hmm=1' >/etc/modprobe.d/nvidia-uvm-hmm.conf && "
        "update-initramfs -u; stop what uses the GPUs, then: rmmod nvidia_uvm && modprobe nvidia_uvm",
        BACK_ON_OLD,
    ),
    Cause(
        "cuda.permission",
        "CUDA starts as root and not as the workload's user; major numbers are not to blame.",
        "As that user: id; ls -l /dev/nvidia* /dev/nvidia-caps",
        BACK_ON_OLD,
    ),
    Cause(
        "cuda.no_device",
        "CUDA finds no GPU, although the device nodes open.",
        "On the host: dmesg | grep -E 'NVRM|Xid'; nvidia-smi -L (MIG without instances shows none, too)",
        BACK_ON_OLD,
    ),
    Cause(
        "cuda.init_failed",
        "CUDA does not start, and nothing that was looked at explains it.",
        "On the host: dmesg | grep -E 'NVRM|Xid|uvm' | tail -n 20",
        BACK_ON_OLD,
    ),
    Cause(
        "cuda.driver_hang",
        "A call of the NVIDIA driver does not return.",
        "On the host: dmesg | grep -E 'NVRM|Xid|blocked for more' | tail -n 20. A process in state D ends with a "
        "reboot only: one, by a person, and no second one for the same hang.",
        BACK_ON_OLD,
    ),
    Cause(
        "cuda.gpu_count",
        "CUDA sees another number of GPUs than expected.",
        "Compare nvidia-smi -L on the host with the nodes where the workload runs: ls /dev/nvidia[0-9]*",
        BACK_ON_OLD,
    ),
    Cause(
        "cuda.context_failed",
        "No CUDA context can be made on a GPU, or it can't be given back.",
        "On the host: dmesg | grep -E 'NVRM|Xid' | tail -n 20",
        BACK_ON_OLD,
    ),
    Cause(
        "cuda.device_busy",
        "A GPU refuses another process, because of its compute mode; it is not broken.",
        "nvidia-smi --query-gpu=index,compute_mode --format=csv; stop what uses the GPU, or: nvidia-smi -c DEFAULT",
        BACK_ON_OLD,
    ),
    Cause(
        "cuda.out_of_memory",
        "A GPU's memory is full, so nothing could be tried on it; it is not broken.",
        "nvidia-smi --query-compute-apps=gpu_uuid,pid,used_memory --format=csv; stop one, then measure again.",
        BACK_ON_OLD,
    ),
    Cause(
        "cuda.allocation_failed",
        "Memory can't be had on a GPU that has some free, or copying to it fails.",
        "On the host: dmesg | grep -E 'NVRM|Xid' | tail -n 20; nvidia-smi -q -d ECC",
        BACK_ON_OLD,
    ),
    Cause(
        "cuda.kernel_failed",
        "A kernel can't be loaded, or does not run to its end, on a GPU.",
        "On the host: dmesg | grep -E 'NVRM|Xid' | tail -n 20; nvidia-smi -q -d ECC",
        BACK_ON_OLD,
    ),
    Cause(
        "cuda.wrong_result",
        "A GPU computes wrong: keep work off it.",
        "On the host: nvidia-smi -q -d ECC,ROW_REMAPPER; dmesg | grep Xid; then test the GPU with: dcgmi diag -r 3",
        BACK_ON_OLD,
    ),
    Cause(
        "cuda.uvm_failed",
        "Managed memory, which CPU and GPU both touch, does not work.",
        "On the host: dmesg | grep -iE 'uvm|Xid' | tail -n 20",
        BACK_ON_OLD,
    ),
    # --- the checks memory, gemm and torch
    Cause(
        "memory.no_room",
        "Too little of a GPU's memory is free to measure it.",
        "See who uses it: nvidia-smi; measure before the workload starts (the gate does), or stop it.",
        BACK_ON_OLD,
    ),
    Cause(
        "memory.wrong_data",
        "A GPU's memory does not hold what was copied or written to it: keep work off it.",
        "On the host: nvidia-smi -q -d ECC,ROW_REMAPPER; dmesg | grep Xid; then test the GPU with: dcgmi diag -r 3",
        BACK_ON_OLD,
    ),
    Cause(
        "memory.failed",
        "A call of CUDA failed while a GPU's memory was measured.",
        "On the host: dmesg | grep -E 'NVRM|Xid' | tail -n 20; then run the check cuda, which says more.",
        BACK_ON_OLD,
    ),
    Cause(
        "gemm.no_room",
        "Too little of a GPU's memory is free for the matrices.",
        "See who uses it: nvidia-smi; measure before the workload starts (the gate does), or stop it.",
        BACK_ON_OLD,
    ),
    Cause(
        "gemm.unsupported",
        "The GPU, or the torch at hand, can't multiply in this number format.",
        "Don't require this figure for this class of hosts (gpu_gate_required), or use a newer torch.",
        BACK_ON_OLD,
    ),
    Cause(
        "gemm.wrong_result",
        "A GPU multiplies matrices wrong: keep work off it.",
        "On the host: nvidia-smi -q -d ECC,ROW_REMAPPER; dmesg | grep Xid; then test the GPU with: dcgmi diag -r 3",
        BACK_ON_OLD,
    ),
    Cause(
        "gemm.failed",
        "A matrix multiplication fails on a GPU.",
        "Read the message; on the host: dmesg | grep -E 'NVRM|Xid' | tail -n 20; then run the checks cuda and torch.",
        BACK_ON_OLD,
    ),
    # --- the check decode
    Cause(
        "decode.bad_model",
        "The model's shapes can't be read, or can't be cut over so many GPUs.",
        "Correct model (a preset, or a config.json's content) and tp in gpu_gate_decode; the message has what fits.",
        BACK_ON_OLD,
    ),
    Cause(
        "decode.no_room",
        "Too little of a GPU's memory is free for a decode step of the model.",
        "See who uses it: nvidia-smi; measure before the server starts, or set a larger tp in gpu_gate_decode.",
        BACK_ON_OLD,
    ),
    Cause(
        "decode.unsupported",
        "The GPU, or the torch at hand, has no kernel for a part of a decode step.",
        "A probe beside the step: nothing, or use a newer torch. The step itself: read the message.",
        BACK_ON_OLD,
    ),
    Cause(
        "decode.wrong_result",
        "A part of a decode step gives a wrong result on a GPU: keep work off it.",
        "Run the checks gemm, memory and torch; on the host: nvidia-smi -q -d ECC,ROW_REMAPPER; dmesg | grep Xid",
        BACK_ON_OLD,
    ),
    Cause(
        "decode.failed",
        "A part of a decode step fails on a GPU.",
        "Read the message; on the host: dmesg | grep -E 'NVRM|Xid' | tail -n 20; then run the checks cuda and torch.",
        BACK_ON_OLD,
    ),
    Cause(
        "decode.part_missing",
        "A part of the decode step was not measured, so there is no sum of all.",
        "See that part's own cause in measurements.json.",
        BACK_ON_OLD,
    ),
    Cause(
        "decode.out_of_time",
        "The parts of the decode step before took so long that this one was not tried.",
        "Look at the parts that took long; on a small GPU: a smaller model, context or batch in gpu_gate_decode.",
        BACK_ON_OLD,
    ),
    Cause(
        "decode.one_gpu",
        "There is only one GPU, so the all-reduce of a decode step can't be measured.",
        "Nothing, if it has one; else run the check cuda, which tells why the others are not seen.",
        BACK_ON_OLD,
    ),
    Cause(
        "decode.one_rank",
        "On one GPU a decode step has no all-reduce.",
        "Nothing; where the model is served by several GPUs, set tp in gpu_gate_decode.",
        BACK_ON_OLD,
    ),
    Cause(
        "decode.slow",
        "A decode step, or a part of it, is slower than its baseline.",
        "See which part (comparisons in verdict.json): products and attention follow memory and clocks (check memory;"
        " nvidia-smi -q -d CLOCK,PERFORMANCE), launches follow the CPU.",
        BACK_ON_OLD,
    ),
    # --- the check allreduce, and NCCL
    Cause(
        "allreduce.one_gpu",
        "There is only one GPU, so there is nothing to reduce over.",
        "Don't require allreduce for this class of hosts (gpu_gate_required); or see why a GPU is missing: check cuda.",
        BACK_ON_OLD,
    ),
    Cause(
        "allreduce.hang",
        "An all-reduce, or what prepares it, does not end.",
        "Run the check p2p; then this one with NCCL_P2P_DISABLE=1: where that ends, IOMMU or ACS blocks GPU to GPU.",
        BACK_ON_OLD,
    ),
    Cause(
        "allreduce.rank_died",
        "The process of a rank died in the middle of an all-reduce.",
        "Read its last line in the message; on the host: dmesg | grep -E 'NVRM|Xid|oom' | tail -n 20",
        BACK_ON_OLD,
    ),
    Cause(
        "allreduce.wrong_data",
        "An all-reduce gives wrong sums: keep work off these GPUs.",
        "Run the checks p2p and cuda, which tell which pair or GPU; IOMMU and ACS corrupt GPU-to-GPU traffic first.",
        BACK_ON_OLD,
    ),
    Cause(
        "allreduce.out_of_time",
        "The sizes before took so long that this one was not tried.",
        "Look at the smaller sizes and at detail.transports: NET or SHM where P2P should be is what makes it slow.",
        BACK_ON_OLD,
    ),
    Cause(
        "allreduce.graph_unsupported",
        "The library of collectives can't be recorded into a CUDA graph.",
        "Measure with NCCL: unset GPU_CHECKS_BACKEND.",
        BACK_ON_OLD,
    ),
    Cause(
        "allreduce.gloo_failed",
        "gloo, the library of collectives for CPUs, failed.",
        "Read the message; then measure with NCCL: unset GPU_CHECKS_BACKEND.",
        BACK_ON_OLD,
    ),
    Cause(
        "nccl.missing",
        "There is no libnccl that can be loaded where the check runs.",
        "Set gpu_gate_python to the Python of the workload's venv; its torch brings NCCL, or nvidia-nccl-cu13 does.",
        BACK_ON_OLD,
    ),
    Cause(
        "nccl.failed",
        "NCCL refuses, or gives up on, an all-reduce.",
        "Read the message, which ends with NCCL's own words; run again with NCCL_DEBUG=INFO; run the check p2p.",
        BACK_ON_OLD,
    ),
    Cause(
        "nccl.driver_too_old",
        "NCCL finds no driver, or is built for a newer CUDA than the driver offers.",
        "Install the NCCL for the CUDA version that nvidia-smi shows (nvidia-nccl-cu12, -cu13), or a newer driver.",
        BACK_ON_OLD,
    ),
    Cause(
        "nccl.shm_full",
        "NCCL gets too little shared memory: /dev/shm is too small, or full.",
        "Where the workload runs: df -h /dev/shm; give the container more (lxc.mount.entry, docker --shm-size).",
        BACK_ON_OLD,
    ),
    Cause(
        "nccl.no_interface",
        "NCCL finds no network interface by which its ranks can find each other.",
        "Where the workload runs: ip link; set NCCL_SOCKET_IFNAME to one of these (lo is enough on one host).",
        BACK_ON_OLD,
    ),
    # --- torch
    Cause(
        "torch.missing",
        "The interpreter that runs the check has no torch.",
        "Set gpu_gate_python to the Python of the workload's venv.",
        BACK_ON_OLD,
    ),
    Cause(
        "torch.broken",
        "torch is installed and can't be imported.",
        "Where the workload runs, with its own Python: python3 -c 'import torch'; then repair that venv.",
        BACK_ON_OLD,
    ),
    Cause(
        "torch.no_cuda",
        "The torch at hand is built without CUDA.",
        "Set gpu_gate_python to the Python of the workload's venv, or install a torch with CUDA there.",
        BACK_ON_OLD,
    ),
    Cause(
        "torch.driver_too_old",
        "The torch at hand is built for a newer CUDA than the driver offers.",
        "Install a torch for the CUDA version that nvidia-smi shows, or a newer driver on the host.",
        BACK_ON_OLD,
    ),
    Cause(
        "torch.arch_missing",
        "The torch at hand has no code for a GPU.",
        "Install a torch whose torch.cuda.get_arch_list() has the GPU's architecture, in the workload's venv.",
        BACK_ON_OLD,
    ),
    Cause(
        "torch.gpu_count",
        "torch sees another number of GPUs than CUDA does.",
        "Where the workload runs: python3 -c 'import torch; print(torch.cuda.device_count())'; compare nvidia-smi -L",
        BACK_ON_OLD,
    ),
    Cause(
        "torch.wrong_result",
        "torch gets a wrong result from a GPU: keep work off it.",
        "On the host: nvidia-smi -q -d ECC,ROW_REMAPPER; dmesg | grep Xid; then test the GPU with: dcgmi diag -r 3",
        BACK_ON_OLD,
    ),
    Cause(
        "torch.failed",
        "torch can't use a GPU on which CUDA itself works.",
        "Read the message; where the workload runs, with its own Python: python3 -m torch.utils.collect_env",
        BACK_ON_OLD,
    ),
    # --- data between GPUs
    Cause(
        "p2p.one_gpu",
        "Only one GPU is visible: there is no pair between which data could move.",
        "Take p2p off gpu_gate_checks for hosts with one GPU; else look for what hides the others (nvidia-smi -L).",
        BACK_ON_OLD,
    ),
    Cause(
        "p2p.wrong_data",
        "Data that was moved between two GPUs is not what was sent.",
        "Let nothing use P2P here. Suspects: IOMMU translation (iommu=pt), NVLink errors (nvidia-smi nvlink -e).",
        BACK_ON_OLD,
    ),
    Cause(
        "p2p.hang",
        "Moving data between two GPUs does not end.",
        "Suspects: ACS (lspci -vvv | grep ACSCtl) and IOMMU (iommu=pt); dmesg | grep -iE 'xid|iommu|dmar'",
        BACK_ON_OLD,
    ),
    Cause(
        "p2p.failed",
        "CUDA ends a transfer between two GPUs with an error, or the process that does it dies.",
        "dmesg | grep -iE 'xid|nvlink|sxid'; nvidia-smi topo -p2p r",
        BACK_ON_OLD,
    ),
    Cause(
        "p2p.no_peer_access",
        "Two GPUs can't reach each other's memory: what they exchange goes through the host.",
        "nvidia-smi topo -p2p r and topo -m say why; on NVSwitch hosts: systemctl status nvidia-fabricmanager",
        BACK_ON_OLD,
    ),
    Cause(
        "p2p.disabled_by_environment",
        "The workload's environment forbids NCCL to move data directly between GPUs.",
        "Take NCCL_P2P_DISABLE and NCCL_P2P_LEVEL out of the workload's environment, unless they are meant.",
        BACK_ON_OLD,
    ),
    Cause(
        "p2p.not_reached",
        "A transfer between GPUs was not tried, because of what went wrong before it.",
        "Look at the pair that failed first, then measure again.",
        BACK_ON_OLD,
    ),
    # --- the audit itself
    Cause(
        "audit.not_read",
        "A part of the host can't be read, so nothing is known about it; all the others were.",
        "Run the audit as root; look at what the finding names.",
        FINDINGS,
    ),
    Cause(
        "tune.not_put_back",
        "Something that was tuned can't be put back as it was before the first tune; the rest was.",
        "Read the reason, repair it, then run gpuhost tune --revert again: what is left is still on record.",
        FINDINGS,
    ),
    # --- tuning: its effects (refusals; ids of findings)
    Cause(
        "tune.live_load",
        "The host is at work: the work would move the numbers, and turning its settings would disturb the work.",
        "Measure when it is idle; tune_effects_under_load: true measures all the same.",
        USAGE,
    ),
    Cause(
        "tune.no_timer",
        "No timer can put old values back if the measurement is killed.",
        "Look at systemctl status; tune_effects_without_timer: true measures all the same, where there is no systemd.",
        USAGE,
    ),
    Cause(
        "tune.deadline",
        "The measurement of a setting took so long that the host has put the old values back by itself.",
        "Look at what keeps the host busy; fewer tune_effects_pairs take less time.",
        FINDINGS,
    ),
    Cause(
        "tune.not_restored",
        "A value that was turned for a measurement can't be put back.",
        "Set it by hand to what is expected; /run/gpuhost/measuring.json has it, and a timer tries again. Where the "
        "device itself is gone: reboot, or remove that file.",
        NEEDS_PERSON,
    ),
    Cause("tune.improves", "A setting was measured to help on this host.", "Nothing to do.", FINDINGS),
    Cause(
        "tune.no_effect",
        "No effect of a setting could be measured on this host; one that is smaller than the noise is not seen.",
        "Nothing to do; leaving it out is as good.",
        FINDINGS,
    ),
    Cause(
        "tune.harmful",
        "A setting was measured to do harm on this host.",
        "Leave it out in the inventory, with the variable that the run names; it stays off until the next plain tune.",
        FINDINGS,
    ),
    Cause(
        "tune.mixed",
        "A setting was measured to help in one place and to harm in another.",
        "Weigh the two; docs/tuning.md says how to leave a setting out.",
        FINDINGS,
    ),
    Cause(
        "tune.not_measured",
        "Something could not be measured, so nothing is known of its effect.",
        "Read the reason; it is that of the host, not a verdict on the setting.",
        FINDINGS,
    ),
    # --- tuning: kernel settings (ids of findings; sysctl.refused is a write that failed)
    Cause("sysctl.value", "A kernel setting has another value than this host should have.", "gpuhost tune", FINDINGS),
    Cause(
        "sysctl.after_boot",
        "A kernel setting is right now, and no file sees to it that it will be after the next boot.",
        "gpuhost tune",
        FINDINGS,
    ),
    Cause(
        "sysctl.overridden",
        "A file that is read after ours sets the same key to another value.",
        "Take the line out of the file that is named, or rename that file so that it sorts before zzz-gpuhost.conf.",
        FINDINGS,
    ),
    Cause(
        "sysctl.not_available",
        "The running kernel does not have this setting.",
        "Nothing to do; null in sysctl_tuning_keys takes it out of the list.",
        FINDINGS,
    ),
    Cause(
        "sysctl.not_on_target",
        "The kernel that the host is to boot later does not have this setting.",
        "Nothing to do; null in sysctl_tuning_keys takes it out of the list.",
        FINDINGS,
    ),
    Cause(
        "sysctl.by_hand",
        "sysctl --system, which is not what a boot does, would set another value.",
        "Take the line out of /etc/sysctl.conf, or leave sysctl --system alone.",
        FINDINGS,
    ),
    Cause(
        "sysctl.other_tool",
        "Another program sets the same kernel settings.",
        "Let one of the two do it: drop the key there, or set it to null in sysctl_tuning_keys.",
        FINDINGS,
    ),
    Cause(
        "sysctl.unreadable",
        "A file that sets kernel settings at boot can't be read.",
        "Run the audit as root.",
        FINDINGS,
    ),
    Cause(
        "sysctl.refused",
        "The kernel has refused a setting; the others were set.",
        "Set the key to null in sysctl_tuning_keys where this kernel or this virtual machine does not allow it.",
        FINDINGS,
    ),
    # --- tuning: CPUs (ids of findings; cpu.refused is a write that failed)
    Cause(
        "cpu.scaling_driver",
        "Another driver sets the CPUs' frequencies than the one for these CPUs.",
        "Set boot_config_cmdline as the finding says, and boot.",
        FINDINGS,
    ),
    Cause("cpu.governor", "The CPUs' frequency governor is another than wanted.", "gpuhost tune", FINDINGS),
    Cause("cpu.epp", "The CPUs' energy preference is another than wanted.", "gpuhost tune", FINDINGS),
    Cause("cpu.boost", "The CPUs' boost above the base frequency is not as wanted.", "gpuhost tune", FINDINGS),
    Cause(
        "cpu.idle_states",
        "CPUs may go into an idle state that takes longer to leave than is wanted.",
        "gpuhost tune; cpu_tuning_max_idle_latency_us says what is wanted",
        FINDINGS,
    ),
    Cause("cpu.huge_pages", "Transparent huge pages are set otherwise than wanted.", "gpuhost tune", FINDINGS),
    Cause(
        "cpu.after_boot",
        "The CPUs' settings are right now, and nothing sees to it that they will be after the next boot.",
        "gpuhost tune",
        FINDINGS,
    ),
    Cause(
        "cpu.other_tool",
        "Another program sets the CPUs' frequencies or idle states.",
        "Let one of the two do it: switch the other off, or set ours to keep (cpu_tuning_*).",
        FINDINGS,
    ),
    Cause(
        "cpu.refused",
        "The kernel has refused a setting of a CPU; the others were set.",
        "Read the reason; where this driver does not take the value, choose another (cpu_tuning_*).",
        FINDINGS,
    ),
    # --- PCIe: see pcie_findings.py
    Cause(
        "pcie.max_read_request",
        "A GPU or a bridge above it has another MaxReadReq than the inventory asks for.",
        "gpuhost tune, or the role pcie_tuning; its effect is not known before it was measured: gpuhost tune --measure",
        FINDINGS,
    ),
    Cause(
        "pcie.not_writable",
        "A device does not take another MaxReadReq.",
        "Leave it as it is: pcie_tuning_bridges: false for ports, pcie_tuning_devices to name the GPUs that do.",
        FINDINGS,
    ),
    Cause(
        "pcie.no_answer",
        "A device answers 0xffff to every read: it has fallen off the bus, or has no power. Nothing is written to it.",
        "dmesg | grep -E 'Xid|NVRM|AER|pcieport'; then a power cycle of the host, not only a reboot",
        FINDINGS,
    ),
    Cause(
        "pcie.device_missing",
        "A GPU that the inventory names is not on the bus.",
        "lspci -D -d 10de: ; then correct pcie_tuning_devices, or look at dmesg for why it is gone",
        FINDINGS,
    ),
    Cause(
        "pcie.locked_down",
        "The kernel is locked down (as with Secure Boot) and lets nobody write to PCI configuration space.",
        "pcie_tuning_max_read_request_bytes: 0 is the way to live with it; only a boot without lockdown changes it.",
        FINDINGS,
    ),
    Cause(
        "pcie.bus_perf",
        "The kernel holds MaxReadReq down to MaxPayload (pci=pcie_bus_perf), and reads break where it is raised.",
        "Take pcie_bus_perf off the kernel's command line, or set pcie_tuning_max_read_request_bytes: 0",
        FINDINGS,
    ),
    Cause(
        "pcie.link_width",
        "A GPU's link has fewer lanes than both of its ends can do.",
        "lspci -D -vv -s ADDRESS | grep -E 'LnkCap|LnkSta'; then power off and look at riser, slot and seat",
        FINDINGS,
    ),
    Cause(
        "pcie.link_speed",
        "A GPU's link is slower than both of its ends can do.",
        "Look again under load: nvidia-smi --query-gpu=pci.bus_id,pcie.link.gen.current --format=csv",
        FINDINGS,
    ),
    Cause(
        "pcie.relaxed_ordering",
        "Relaxed ordering is off on a GPU.",
        "Look in the firmware's setup for PCIe relaxed ordering; the driver leaves it as it finds it.",
        FINDINGS,
    ),
    Cause("pcie.no_snoop", "No-snoop is off on a GPU.", "Nothing to do: a hypervisor turns it off.", FINDINGS),
    Cause(
        "pcie.max_payload",
        "Not all devices on a GPU's path have the same MaxPayload.",
        "Nothing to do as long as it works: the kernel's pci=pcie_bus_safe makes them equal at the next boot.",
        FINDINGS,
    ),
    Cause(
        "pcie.bridges",
        "Bridges above a GPU that are only listed, or are not shown.",
        "Nothing to do: they issue no reads of their own.",
        FINDINGS,
    ),
    Cause(
        "pcie.acs",
        "What the bridges above a GPU redirect (Access Control Services).",
        "Not ours to change: isolation for passthrough rests on it. Where P2P is slow: lspci -vvv | grep ACSCtl",
        FINDINGS,
    ),
    Cause(
        "pcie.aer",
        "What the devices on a GPU's path have reported as errors.",
        "Watch whether it grows: grep . /sys/bus/pci/devices/ADDRESS/aer_dev_*",
        FINDINGS,
    ),
    Cause(
        "pcie.left_alone",
        "Devices that look as if they were to be tuned, and are not.",
        "Nothing to do; pcie_tuning_devices names a GPU that is to be tuned all the same.",
        FINDINGS,
    ),
    # --- audit: ids of findings that no tuning belongs to
    Cause("firmware.version", "The board, and its firmware.", "Compare it with the vendor's latest.", FINDINGS),
    Cause(
        "firmware.iommu",
        "How the IOMMU treats the GPUs that the host itself uses.",
        "Where they are translated: boot_config_cmdline: {iommu: pt}, then boot.",
        FINDINGS,
    ),
    Cause(
        "firmware.resizable_bar",
        "How much of its memory a GPU shows on the bus (BAR1).",
        "Where it is less than the card offers: Above 4G Decoding and Resizable BAR on in the firmware's setup.",
        FINDINGS,
    ),
    Cause("firmware.smt", "Whether cores run two threads.", "Nothing to do.", FINDINGS),
    Cause("firmware.numa", "NUMA nodes and sockets.", "Nothing to do.", FINDINGS),
    Cause("firmware.secure_boot", "Whether Secure Boot is on.", "Nothing to do.", FINDINGS),
    Cause("firmware.lockdown", "Whether the kernel is locked down.", "Nothing to do.", FINDINGS),
    Cause("driver.version", "The loaded driver, or why there is none.", "Nothing to do.", FINDINGS),
    Cause("driver.parameters", "The driver's parameters that are not at their defaults.", "Nothing to do.", FINDINGS),
    Cause(
        "kernel.old",
        "Another kernel runs than the newest one that is installed.",
        "gpuhost upgrade --target RELEASE",
        FINDINGS,
    ),
    Cause(
        "kernel.update_available",
        "Whether apt has a newer kernel of the running flavour.",
        "gpuhost plan --target RELEASE shows what a roll would do.",
        FINDINGS,
    ),
    Cause("interconnect.nvlink", "How GPUs are linked.", "Nothing to do.", FINDINGS),
    Cause(
        "interconnect.fabric_down",
        "There are NVSwitches, and no GPU is linked to them.",
        "systemctl status nvidia-fabricmanager; nvidia-smi nvlink -s",
        FINDINGS,
    ),
    Cause(
        "interconnect.p2p",
        "Whether the driver allows GPUs to reach each other's memory.",
        "Whether it works is measured: gpuhost gate",
        FINDINGS,
    ),
    Cause("interconnect.numa", "Which NUMA node each GPU is at.", "Nothing to do.", FINDINGS),
    Cause(
        "interconnect.lookalike",
        "A device that may be taken for a part of the interconnect, and what it is.",
        "Nothing to do.",
        FINDINGS,
    ),
    Cause("containers.gpus", "The containers that get GPUs.", "Nothing to do.", FINDINGS),
    Cause(
        "containers.autostart",
        "A container with GPUs runs, and no boot starts it.",
        "Proxmox: pct set VMID --onboot 1; plain LXC: lxc.start.auto = 1 in its config.",
        FINDINGS,
    ),
    Cause(
        "containers.device_rules",
        "Whether the containers' device rules name this kernel's majors.",
        "Run playbooks/reconcile.yml",
        FINDINGS,
    ),
    Cause(
        "containers.boot_unit",
        "Whether the host makes device nodes and rules fit at each boot by itself.",
        "lxc_devices_at_boot: reconcile, then run playbooks/reconcile.yml",
        FINDINGS,
    ),
    Cause("serving.servers", "The inference servers that run.", "Nothing to do.", FINDINGS),
    Cause("serving.libraries", "What a server has loaded can't be read.", "Run the audit as root.", FINDINGS),
    Cause(
        "serving.nccl",
        "Which NCCL a server has loaded; more than one is a fault.",
        "Take LD_PRELOAD, VLLM_NCCL_SO_PATH or the second package away, then restart the server.",
        FINDINGS,
    ),
    Cause(
        "serving.preload_lost",
        "LD_PRELOAD names a library that the server does not have.",
        "Correct the path as it is inside the container, or take it out.",
        FINDINGS,
    ),
    Cause(
        "serving.replaced_library",
        "A library was replaced under a running server.",
        "Restart the server when it suits.",
        FINDINGS,
    ),
    Cause(
        "serving.flags",
        "Whether a server runs with the flags that it was declared to have.",
        "Correct how it is started, then restart it; or correct host_audit_serving_flags.",
        FINDINGS,
    ),
    Cause(
        "serving.not_running",
        "No server runs that host_audit_serving_flags is about.",
        "Start it, or correct host_audit_serving_flags.",
        FINDINGS,
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
        "gate.one_gpu",
        "A check of data between GPUs is required where there is one GPU alone: it can never pass.",
        "Leave it out of this host's gpu_gate_required, or name with gpu_gate_targets what has several GPUs.",
        USAGE,
    ),
    Cause(
        "gate.nothing_recorded",
        "A required check has no baseline on this host and no gpu_gate_expect: its gate could only fail.",
        "Before the roll, on the kernel that runs: gpuhost gate -e gpu_gate_first_run=record; or set gpu_gate_expect.",
        USAGE,
    ),
    Cause(
        "gate.limit_missed",
        "A value is beyond the limit that it has to keep.",
        "Look at the table in verdict.json: now, baseline, limit. docs/gate.md says how to accept a new value.",
        BACK_ON_OLD,
    ),
    Cause(
        "gate.part_missing",
        "A part of a check has a baseline, and was not measured now.",
        "See what the check says of it; where it is gone for good: gpuhost gate -e gpu_gate_baseline=replace",
        BACK_ON_OLD,
    ),
    Cause(
        "gate.expectation_unmatched",
        "gpu_gate_expect names a measurement that nobody has made.",
        "Correct the name: measurements.json of the run has all of them.",
        BACK_ON_OLD,
    ),
    Cause(
        "gate.baseline_unreadable",
        "The host's file of baselines can't be read, or a newer gpuhost wrote it.",
        "Use the gpuhost that wrote it; or move /var/lib/gpuhost/baselines.json away, then record again on a host that "
        "is known to be good: gpuhost gate -e gpu_gate_first_run=record",
    ),
    Cause(
        "p2p.slow",
        "Data moves between two GPUs more slowly than it has to.",
        "nvidia-smi topo -m; nvidia-smi nvlink -s; link width and speed: nvidia-smi -q -d PCIE. Then gpuhost audit.",
        BACK_ON_OLD,
    ),
    Cause(
        "p2p.collapse",
        "Each pair of GPUs is fast alone, and several transfers at once break down.",
        "lspci -vv of the bridges above the GPUs (ACSCtl, MaxReadReq, width); nvidia-smi topo -m. Then gpuhost audit.",
        BACK_ON_OLD,
    ),
    Cause(
        "memory.slow",
        "A GPU's memory is slower than it has to be.",
        "nvidia-smi -q -d CLOCK,PERFORMANCE,TEMPERATURE: clocks held down? Is somebody else using the GPU?",
        BACK_ON_OLD,
    ),
    Cause(
        "gemm.slow",
        "A GPU multiplies matrices more slowly than it has to.",
        "nvidia-smi -q -d CLOCK,PERFORMANCE,POWER: power limit, clocks held down? Another torch in the workload?",
        BACK_ON_OLD,
    ),
    Cause(
        "allreduce.slow",
        "A collective over all GPUs takes longer than it has to.",
        "Look at the check p2p first; then NCCL's version and NCCL_ variables of the workload, and the CPU's governor.",
        BACK_ON_OLD,
    ),
    Cause(
        "gpu.persistence_daemon",
        "nvidia-persistenced is not there, not enabled, or not ordered before containers.",
        "gpuhost tune; where it is not installed: the driver's nvidia-persistenced or nvidia-compute-utils package",
        FINDINGS,
    ),
    Cause(
        "gpu.persistence_mode",
        "Persistence mode is off: the driver gives up a GPU's state as soon as nobody uses it.",
        "gpuhost tune, or: nvidia-smi -pm 1",
        FINDINGS,
    ),
    Cause(
        "gpu.peermem",
        "Whether GPUDirect RDMA has what it needs: nvidia-peermem, or DMA-BUF.",
        "gpuhost tune, or: modprobe nvidia-peermem",
        FINDINGS,
    ),
    Cause(
        "containers.memlock",
        "A container with GPUs may lock too little memory for RDMA.",
        "gpu_runtime_memlock: apply, or add the line that is named; then restart the container.",
        FINDINGS,
    ),
    Cause(
        "gpu.service_memlock",
        "A process with GPUs may lock too little memory for RDMA.",
        "LimitMEMLOCK=infinity in a drop-in of its service (gpu_runtime_memlock: apply), then restart it.",
        FINDINGS,
    ),
    Cause(
        "gpu.uvm_hmm",
        "HMM of nvidia-uvm is on, and is expected to be off, or keeps CUDA from starting.",
        "boot_config_modprobe_options: {nvidia_uvm: {uvm_disable_hmm: '1'}}, then prepare and reboot.",
        FINDINGS,
    ),
    Cause(
        "gpu.power_limit",
        "A GPU's power limit is not as declared.",
        "gpuhost tune",
        FINDINGS,
    ),
    Cause(
        "gpu.locked_clocks",
        "A GPU's clock is not locked as declared.",
        "gpuhost tune",
        FINDINGS,
    ),
    Cause(
        "gpu.application_clocks",
        "A GPU's application clocks are not as declared.",
        "gpuhost tune",
        FINDINGS,
    ),
    Cause(
        "gpu.mig_layout",
        "A GPU's MIG instances are not as declared.",
        "gpuhost tune, while nothing uses the GPUs; instances of others have to go by hand.",
        FINDINGS,
    ),
    Cause(
        "gpu.mig_mode",
        "MIG instances are declared, and MIG mode is off. gpuhost never switches it.",
        "Drain the host; nvidia-smi -i GPU -mig 1; reset or reboot; then gpuhost tune",
        FINDINGS,
    ),
    Cause(
        "gpu.boot_unit",
        "Nothing on the host sets what is declared at the next boot.",
        "gpuhost tune",
        FINDINGS,
    ),
    Cause(
        "gpu.refused",
        "The driver, systemd or the kernel has not taken a setting for GPUs.",
        "Read the reason; dmesg | grep NVRM; journalctl -b -u gpuhost-gpu-state",
        FINDINGS,
    ),
    Cause(
        "gpu.out_of_range",
        "A value is declared that this GPU can't have. Nothing was set.",
        "nvidia-smi -q -d POWER,CLOCK shows its range; correct gpu_runtime_*.",
        USAGE,
    ),
    Cause(
        "gpu.not_answering",
        "A GPU does not answer its driver, or has no driver.",
        "dmesg | grep -E 'NVRM|Xid'; then a reset (nvidia-smi -r), a reboot, or a power cycle",
        FINDINGS,
    ),
    Cause(
        "gpu.state_lost",
        "Something was set on a GPU before the last reboot, and is not any more.",
        "Declare it (gpu_runtime_power_limit_w and others) and run gpuhost tune, or set it again by hand.",
        FINDINGS,
    ),
    Cause(
        "gpu.ecc_errors",
        "A GPU has counted uncorrectable memory errors.",
        "Stop what uses it and reset it (nvidia-smi -i GPU -r); where they come back: dcgmi diag -r 3, replace.",
        FINDINGS,
    ),
    Cause(
        "gpu.ecc_mode",
        "A GPU's ECC is off, or will be another one after the next reset.",
        "nvidia-smi -i GPU -e 1 and a reboot, where that is meant.",
        FINDINGS,
    ),
    Cause(
        "gpu.row_remap",
        "Rows of a GPU's memory wait to be replaced, or can't be any more.",
        "Reset the GPU or reboot; where remapping has failed, replace it (nvidia-smi -q -d ROW_REMAPPER).",
        FINDINGS,
    ),
    Cause(
        "gpu.retired_pages",
        "Pages of a GPU's memory wait to be retired.",
        "Reset the GPU or reboot (nvidia-smi -q -d PAGE_RETIREMENT).",
        FINDINGS,
    ),
    Cause(
        "gpu.recovery_action",
        "The driver says that a GPU needs something to work again.",
        "Do what it says: nvidia-smi --query-gpu=index,gpu_recovery_action --format=csv",
        FINDINGS,
    ),
    Cause(
        "gpu.throttle",
        "A GPU is slowed down by heat, or by its power supply.",
        "Check fans, air flow and power supplies: nvidia-smi -q -d PERFORMANCE,TEMPERATURE",
        FINDINGS,
    ),
    Cause(
        "gpu.temperature",
        "How hot the GPUs are, and how far from their limit.",
        "Check fans, air flow and inlet temperature.",
        FINDINGS,
    ),
    Cause(
        "gpu.power_cap",
        "A GPU draws all the power that its limit gives it.",
        "Nothing to do: that is what a limit is for.",
        FINDINGS,
    ),
    Cause(
        "gpu.xid",
        "The driver has reported a fault of a GPU since boot.",
        "Do what is said beside its number; docs.nvidia.com/deploy/xid-errors has all of them.",
        FINDINGS,
    ),
    Cause(
        "gpu.xid_minor",
        "The driver has reported faults since boot that are a program's own in most cases.",
        "Look at the process that the kernel log names: dmesg | grep Xid",
        FINDINGS,
    ),
    Cause(
        "nvml.missing",
        "NVML (libnvidia-ml.so.1) can't be loaded where the check runs.",
        "Give the container the host driver's libnvidia-ml.so.1 (NVIDIA_DRIVER_CAPABILITIES with utility).",
        BACK_ON_OLD,
    ),
    Cause(
        "nvml.failed",
        "NVML does not start.",
        "Run nvidia-smi there: it says the same in more words; dmesg | grep NVRM",
        BACK_ON_OLD,
    ),
    Cause(
        "gpu.in_use",
        "Another process uses a GPU, so what is measured on it now is not what it can do.",
        "Stop what is named, or measure again when it is idle.",
        BACK_ON_OLD,
    ),
    Cause(
        "health.gpu_missing",
        "A GPU that should be here is lost, or NVML does not show it.",
        "dmesg | grep -E 'NVRM|Xid'; then a reset (nvidia-smi -r), a reboot, or a power cycle",
        BACK_ON_OLD,
    ),
    Cause(
        "health.recovery_action",
        "The driver says that a GPU needs something to work again.",
        "Do what it says: nvidia-smi --query-gpu=index,gpu_recovery_action --format=csv",
        BACK_ON_OLD,
    ),
    Cause(
        "health.row_remap",
        "Rows or pages of a GPU's memory wait to be replaced, or can't be any more.",
        "Reset the GPU or reboot; where remapping failed, replace it (nvidia-smi -q -d ROW_REMAPPER,PAGE_RETIREMENT).",
        BACK_ON_OLD,
    ),
    Cause(
        "health.ecc",
        "A GPU has counted uncorrectable memory errors.",
        "Stop what uses it and reset it (nvidia-smi -i GPU -r); where they come back: dcgmi diag -r 3, replace.",
        BACK_ON_OLD,
    ),
    Cause(
        "health.xid",
        "The driver has reported a fault of a GPU since boot.",
        "Look its number up in docs.nvidia.com/deploy/xid-errors; mostly a reset or a reboot, then dcgmi diag -r 3.",
        BACK_ON_OLD,
    ),
    Cause(
        "health.throttle",
        "A GPU is slowed down by heat, or by its power supply.",
        "Check fans, air flow and power supplies: nvidia-smi -q -d PERFORMANCE,TEMPERATURE",
        BACK_ON_OLD,
    ),
    Cause(
        "health.link_width",
        "A PCIe link of a GPU runs with fewer lanes than both its ends have.",
        "Check seating, riser and bifurcation in the firmware; lspci -vv -s ADDRESS shows LnkCap and LnkSta.",
        BACK_ON_OLD,
    ),
    Cause(
        "health.link_speed",
        "A PCIe link of a GPU runs slower under load than both its ends can.",
        "Check riser, seating and the slot's speed in the firmware; lspci -vv -s ADDRESS shows LnkCap and LnkSta.",
        BACK_ON_OLD,
    ),
    Cause(
        "health.link_unknown",
        "What a GPU's PCIe link could do is not to be seen here, or no data could be sent over it.",
        "Run the check on the host; in a virtual machine nothing tells what the slot can do.",
        BACK_ON_OLD,
    ),
    Cause(
        "health.nvlink_down",
        "An NVLink of a GPU is down.",
        "nvidia-smi nvlink -s; check the bridge or the fabric manager; then a reset (nvidia-smi -r) or a reboot",
        BACK_ON_OLD,
    ),
    Cause(
        "check.no_such_user",
        "The workload's user is not known where the checks run.",
        "Set gpu_gate_user to a name or uid of that system's /etc/passwd (getent passwd there shows them).",
        BACK_ON_OLD,
    ),
    # --- known faults of decode steps (gpuhost trace)
    Cause(
        "trace.cast",
        "Tensors are cast or copied in each step. The known fault is an FP8 KV cache whose whole pool is cast to BF16 "
        "for an attention that can't read FP8: its cost follows the size of the pool, not the context.",
        "Take a second trace with half the pool (SGLang --mem-fraction-static, vLLM --gpu-memory-utilization): if the "
        "cast takes half the time it is the pool. Then use an attention backend that reads FP8, or a BF16 KV cache.",
        FINDINGS,
    ),
    Cause(
        "trace.dispatch_bound",
        "The GPU waits between kernels for the next launch: the CPU launches them one by one, without a CUDA graph.",
        "Let the engine capture its decode steps (SGLang: no --disable-cuda-graph, a --cuda-graph-max-bs above the "
        "batch; vLLM: no --enforce-eager); gpuhost audit says whether the CPU's settings slow the launches.",
        FINDINGS,
    ),
    Cause(
        "trace.graph_gaps",
        "The kernels come from CUDA graphs, and are so short that the gaps between them cost as much as they do. The "
        "profiler itself adds about 1 us to each.",
        "Compare the step without the profiler (gpuhost serve-check); larger batches and fused kernels help, the CPU "
        "does not.",
        FINDINGS,
    ),
    Cause(
        "trace.host_gap",
        "The GPU waits for the host in long gaps: the scheduler, Python between the steps, a synchronisation, or a "
        "process that is not on its CPU.",
        "Look at what stands before and after the longest gaps; then SGLang's overlap scheduler or vLLM's async "
        "scheduling, gpuhost audit for the CPU's settings, and whether something else has its cores.",
        FINDINGS,
    ),
    Cause(
        "trace.no_graph",
        "So many kernels are launched one by one that the CPU's work for them is a part of each step.",
        "Let the engine capture its decode steps in CUDA graphs (SGLang: no --disable-cuda-graph; vLLM: no "
        "--enforce-eager).",
        FINDINGS,
    ),
    Cause(
        "trace.collective",
        "All-reduces or other collectives take a large part of the step.",
        "Compare their mean with what this host measures: playbooks/gate.yml --tags allreduce; then peer-to-peer "
        "access between the GPUs (--tags p2p), the engine's custom all-reduce, and a smaller TP size.",
        FINDINGS,
    ),
    Cause(
        "trace.spinning",
        "A collective spins: the GPU looks fully used at the power of an idle one, because it waits for another rank.",
        "Read the traces of all ranks in one call: the rank with the least time in collectives is the one the others "
        "wait for; then dmesg there for Xid, and its CPU.",
        FINDINGS,
    ),
    Cause(
        "trace.straggler",
        "One GPU comes last to the collectives, and the others wait for it.",
        "Look at this GPU alone: its clocks and throttle reasons (nvidia-smi -q -d PERFORMANCE), its PCIe link, the "
        "CPU that its process runs on, and whether it has more work than the others.",
        FINDINGS,
    ),
    Cause(
        "trace.quantise",
        "A kernel of its own quantises the input of each GEMM, and together they take a large part of the step.",
        "Use a build or backend that fuses the quantisation into norm and activation, or static scales; for a batch of "
        "one BF16 may be faster.",
        FINDINGS,
    ),
    Cause(
        "trace.host_copies",
        "Data are copied between host and GPU within the step; each copy from or to pageable memory waits for the GPU.",
        "Find the caller (profile with with_stack, or the CPU's row in the trace): .item(), .cpu(), .tolist(), a "
        "tensor made from a list in each step; a KV cache that is offloaded to the host looks the same.",
        FINDINGS,
    ),
    Cause(
        "trace.cpu_sampling",
        "The next token is chosen on the CPU, while the GPU has nothing to do.",
        "Use the engine's GPU sampler; look for a logits processor or a grammar of one's own that takes the logits to "
        "the CPU.",
        FINDINGS,
    ),
    # --- serve-check
    Cause(
        "serve.not_ready",
        "The inference server did not answer within the time to wait.",
        "Read its log. Compiling kernels after a change of kernel or driver takes minutes: --wait gives it longer.",
        USAGE,
    ),
    Cause(
        "serve.unauthorized",
        "The inference server wants another API key.",
        "Put the key into a file for --api-key-file, or into the variable that --api-key-env names.",
        USAGE,
    ),
    Cause(
        "serve.wrong_model",
        "The model that was asked for is not the one that is served.",
        "Choose one of those listed with --model; if it should be there, look at the server's own command line.",
        USAGE,
    ),
    Cause(
        "serve.rejected",
        "The inference server rejects the question.",
        "Read what it says: a base model has no chat template (--api completions), a short context needs a smaller "
        "--prompt-words or --max-tokens, another path belongs into the URL.",
        USAGE,
    ),
    Cause(
        "serve.not_openai",
        "What answers there is no OpenAI-compatible inference server.",
        "Check host, port and path with: curl URL/v1/models",
        USAGE,
    ),
    Cause(
        "serve.server_error",
        "The inference server reports an error of its own.",
        "Read its log from the time of the error; then dmesg for Xid lines, and: gpuhost gate -i INVENTORY",
        FINDINGS,
    ),
    Cause(
        "serve.gone",
        "The inference server's process has ended, or nobody listens any more.",
        "Read its last log lines; journalctl -k for the OOM killer and Xid lines; start it, then run this again.",
        FINDINGS,
    ),
    Cause(
        "serve.broken_stream",
        "An answer broke off in the middle, although the server still runs.",
        "Read the server's log; where a proxy is between, ask the server itself: its time limit may be the cause.",
        FINDINGS,
    ),
    Cause(
        "serve.stalled",
        "A stream stood still for longer than allowed.",
        "Look whether the server is compiling, preempting or swapping (its log), or a collective hangs: a GPU at 100 % "
        "and idle power (nvidia-smi). --stall allows longer.",
        FINDINGS,
    ),
    Cause(
        "serve.garbled",
        "The model's text is garbled: numbers are damaged somewhere, without any error.",
        "Don't hand this host back. gpuhost gate -i INVENTORY compares the GPUs' results; then the checkpoint's "
        "checksums, and the server with another attention or MoE backend.",
        FINDINGS,
    ),
    Cause(
        "serve.golden_differs",
        "Greedy answers are not what they were when the server was known to be good, by more than rounding explains.",
        "See what else has changed: checkpoint, engine version, flags, quantisation. If all of it was meant, remove "
        "the file and record anew; if nothing has, gpuhost gate -i INVENTORY.",
        FINDINGS,
    ),
    Cause(
        "serve.slower",
        "The server is slower than in the run that it was compared with.",
        "Run it once more to see whether it stays so; gpuhost audit -i INVENTORY says what differs on the host, "
        "gpuhost trace where the time of a step goes.",
        FINDINGS,
    ),
    Cause("check.timeout", "A check did not end within its limit and was killed.", "Look at dmesg.", BACK_ON_OLD),
    Cause("check.crashed", "A check ended without an answer.", "Look at its last line of output.", BACK_ON_OLD),
)


def cause(code: str) -> Cause:
    """The registered cause. Raises UnknownCause: an unregistered code is a defect and fails a test."""
    if code not in CAUSES:
        raise UnknownCause(code)
    return CAUSES[code]
