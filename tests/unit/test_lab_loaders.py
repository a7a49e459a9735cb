"""The lab's boot loaders: what each kind of image is made of, its name, its place in the cache, its command line."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from gpuhost_lab import cli, image, image_grub, image_recipe, lifecycle
from gpuhost_lab.errors import LabError
from gpuhost_lab.image_recipe import Loader, packages, recipe_hash, recipe_paths
from gpuhost_lab.paths import SOURCES

GRUB_LOADERS = (Loader.GRUB, Loader.GRUB_LVM)


@pytest.fixture(autouse=True)
def _same_apt(monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine that runs the tests need not have apt."""
    monkeypatch.setattr(image_recipe, "archives", list)
    monkeypatch.setattr(image_recipe, "apt_settings", str)


def names(loader: Loader) -> set[str]:
    return {str(path.relative_to(SOURCES)) for path in recipe_paths(loader)}


def test_each_loader_has_an_image_of_its_own() -> None:
    hashes = [recipe_hash(loader) for loader in Loader]
    assert len(set(hashes)) == len(Loader)
    assert hashes == [recipe_hash(loader) for loader in Loader]


def test_one_boot_loader_in_each_image() -> None:
    assert "systemd-boot" in packages(Loader.SYSTEMD_BOOT)
    assert not any("grub" in name or name == "lvm2" for name in packages(Loader.SYSTEMD_BOOT))
    for loader in GRUB_LOADERS:
        assert "grub-efi-amd64" in packages(loader)
        assert "systemd-boot" not in packages(loader)
    assert "lvm2" in packages(Loader.GRUB_LVM)
    assert "lvm2" not in packages(Loader.GRUB)


def test_systemd_boot_image_does_not_depend_on_grub() -> None:
    assert not any("grub" in name for name in names(Loader.SYSTEMD_BOOT))
    assert "rootfs-systemd-boot/etc/kernel/cmdline" in names(Loader.SYSTEMD_BOOT)


@pytest.mark.parametrize("loader", GRUB_LOADERS)
def test_grub_image_has_nothing_of_kernel_install(loader: Loader) -> None:
    assert not any("etc/kernel/" in name for name in names(loader))
    assert {"image_grub.py", "rootfs-grub/etc/default/grub"} <= names(loader)


def test_grub_guest_has_the_same_kernel_arguments() -> None:
    cmdline = (SOURCES / "rootfs-systemd-boot/etc/kernel/cmdline").read_text().split()
    assert cmdline[:2] == ["root=LABEL=lab-root", "ro"]  # GRUB's own configuration adds these two
    lines = (SOURCES / "rootfs-grub/etc/default/grub").read_text().splitlines()
    settings = dict(line.split("=", 1) for line in lines if "=" in line and not line.startswith("#"))
    given = " ".join(settings[name].strip('"') for name in ("GRUB_CMDLINE_LINUX", "GRUB_CMDLINE_LINUX_DEFAULT"))
    assert given.split() == cmdline[2:]
    assert settings["GRUB_DEFAULT"] == "0"
    assert settings["GRUB_TIMEOUT"] == "0"
    assert settings["GRUB_DISABLE_OS_PROBER"] == "true"


def test_installer_says_what_the_build_waits_for() -> None:
    installer = SOURCES / "rootfs-grub" / image_grub.INSTALLER.lstrip("/")
    assert f'"{image_grub.INSTALLED}"' in installer.read_text()
    assert installer.stat().st_mode & 0o100


def test_root_of_the_lvm_image_fits_its_volume() -> None:
    assert image_recipe.LVM_ROOT_MIB % 4 == 0
    assert 0 < image_recipe.ROOT_MIB - image_recipe.LVM_ROOT_MIB - 1 < 4


@pytest.mark.parametrize(("source", "root", "disks"), [(None, "/dev/vda2", 1), (Path("/lab/root.raw"), "/dev/vdb", 2)])
def test_installing_guest(monkeypatch: pytest.MonkeyPatch, source: Path | None, root: str, disks: int) -> None:
    monkeypatch.setattr(image_grub, "accelerator", list)
    monkeypatch.setattr(image_grub, "ovmf", lambda names: names[0])
    folder = Path("/lab")
    argv = image_grub.command_line(folder / "k", folder / "i", folder / "v", folder / "disk.raw", source)
    arguments = argv[argv.index("-append") + 1].split()
    assert f"root={root}" in arguments
    assert f"init={image_grub.INSTALLER}" in arguments
    assert "panic=1" in arguments  # a panic ends QEMU, with -no-reboot
    assert "-no-reboot" in argv
    assert sum(option.startswith("if=virtio,") for option in argv) == disks


def test_an_installer_that_did_not_finish_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("boot/vmlinuz-6.1.0", "boot/initrd.img-6.1.0", "firmware"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    log = tmp_path / "build.log"
    log.write_text("grub-install: error: cannot find a device\n")
    monkeypatch.setattr(image_grub, "ovmf", lambda _: str(tmp_path / "firmware"))
    monkeypatch.setattr(image_grub, "accelerator", list)
    monkeypatch.setattr(image_grub, "run_logged", lambda *_, **__: None)
    with pytest.raises(LabError, match="cannot find a device"):
        image_grub.install_grub(tmp_path, tmp_path / "disk.raw", None, log)
    log.write_text(f"{image_grub.INSTALLED}\r\n")
    image_grub.install_grub(tmp_path, tmp_path / "disk.raw", None, log)


def built(cache: Path, name: str, age: int, **about: str) -> None:
    (cache / name).mkdir()
    (cache / name / "complete").write_text(json.dumps({"kernel_release": "6.1.0-1-cloud-amd64", **about}))
    os.utime(cache / name, (1_000_000 - age, 1_000_000 - age))


def test_pruning_leaves_other_loaders_alone(tmp_path: Path) -> None:
    built(tmp_path, "grub-old", 300, loader="grub")
    built(tmp_path, "lvm-old", 400, loader="grub-lvm")
    built(tmp_path, "before-loaders", 500)
    built(tmp_path, "boot-oldest", 600, loader="systemd-boot")
    built(tmp_path, "boot-new", 0, loader="systemd-boot")
    image._prune(tmp_path, Loader.SYSTEMD_BOOT, keep="boot-new")
    assert {path.name for path in tmp_path.iterdir()} == {"grub-old", "lvm-old", "before-loaders", "boot-new"}


def test_pruning_keeps_an_image_that_carries_a_machine(tmp_path: Path) -> None:
    for age, name in ((300, "first"), (200, "second"), (0, "new")):
        built(tmp_path, name, age, loader="grub")
    (tmp_path / "first/users").mkdir()
    (tmp_path / "first/users/x").write_text(str(tmp_path))
    image._prune(tmp_path, Loader.GRUB, keep="new")
    assert (tmp_path / "first").exists()


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [([], None), *(([f"--loader={loader}"], loader) for loader in Loader)],
)
def test_command_line_of_up(monkeypatch: pytest.MonkeyPatch, arguments: list[str], expected: Loader | None) -> None:
    seen: dict[str, object] = {}
    monkeypatch.setattr(lifecycle, "up", lambda name, **options: seen.update(options, name=name))
    assert cli.main(["up", "--name", "box1", *arguments]) == 0
    assert seen["loader"] is expected
    assert seen["name"] == "box1"


def test_unknown_loader_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["image", "--loader", "lilo"])
    assert ended.value.code == cli.EXIT_ERROR
    assert "grub-lvm" in capsys.readouterr().err


def test_a_snapshot_takes_no_loader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUHOST_LAB_STATE", str(tmp_path))
    with pytest.raises(LabError, match="after-apt has its boot loader already"):
        lifecycle.up("box1", origin="after-apt", loader=Loader.GRUB, memory_mib=1024, workload=False)
    assert not (tmp_path / "machines" / "box1").exists()
