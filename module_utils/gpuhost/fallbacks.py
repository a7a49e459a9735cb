"""The fallback: what boots the kernel that runs now, recorded with hashes and held as default during a roll."""

from __future__ import annotations

from dataclasses import replace

from . import boot, kernel
from .boot import BootEntry, BootState, FileChange, Loader
from .errors import stop
from .host_io import Host
from .rollfile import Fallback, Roll


def record_policy(loader: Loader, state: BootState, release: str, last: Roll | None) -> str | None:
    """The default policy as it was found: by the last roll, where what is set now is that roll's doing.

    A roll that came back has left its fallback as the explicit default; one to an older kernel its target, unless the
    policy that it had found leads there by itself.
    """
    if last is None or last.fallback is None:
        return state.policy
    before, came_back = last.fallback.policy_before, last.result != "good"
    stayed = kernel.is_older(last.target, last.running_before)
    entry = state.entry(release if came_back else last.target)
    if entry is None or not (came_back or stayed):
        return state.policy
    left = (loader.explicit(entry), last.fallback.entry) if came_back else (loader.explicit(entry),)
    leads = None if came_back else loader.would_boot(state, before)
    restored = leads is not None and leads.release == last.target
    return before if state.policy in left and not restored else state.policy


def make(host: Host, loader: Loader, release: str, policy: str | None) -> Fallback:
    """Record the fallback, which gets copies of its own where the loader would rewrite the original.

    Nothing that boots by itself changes here. Raises Stop where it is not complete.
    """
    own = own_entry(loader, loader.read(), release)
    loader.add_fallback(own)
    fallback = record(host, loader, release, policy)
    if fallback.entry != loader.fallback_id(own):
        raise stop("boot.fallback_missing", loader.fallback_id(own), f"{loader.name} does not list it")
    return fallback


def record(host: Host, loader: Loader, release: str, policy: str | None) -> Fallback:
    """What boots the running kernel now, with hashes. Raises Stop where it is not complete."""
    state = loader.read()
    entry = loader.fallback_of(state, release) or own_entry(loader, state, release)
    return Fallback(entry.id, release, policy, boot.fallback_hashes(host, entry, release))


def own_entry(loader: Loader, state: BootState, release: str) -> BootEntry:
    """The loader's own entry of the running kernel. Raises Stop where there is none."""
    entry = state.entry(release)
    if entry is None:
        raise stop("boot.fallback_missing", release, f"no entry among {len(state.entries)} of {loader.name}")
    return entry


def hold(loader: Loader, fallback: Fallback) -> bool:
    """Make the fallback the explicit default and read back that the loader would boot it; whether it had to change."""
    state = loader.read()
    if state.efi_default is not None:
        raise stop("boot.efi_default_set", "LoaderEntryDefault", state.efi_default, "not set")
    entry = held_entry(state, fallback)
    changed = loader.set_default(loader.explicit(entry))
    prove_default(loader.read(), entry)
    return changed


def held_entry(state: BootState, fallback: Fallback) -> BootEntry:
    """The entry to hold: the fallback, or the old kernel's own where a way back has removed the copy already.

    ``like_before`` removes the copy last, when the loader's own entry boots the same again. Raises Stop for neither.
    """
    entry = state.named(fallback.entry) or state.entry(fallback.release)
    if entry is None:
        raise stop("boot.fallback_missing", fallback.entry, f"no such entry in {state.loader}")
    return entry


def held_change(loader: Loader, release: str) -> FileChange | None:
    """The file that holding the fallback changes, for the diff; None where it is held already."""
    entry = own_entry(loader, loader.read(), release)
    return loader.default_change(loader.explicit(replace(entry, id=loader.fallback_id(entry))))


def prove_default(state: BootState, entry: BootEntry) -> None:
    """Raises Stop(boot.default_not_held) unless the loader would boot this entry by itself."""
    if state.next_entry != entry.id:
        raise stop("boot.default_not_held", state.loader, state.next_entry or "nothing that is known", entry.id)
