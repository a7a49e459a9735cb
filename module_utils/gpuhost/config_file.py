"""The one way in which a container's config is written, on plain LXC and on Proxmox.

Proxmox (pve-container's and pve-common's own rules, read in their sources): a change of N.conf is made under a flock on
/run/lock/lxc/pve-config-N.lock, never while the config has a ``lock:``, only with quorum, by a file in the same folder
and a rename. Mode and owner are pmxcfs's own; it refuses chmod and chown to other values.
"""

from __future__ import annotations

from collections.abc import Callable

from . import lxc_config, units
from .containers import Container
from .errors import stop
from .host_io import Host

PVE_FOLDER = "/etc/pve/"
LOCK_WAIT_S = 30.0
TRIES = 5


def update(host: Host, place: Container | str, change: Callable[[bytes], bytes]) -> tuple[bytes, bytes]:
    """Rewrite a container's config, or the one at a path, by ``change``; its bytes before and after.

    Without a difference nothing is written. ``change`` is called again where somebody else has written the file
    meanwhile. Raises Stop, and then the file is as it was: lxc.locked, lxc.no_quorum, lxc.config_locked,
    lxc.config_changed, lxc.config_not_written.
    """
    path = place if isinstance(place, str) else place.config_path
    before = _read(host, path)
    after = change(before)
    if after == before and not host.rewrite_leftover(path, remove=False):
        return before, after
    on_pve = path.startswith(PVE_FOLDER)
    if on_pve:
        _prove_quorum(host, path)
    lock = _lock_of(path) if on_pve else path.rpartition("/")[0]
    with host.flock(lock, LOCK_WAIT_S) as ours:
        if not ours:
            held = f"{lock} is held by another program for more than {LOCK_WAIT_S:.0f} s"
            raise stop("lxc.config_locked", path, held, "no lock", f"See who it is: fuser -v {lock}")
        host.rewrite_leftover(path, remove=True)
        return _rewrite(host, path, change, on_pve)


def _rewrite(host: Host, path: str, change: Callable[[bytes], bytes], on_pve: bool) -> tuple[bytes, bytes]:
    for _ in range(TRIES):
        before = _read(host, path)
        after = change(before)
        if after == before:
            return before, after
        if on_pve:
            _prove_unlocked(path, before)
        if host.rewrite(path, before, after, keep_owner=not on_pve):
            if host.read_bytes(path) != after:
                raise stop("lxc.config_changed", path, "does not read back as it was written", "what was written")
            return before, after
    raise stop("lxc.config_changed", path, f"changed {TRIES} times while it was being rewritten", "a file at rest")


def _read(host: Host, path: str) -> bytes:
    data = host.read_bytes(path)
    if data is None:
        raise stop("lxc.config_changed", path, "no such file any more", "a container's config")
    return data


def _lock_of(path: str) -> str:
    """pve-container's lock on a config."""
    vmid = lxc_config.vmid_of(path.rpartition("/")[2])
    if vmid is None:
        raise stop("host.module_failed", path, "not the name of a container's config", "N.conf")
    return f"/run/lock/lxc/pve-config-{vmid}.lock"


def _prove_quorum(host: Host, path: str) -> None:
    reason = units.pve_ready(host)
    if reason:
        raise stop("lxc.no_quorum", path, reason, "mounted and quorate")


def _prove_unlocked(path: str, config: bytes) -> None:
    lock = lxc_config.parse(config, "pve").facts.lock
    if lock:
        raise stop("lxc.locked", path, f"lock: {lock}", "no lock")
