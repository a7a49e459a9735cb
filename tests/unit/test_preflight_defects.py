"""Clean roots pass without a failure and without a warning; each defect gives exactly its own cause."""

from __future__ import annotations

import bz2
import gzip
import lzma
import os
import random
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from defects import DEFECTS, WARNINGS, Defect
from defects_boot import apt_at_work, gpu_unit_that_had_failed_before, unit_failed
from defects_driver import (
    KEYS,
    another_dkms_module_not_built,
    build_that_failed,
    built_and_not_installed,
    driver_too_old,
    never_built,
    no_headers,
    no_precompiled_package_for_the_target,
    run_file_without_dkms,
    secure_boot,
)
from defects_ground import (
    card_named_by_its_slot,
    default_route_in_another_table,
    initramfs_cut_off,
    no_network_driver,
    no_program_to_unpack_the_initramfs,
    option_of_a_module_that_does_not_exist,
    option_of_a_module_that_is_built_in,
    option_taken_back_by_a_later_file,
    root_on_a_dkms_module_that_is_not_built,
)
from fake_initramfs import EARLY, FILE, archive, members_of
from fake_ready import ARGUMENTS, DEBIAN, INSIDE_WITH_DRIVER, LINE, PROXMOX, UBUNTU, Distribution, Root, ready
from fake_tree import add_headers, add_kernel, depmod, dkms_build, entry_text, link_to, module_text

from gpuhost.dkms import NVIDIA_MODULES
from gpuhost.preflight import first_failure, warnings


@pytest.mark.parametrize("kind", [DEBIAN, UBUNTU, PROXMOX], ids=lambda kind: kind.name)
def test_a_clean_root_passes_without_a_warning(tmp_path: Path, kind: Distribution) -> None:
    document = ready(tmp_path, kind).prove()
    assert [item for item in document.proofs if not item.ok] == []
    assert all(item.observed and item.expected for item in document.proofs)


@pytest.mark.parametrize("name", DEFECTS)
def test_each_defect_gives_its_cause_and_no_other(tmp_path: Path, name: str) -> None:
    kind, spoil = DEFECTS[name]
    root = ready(tmp_path, kind)
    assert root.failed() == []
    code = spoil(root)
    document = root.prove()
    failed = [item for item in document.proofs if not item.ok]
    assert {item.cause for item in failed} == {code}
    assert all(item.observed and item.expected and item.next_step for item in failed)
    first = first_failure(document)
    assert (first is None) == (code in WARNINGS)
    assert {item.cause for item in warnings(document)} == ({code} & WARNINGS)


def test_there_are_enough_of_them() -> None:
    assert len(DEFECTS) >= 70
    assert {spoil.__doc__ is None or spoil.__doc__.endswith((".", ":")) for _, spoil in DEFECTS.values()} == {True}


# --- what is said


def said(root: Root, code: str) -> str:
    """What was observed, and the way out, of the one proof that fails."""
    (item,) = [item for item in root.failed() if item.cause == code]
    return f"{item.observed} | {item.expected} | {item.next_step}"


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        (DEBIAN, ["linux-headers-6.12.117+deb12-cloud-amd64"]),
        (PROXMOX, ["proxmox-headers-6.14.11-5-bpo12-pve or pve-headers-6.14.11-5-bpo12-pve"]),
        (replace(UBUNTU, precompiled="", extra=False), ["linux-headers-6.14.0-36-generic"]),
    ],
    ids=["debian", "proxmox", "ubuntu hwe"],
)
def test_missing_headers_are_named_as_the_distribution_has_them(
    tmp_path: Path, kind: Distribution, names: list[str]
) -> None:
    root = ready(tmp_path, kind)
    assert root.failed() == []
    no_headers(root)
    assert all(name in said(root, "dkms.headers_missing") for name in names)


@pytest.mark.parametrize(
    ("spoil", "texts"),
    [
        (build_that_failed, ["/var/lib/dkms/nvidia/570.124.06/build/make.log: nv.c:1:2: error: too few arguments"]),
        (built_and_not_installed, ["nvidia/570.124.06 built for", "dkms autoinstall -k 6.12.117+deb12-cloud-amd64"]),
        (driver_too_old, ["470.256.02", "535.247.01", "make.log: nv.c:1: error: too few arguments"]),
        (run_file_without_dkms, ["/kernel/drivers/video/nvidia.ko", "NVIDIA's installer", "--dkms"]),
        (no_program_to_unpack_the_initramfs, ["no program zstd", "apt-get install zstd"]),
        (apt_at_work, ["unattended-upgr (pid 5043) holds /var/lib/dpkg/lock-frontend"]),
        (another_dkms_module_not_built, ["blksnap/6.0.3.1221"]),
        (initramfs_cut_off, ["zstd archive at byte", "cut off"]),
        (no_network_driver, ["no module virtio_net for enp0s3"]),
        (root_on_a_dkms_module_that_is_not_built, ["zfs", "(DKMS)"]),
        (default_route_in_another_table, ["no default route in the main table", "ip route show table all"]),
        (option_of_a_module_that_does_not_exist, ["no such module on the host: nvdia"]),
        (option_of_a_module_that_is_built_in, ["loop is built in: use loop.max_loop=8 on the command line"]),
        (gpu_unit_that_had_failed_before, ["failed", "systemctl disable nvidia-fabricmanager.service"]),
        (option_taken_back_by_a_later_file, ["/etc/modprobe.d/zz-site.conf", "uvm_disable_hmm=0"]),
    ],
    ids=lambda item: item.__name__ if callable(item) else "",
)
def test_the_way_to_the_cause_is_said(tmp_path: Path, spoil: Defect, texts: list[str]) -> None:
    root = ready(tmp_path, PROXMOX if spoil is build_that_failed else DEBIAN)
    sentence = said(root, spoil(root))
    assert [text for text in texts if text not in sentence] == []


def test_a_precompiled_package_is_named(tmp_path: Path) -> None:
    root = ready(tmp_path, UBUNTU)
    code = no_precompiled_package_for_the_target(root)
    assert "apt-get install linux-modules-nvidia-570-server-open-6.14.0-36-generic" in said(root, code)


# --- what is no defect


def signed(root: Root) -> None:
    secure_boot(root)
    for name in NVIDIA_MODULES:
        root.write_module(name, signer="DKMS module signing key")


def signed_by_a_key_of_the_kernel(root: Root) -> None:
    """Not in mokutil's list, which isn't even installed: /proc/keys has the builtin ones."""
    signed(root)
    root.host.programs["mokutil",] = (127, "", "mokutil: No such file or directory")
    root.host.put("/proc/keys", KEYS)


def blacklisted_nouveau(root: Root) -> None:
    root.add_module("kernel/drivers/gpu/drm/nouveau/nouveau.ko")
    root.host.put("/usr/lib/modprobe.d/nvidia.conf", "blacklist nouveau\n")


def pinned_card(root: Root) -> None:
    card_named_by_its_slot(root)
    root.host.put("/etc/systemd/network/10-lan.link", "[Match]\nMACAddress=52:54:00:12:34:57\n[Link]\nName=enp0s5\n")


def held_at_the_right_version(root: Root) -> None:
    root.host.packages[f"linux-image-{root.new}"] = ("1.0", "hi")


def driver_that_builds_in_spite_of_the_table(root: Root) -> None:
    """A build that went well proves more than any table."""
    never_built(root)
    for release in (root.old, root.new):
        for name in NVIDIA_MODULES:
            path = f"/lib/modules/{release}/updates/dkms/{name}.ko.xz"
            root.host.put(path, module_text(release, version="470.256.02"))
    root.drop("/var/lib/dkms")
    for release in (root.old, root.new):
        dkms_build(root.host, release, "nvidia", "470.256.02")
        depmod(root.host, release)
    root.host.put("/sys/module/nvidia/version", "470.256.02\n")
    root.hold()


def container_behind_a_bridge(root: Root) -> None:
    """The default route over a bridge with the card and a container's veth in it."""
    host = root.host
    bridge, veth = ("/sys/devices/virtual/net/vmbr0", "/sys/devices/virtual/net/veth100i0")
    host.put(f"{bridge}/uevent", "DEVTYPE=bridge\nINTERFACE=vmbr0\n")
    host.put(f"{veth}/uevent", "INTERFACE=veth100i0\n")
    card = "/sys/devices/pci0000:00/0000:00:03.0/virtio3/net/enp0s3"
    for name, path in (("vmbr0", bridge), ("veth100i0", veth)):
        link_to(host, f"/sys/class/net/{name}", path)
    link_to(host, f"{bridge}/lower_enp0s3", card)
    link_to(host, f"{bridge}/lower_veth100i0", veth)
    unused = "/sys/devices/pci0000:00/0000:00:09.0"  # a card that is up, has no way out and no driver in the target
    link_to(host, "/sys/bus/pci/drivers/odd/module", "/sys/module/odd")
    host.put("/sys/module/odd/initstate", "live\n")
    link_to(host, f"{unused}/driver", "/sys/bus/pci/drivers/odd")
    link_to(host, f"{unused}/net/enp0s9/device", unused)
    host.put(f"{unused}/net/enp0s9/operstate", "up\n")
    link_to(host, "/sys/class/net/enp0s9", f"{unused}/net/enp0s9")
    host.put("/proc/net/route", (host.read("/proc/net/route") or "").replace("enp0s3", "vmbr0"))


def an_upgrade_that_ends(root: Root) -> None:
    apt_at_work(root)
    sleep = root.host.sleep

    def finish(seconds: float) -> None:
        sleep(seconds)
        root.host.put("/proc/locks", "")

    root.host.sleep = finish  # type: ignore[method-assign]


def lvm_root(root: Root) -> None:
    """Ubuntu Server's default: dm_multipath is always loaded, and a data disk has LUKS; neither is in the image."""
    host = root.host
    volume = "/sys/devices/virtual/block/dm-0"
    disk = "/sys/devices/pci0000:00/0000:00:02.0/virtio2/block/vda/vda1"
    host.put(f"{volume}/dm/uuid", "LVM-abcdefghijklmnopqrstuvwxyz012345ABCDEFGHIJKLMNOPQRSTUVWXYZ678901\n")
    link_to(host, "/sys/dev/block/253:0", volume)
    link_to(host, "/sys/class/block/dm-0", volume)
    link_to(host, f"{volume}/slaves/vda1", disk)
    for name in ("dm_mod", "dm_multipath", "dm_crypt"):
        host.put(f"/sys/module/{name}/initstate", "live\n")
        root.add_module(f"kernel/drivers/md/{name.replace('_', '-')}.ko")
    root.write_image(modules=(*INSIDE_WITH_DRIVER, "dm-mod"))
    mounts = (host.read("/proc/self/mountinfo") or "").replace("254:1 ", "253:0 ")
    host.put("/proc/self/mountinfo", mounts.replace("/dev/vda1 ", "/dev/mapper/vg-root "))


def a_second_copy_of_the_driver(root: Root) -> None:
    """nvidia-dkms beside linux-modules-nvidia: depmod lists the copy in updates/ only."""
    copy = f"/lib/modules/{root.new}/kernel/nvidia-535/nvidia.ko"
    root.host.put(copy, module_text(root.new, version="535.247.01"))


def a_built_in_module_with_its_option_on_the_command_line(root: Root) -> None:
    option_of_a_module_that_is_built_in(root)
    root.plan(cmdline={**ARGUMENTS, "loop.max_loop": "8"})
    root.host.put(root.entry(root.new), entry_text(root.new, f"{LINE} loop.max_loop=8"))
    root.host.put("/etc/kernel/cmdline", f"{LINE} loop.max_loop=8\n")


def an_option_of_a_debian_name(root: Root) -> None:
    """A module is found by its file's own name too."""
    root.add_module("kernel/x/nvidia-current.ko")
    root.plan(modprobe_options={"nvidia_current": {"NVreg_A": "1"}})
    root.host.put("/etc/modprobe.d/a.conf", "options nvidia-current NVreg_A=1\n")


def a_failed_unit_that_nobody_rests_on(root: Root) -> None:
    unit_failed(root, "certbot.service")


def a_failed_unit_on_the_trial_kernel(root: Root) -> None:
    """There the trial asks, and its answer is to go back."""
    gpu_unit_that_had_failed_before(root)
    root.host.put("/proc/sys/kernel/osrelease", root.new + "\n")


@pytest.mark.parametrize(
    "change",
    [
        signed, signed_by_a_key_of_the_kernel, blacklisted_nouveau, pinned_card, held_at_the_right_version,
        driver_that_builds_in_spite_of_the_table, container_behind_a_bridge, an_upgrade_that_ends,
        lvm_root, a_second_copy_of_the_driver, a_built_in_module_with_its_option_on_the_command_line,
        an_option_of_a_debian_name, a_failed_unit_that_nobody_rests_on, a_failed_unit_on_the_trial_kernel,
    ],
)  # fmt: skip
def test_no_defect(tmp_path: Path, change: Callable[[Root], None]) -> None:
    root = ready(tmp_path)
    change(root)
    assert [(item.name, item.observed) for item in root.failed()] == []


COMPRESSIONS: dict[str, Callable[[bytes], bytes]] = {
    "none": lambda data: data,
    "gzip": lambda data: gzip.compress(data, 1),
    "bzip2": bz2.compress,
    "xz": lambda data: lzma.compress(data, check=lzma.CHECK_CRC32),
    "lzma": lambda data: lzma.compress(data, format=lzma.FORMAT_ALONE),
    "zstd": lambda data: _filtered("zstd", "-3", "-qc", data=data),
    "lz4": lambda data: _filtered("lz4", "-l", "-c", data=data),
}


def _filtered(*argv: str, data: bytes) -> bytes:
    return subprocess.run(argv, input=data, capture_output=True, check=True).stdout


@pytest.mark.parametrize("name", COMPRESSIONS)
def test_each_compression_of_the_initramfs(tmp_path: Path, name: str) -> None:
    root = ready(tmp_path)
    main = archive(*members_of(root.host, root.new, INSIDE_WITH_DRIVER), block=512)
    root.write_image(EARLY + COMPRESSIONS[name](main))
    root.host.calls = []
    assert root.failed() == []
    assert len(root.host.ran(name)) == (1 if name in ("zstd", "lz4") else 0)


# --- cost

IMAGE_BYTES = 40 << 20


@pytest.mark.parametrize("name", ["gzip", "zstd"])
def test_four_kernels_with_images_of_real_size(tmp_path: Path, name: str) -> None:
    """Under 5 s of processor time, and no more programs than with one kernel."""
    root = ready(tmp_path)
    host = root.host
    for release in ("6.1.0-55-cloud-amd64", "6.1.0-56-cloud-amd64"):
        add_kernel(host, release)
        add_headers(host, release)
    for number in range(4000):  # the modules of a real kernel
        host.put(f"/lib/modules/{root.new}/kernel/drivers/x{number % 90}/module{number}.ko", b"")
    firmware = ("usr/lib/firmware/gsp.bin", FILE, random.Random(1).randbytes(IMAGE_BYTES))
    main = archive(*members_of(host, root.new, INSIDE_WITH_DRIVER), firmware, block=512)
    root.write_image(EARLY + (gzip.compress(main, 1) if name == "gzip" else _filtered("zstd", "-1", "-qc", data=main)))
    before = os.times()
    host.calls = []
    assert root.failed() == []
    after = os.times()
    used = sum(after[:4]) - sum(before[:4])
    assert used < 5, f"{used:.1f} s"
    programs = [call[0] for call in host.calls if call[0] != "zstd"]
    assert programs == ["dpkg-query", "modinfo", *["systemctl"] * 3]


def test_each_file_of_a_kernel_is_hashed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = ready(tmp_path)
    opened: list[str] = []
    real = Path.open

    def counted(self: Path, *arguments: object, **more: object) -> object:
        opened.append(str(self))
        return real(self, *arguments, **more)  # type: ignore[call-overload]

    monkeypatch.setattr(Path, "open", counted)
    root.prove()
    big = [path for path in opened if "/boot/" in path and ("initrd" in path or "vmlinuz" in path or "linux" in path)]
    assert len(big) == len(set(big))
    assert f"{root.host.root}{root.image}" not in [path for path in big if big.count(path) > 1]
