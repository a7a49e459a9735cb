"""Build the base image once, keep it under the hash of all that it is made of."""

import fcntl
import hashlib
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from .command import heartbeat, run, run_logged, say
from .errors import LabError
from .image_disk import build_disk, build_lvm_disks, build_variables, convert
from .image_grub import install_grub
from .image_recipe import Loader, recipe_hash
from .image_root import bootstrap
from .paths import cache_root

# Of each loader: the image in use and the one before it, for a look back.
KEPT_IMAGES = 2
# Measured 35 s: kernel, headers, seven modules.
CUSTOMIZE_EXPECTED_S = 45
CUSTOMIZE_LIMIT_S = 1200
# Measured 10 s.
DISK_EXPECTED_S = 15
# Another process builds the image: its whole time, and its limits' sum.
LOCK_EXPECTED_S = 120
LOCK_LIMIT_S = 2700


@dataclass(frozen=True)
class Image:
    """A finished base image."""

    folder: Path

    @property
    def disk(self) -> Path:
        """The disk that machines put their overlay over."""
        return self.folder / "disk.qcow2"

    @property
    def variables(self) -> Path:
        """Empty UEFI variables."""
        return self.folder / "vars.qcow2"

    @property
    def private_key(self) -> Path:
        """The key that root and operator of every machine take."""
        return self.folder / "id_ed25519"


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold a file lock; a second caller waits and then finds the work done."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as lock:
        if not _try_lock(lock):
            with heartbeat(f"wait for another process that holds {path}", LOCK_EXPECTED_S):
                _wait_for_lock(lock, path)
        yield


def _try_lock(lock: IO[str]) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _wait_for_lock(lock: IO[str], path: Path) -> None:
    deadline = time.monotonic() + LOCK_LIMIT_S
    while not _try_lock(lock):
        if time.monotonic() > deadline:
            raise LabError(f"{path} is held for {LOCK_LIMIT_S:.0f} s: look for another gpuhost_lab process")
        time.sleep(0.2)


def ensure_image(loader: Loader) -> Image:
    """The loader's image for the present sources, built if it is not there."""
    cache = cache_root()
    name = recipe_hash(loader)
    image = Image(cache / name)
    with locked(cache / "build.lock"):
        if not (image.folder / "complete").exists():
            _build(image, loader)
            _prune(cache, loader, keep=name)
    os.utime(image.folder)
    return image


def _build(image: Image, loader: Loader) -> None:
    if os.geteuid() != 0:
        raise LabError("building the lab image needs root (chroot, file ownership): run it with sudo")
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix=".build-", dir=image.folder.parent) as name:
        work = Path(name)
        (work / "image").mkdir()
        log = image.folder.parent / "build.log"
        log.unlink(missing_ok=True)
        root = work / "root"
        bootstrap(root, loader, log)
        target = Image(work / "image")
        _create_key(target)
        run_logged(
            [
                *("unshare", "--mount", "--propagation", "private"),
                *(sys.executable, "-m", "gpuhost_lab", "customize", str(root), loader),
                str(target.private_key) + ".pub",
            ],
            step="kernel, driver and container",
            log=log,
            timeout_s=CUSTOMIZE_LIMIT_S,
            expected_s=CUSTOMIZE_EXPECTED_S,
        )
        _write_disk(work, target, loader, log)
        _collect(work, target, loader)
        if image.folder.exists():
            shutil.rmtree(image.folder)
        target.folder.rename(image.folder)
    say(f"image built in {time.monotonic() - started:.0f} s: {image.folder}")


def _create_key(target: Image) -> None:
    run(
        ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "gpuhost-lab", "-f", str(target.private_key)],
        timeout_s=30,
    )


def _write_disk(work: Path, target: Image, loader: Loader, log: Path) -> None:
    """The disk with all that it boots by."""
    root, raw, source = work / "root", work / "disk.raw", work / "root.raw"
    with heartbeat("disk image", DISK_EXPECTED_S):
        if loader is Loader.GRUB_LVM:
            build_lvm_disks(root, raw, source)
        else:
            build_disk(root, raw)
    if loader is not Loader.SYSTEMD_BOOT:
        install_grub(root, raw, source if loader is Loader.GRUB_LVM else None, log)
    convert(raw, target.disk)


def _collect(work: Path, target: Image, loader: Loader) -> None:
    """Variables and what is known about the image; `complete` comes last."""
    name = "ssh_host_ed25519_key.pub"
    shutil.copy2(work / "root/etc/ssh" / name, target.folder / name)
    build_variables(target.variables)
    about = {"kernel_release": (work / "kernel-release").read_text(), "loader": loader}
    (target.folder / "complete").write_text(json.dumps(about) + "\n")


def register_user(image_name: str, user: Path) -> None:
    """Note that a machine or snapshot stands on an image, so that the image is not pruned."""
    users = cache_root() / image_name / "users"
    users.mkdir(exist_ok=True)
    name = hashlib.sha256(str(user).encode()).hexdigest()[:16]
    (users / name).write_text(str(user))


def _is_used(folder: Path) -> bool:
    return any(Path(note.read_text()).exists() for note in (folder / "users").glob("*"))


def _loader_of(folder: Path) -> str:
    """Which loader an image boots by; images from before there were several do not say it."""
    about = json.loads((folder / "complete").read_text())
    return str(about.get("loader", Loader.SYSTEMD_BOOT))


def _prune(cache: Path, loader: Loader, keep: str) -> None:
    """Remove all but the loader's newest images and those in use, and what a killed build left behind."""
    for path in cache.glob(".build-*"):
        shutil.rmtree(path, ignore_errors=True)
    images = (path for path in cache.iterdir() if (path / "complete").exists() and _loader_of(path) == loader)
    by_age = sorted(images, key=lambda path: path.stat().st_mtime)
    old = [path for path in by_age if path.name != keep][: -(KEPT_IMAGES - 1)]
    for path in old:
        if not _is_used(path):
            say(f"remove old image {path}")
            shutil.rmtree(path)
