"""Defects that a lab machine gets on its old kernel 6.1 and that bite on a 6.12 kernel only.

Nothing of the old boot path changes: no initramfs is made here, and each defect asks for the
running kernel itself, so that an initramfs of the old kernel that is made later stays good.
What goes into an initramfs gets into that of 6.12 when its package is installed.
"""

from __future__ import annotations

from tests.lab.lab import CONTAINER, guest

NEW_KERNEL = "6.12.*"
OLD_KERNEL = "6.1.*"
INITRAMFS_SCRIPTS = "/etc/initramfs-tools/scripts"
LABEL = "lab-scratch"
SLOW_PYTHON = "/opt/slow-python"  # not below /usr, which the container shares with its host
SCRATCH_IMAGE = "/var/lib/lab-scratch.img"
SCRATCH_FOLDER = "/srv/scratch"
SCRATCH_UNIT = "lab-scratch.service"
# An initramfs script is also run with this argument, when the order of scripts is made.
PREREQUISITES = 'if [ "$1" = prereqs ]; then exit 0; fi\n'
ONLY_NEW = f"read -r release </proc/sys/kernel/osrelease\ncase $release in {NEW_KERNEL}) ;; *) exit 0 ;; esac\n"


def early_panic(name: str) -> None:
    """The new kernel panics in the initramfs: a driver or firmware fault that strikes before any service runs."""
    script = "#!/bin/sh\n" + PREREQUISITES + ONLY_NEW + "echo c >/proc/sysrq-trigger\n"
    _write(name, f"{INITRAMFS_SCRIPTS}/init-top/lab-panic", script, mode="755")


def root_not_found(name: str) -> None:
    """The root's disk is missing in the initramfs: the new kernel's driver does not take its controller."""
    script = "#!/bin/sh\n" + PREREQUISITES + ONLY_NEW
    # without autoprobe, udev's next event would bind the driver again
    script += "echo 0 >/sys/bus/virtio/drivers_autoprobe\n"
    script += "cd /sys/bus/virtio/drivers/virtio_blk || exit 0\n"
    script += 'for device in virtio*; do echo "$device" >unbind; done\n'
    _write(name, f"{INITRAMFS_SCRIPTS}/local-top/lab-no-disk", script, mode="755")


def no_network(name: str) -> None:
    """The network stays down: the new kernel names the interface otherwise, and no configuration is for it."""
    # sorts before the lab's own file, and the first one that matches wins
    text = f"[Match]\nDriver=virtio_net\nKernelVersion={NEW_KERNEL}\n\n[Link]\nUnmanaged=yes\n"
    _write(name, "/etc/systemd/network/05-lab-down.network", text)


def emergency_mode(name: str) -> None:
    """A file system of fstab has no device on the new kernel: its controller's module was built for the old one."""
    guest(name, "truncate", "--size", "16M", SCRATCH_IMAGE)
    guest(name, "mkfs.ext4", "-q", "-L", LABEL, SCRATCH_IMAGE)
    _write(
        name,
        f"/etc/systemd/system/{SCRATCH_UNIT}",
        f"""[Unit]
Description=Disk that only the old kernel has (lab)
DefaultDependencies=no
ConditionKernelVersion={OLD_KERNEL}
After=systemd-remount-fs.service modprobe@loop.service
Wants=modprobe@loop.service
Before=local-fs-pre.target
Wants=local-fs-pre.target

[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/sbin/losetup --find {SCRATCH_IMAGE}

[Install]
WantedBy=local-fs.target
""",
    )
    guest(name, "systemctl", "daemon-reload")
    guest(name, "systemctl", "enable", "--now", "--quiet", SCRATCH_UNIT)
    fstab = guest(name, "cat", "/etc/fstab")
    line = f"LABEL={LABEL} {SCRATCH_FOLDER} ext4 x-systemd.device-timeout=10s 0 0\n"
    _write(name, "/etc/fstab", fstab + line)
    guest(name, "mkdir", "-p", SCRATCH_FOLDER)
    guest(name, "systemctl", "daemon-reload")
    # as the next boot does it, so that the line is proved right on the old kernel
    guest(name, "udevadm", "settle")
    guest(name, "mount", SCRATCH_FOLDER)


def slow_interpreter(name: str) -> None:
    """The workload's interpreter takes two and a half minutes to begin, as one on a slow network share does."""
    script = '#!/bin/sh\nsleep 150\nexec /usr/bin/python3 "$@"\n'
    _write(name, f"/var/lib/lxc/{CONTAINER}/rootfs{SLOW_PYTHON}", script, mode="755")


def _write(name: str, path: str, text: str, mode: str = "644") -> None:
    """Write a file in the machine, its folder too, and bring it to the disk: a test may cut the power."""
    guest(name, "mkdir", "-p", path.rpartition("/")[0])
    guest(name, "sh", "-c", 'printf %s "$2" >"$1" && chmod "$3" "$1" && sync "$1"', "sh", path, text, mode)
