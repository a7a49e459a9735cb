"""The preflight: proofs that the target kernel is ready for its trial boot. Read-only; one entry per proof.

preflight_driver     headers, NVIDIA's modules, their age, flavour and signatures, nouveau
preflight_entry      the loader's entry, arguments, room, kexec, the fallback
preflight_modules    what disks and network need
preflight_initramfs  the image from inside
preflight_packages   dpkg, holds, apt
preflight_units      services that would fail on any kernel
"""

from __future__ import annotations

from . import (
    preflight_driver,
    preflight_entry,
    preflight_initramfs,
    preflight_modules,
    preflight_packages,
    preflight_units,
)
from .documents import Preflight, Proof, make_head
from .host_io import Host
from .preflight_evidence import Evidence
from .rollfile import Roll


def prove(host: Host, name: str, run_id: str, roll: Roll) -> Preflight:
    """Every proof for the roll's target on this host."""
    with host.hashing_once():
        seen = Evidence(host, roll)
        # The image first: it is read for its inside, and hashed with that.
        inside = preflight_initramfs.proofs(seen)
        proofs = (
            *preflight_driver.proofs(seen),
            *preflight_entry.proofs(seen),
            *preflight_modules.proofs(seen),
            *inside,
            *preflight_entry.fallback_proofs(seen),
            *preflight_packages.proofs(seen),
            *preflight_units.proofs(seen),
        )
    return Preflight(make_head("preflight", name, run_id), roll.target, proofs)


def first_failure(document: Preflight) -> Proof | None:
    """The first proof that does not hold and stops the roll; None where the host is ready."""
    return next((item for item in document.proofs if item.blocks and not item.ok), None)


def warnings(document: Preflight) -> tuple[Proof, ...]:
    """What does not hold and stops nothing."""
    return tuple(item for item in document.proofs if not item.blocks and not item.ok)
