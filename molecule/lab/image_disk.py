"""Turn a folder into a bootable GPT disk without mounting anything."""

from pathlib import Path

from .command import run, say
from .errors import LabError
from .image_recipe import ESP_LABEL, ESP_MIB, LVM_ROOT_MIB, ROOT_LABEL, ROOT_MIB

MIB = 1024 * 1024
SECTOR_BYTES = 512
# The first MiB holds the partition table, the last one its copy.
ESP_AT_MIB = 1
ROOT_AT_MIB = ESP_AT_MIB + ESP_MIB
DISK_MIB = ROOT_AT_MIB + ROOT_MIB + 1
# Each step takes a few seconds for 1 GB of files.
STEP_LIMIT_S = 300

OVMF_VARIABLES = ("/usr/share/OVMF/OVMF_VARS_4M.fd", "/usr/share/OVMF/OVMF_VARS.fd")
OVMF_CODE = ("/usr/share/OVMF/OVMF_CODE_4M.fd", "/usr/share/OVMF/OVMF_CODE.fd")


def ovmf(candidates: tuple[str, ...]) -> str:
    """The first of the firmware files that this machine has."""
    for path in candidates:
        if Path(path).exists():
            return path
    raise LabError(f"no UEFI firmware at {' or '.join(candidates)}: install the package ovmf")


def build_disk(root: Path, raw: Path) -> None:
    """Partition and fill; root is consumed (its ESP content moves out)."""
    _partition(raw, "linux")
    _fill_esp(raw, _take_esp(root))
    _fill_root(raw, root, ROOT_AT_MIB, ROOT_MIB)


def build_lvm_disks(root: Path, raw: Path, source: Path) -> None:
    """The disk with an empty partition for LVM, and the root file system to be copied into it."""
    _partition(raw, "lvm")
    _fill_esp(raw, _take_esp(root))
    _fill_root(source, root, 0, LVM_ROOT_MIB)


def convert(raw: Path, disk: Path) -> None:
    """The finished disk as qcow2, its zeros left out."""
    say("convert the disk to qcow2")
    run(["qemu-img", "convert", "-O", "qcow2", str(raw), str(disk)], timeout_s=STEP_LIMIT_S)
    raw.unlink()


def _take_esp(root: Path) -> Path:
    """Move the ESP's content out of the root, where its mount point stays."""
    esp = root.parent / "esp"
    (root / "boot/efi").rename(esp)
    (root / "boot/efi").mkdir(mode=0o700)
    return esp


def build_variables(target: Path) -> None:
    """Empty UEFI variables; qcow2, so that machines can put an overlay over them."""
    source = ovmf(OVMF_VARIABLES)
    run(["qemu-img", "convert", "-f", "raw", "-O", "qcow2", source, str(target)], timeout_s=STEP_LIMIT_S)


def _partition(raw: Path, root_type: str) -> None:
    with raw.open("wb") as out:
        out.truncate(DISK_MIB * MIB)
    script = (
        "label: gpt\n"
        f"start={ESP_AT_MIB}MiB, size={ESP_MIB}MiB, type=uefi, name=esp\n"
        f"start={ROOT_AT_MIB}MiB, size={ROOT_MIB}MiB, type={root_type}, name=root\n"
    )
    run(["sfdisk", "--quiet", "--no-reread", str(raw)], timeout_s=STEP_LIMIT_S, stdin=script)


def _fill_esp(raw: Path, esp: Path) -> None:
    say("write the EFI system partition")
    at_sector = ESP_AT_MIB * MIB // SECTOR_BYTES
    # clusters of 1 KiB: with the usual 4 KiB, 256 MiB have too few of them for FAT32
    run(
        [
            *("mkfs.vfat", "-F", "32", "-s", "2", "-n", ESP_LABEL),
            *("--offset", str(at_sector), str(raw), str(ESP_MIB * 1024)),
        ],
        timeout_s=STEP_LIMIT_S,
    )
    content = sorted(str(path) for path in esp.iterdir())
    if not content:
        return
    run(["mcopy", "-s", "-i", f"{raw}@@{ESP_AT_MIB}M", *content, "::"], timeout_s=STEP_LIMIT_S)


def _fill_root(raw: Path, root: Path, at_mib: int, size_mib: int) -> None:
    say("write the root file system")
    run(
        [
            *("mke2fs", "-q", "-F", "-t", "ext4", "-L", ROOT_LABEL, "-m", "0"),
            *("-E", f"offset={at_mib * MIB},lazy_itable_init=1"),
            *("-d", str(root), str(raw), f"{size_mib}m"),
        ],
        timeout_s=STEP_LIMIT_S,
    )
