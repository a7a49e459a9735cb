"""Proofs that the target kernel has what this host's disks and network need."""

from __future__ import annotations

from . import interface_names, needed_modules, target_modules
from .documents import Proof
from .preflight_evidence import Evidence, proof, warning

LINK_FOLDERS = ("/etc/systemd/network", "/run/systemd/network", "/usr/local/lib/systemd/network")
UDEV_RULES = "/etc/udev/rules.d/70-persistent-net.rules"


def proofs(seen: Evidence) -> list[Proof]:
    """One for each purpose (root, /usr, /boot, ESP, default route), Ubuntu's extra drivers, names of interfaces."""
    return [*_ground_proofs(seen), _route_proof(seen), _extra_proof(seen), _names_proof(seen)]


def _ground_proofs(seen: Evidence) -> list[Proof]:
    needed = seen.ground.modules
    gone = target_modules.missing(needed, seen.modules, seen.files)
    if gone:
        gone = target_modules.missing(needed, seen.modules, seen.files, seen.index_file("modules.alias"))
    found = []
    for purpose in dict.fromkeys(("root", *seen.ground.purposes())):
        names = list(dict.fromkeys(item.module for item in needed if item.purpose == purpose))
        problems = [
            f"{item.problem} for {item.needed.device}{' (DKMS)' if item.dkms else ''}"
            for item in gone
            if item.needed.purpose == purpose
        ]
        if not names:
            # A root file system stands on something: what can't be seen is not proven.
            problems = ["nothing is known of what the mounted root file system stands on"]
        observed = "; ".join(dict.fromkeys(problems)) or ", ".join(names)
        expected = f"every module of it in /lib/modules/{seen.target}"
        found.append(proof(f"modules for {purpose}", not problems, "boot.module_missing", observed, expected))
    return found


def _route_proof(seen: Evidence) -> Proof:
    """Whether anything was proven for the network: a default route in another table than main is not seen."""
    names = ", ".join(needed_modules.default_interfaces(seen.host))
    known = needed_modules.ROUTE in seen.ground.purposes()
    observed = names or "no default route in the main table"
    if names and not known:
        observed = f"nothing is known of what {names} stands on"
    return warning("way out", known, "net.no_default_route", observed, "a default route over a card that is known")


def _extra_proof(seen: Evidence) -> Proof:
    name = target_modules.extra_package(seen.running, seen.target, seen.versions)
    return proof(
        "further drivers",
        name is None,
        "boot.modules_extra_missing",
        f"{name} is not installed" if name else "as for the running kernel",
        "linux-modules-extra where the running kernel has it",
        f"apt-get install {name}, then run the same command again.",
    )


def _names_proof(seen: Evidence) -> Proof:
    host = seen.host
    paths = [f"{folder}/{name}" for folder in LINK_FOLDERS for name in host.names(folder) if name.endswith(".link")]
    links = {path: host.read(path) or "" for path in paths}
    rules = host.read(UDEV_RULES) or ""
    cards = len(needed_modules.physical_cards(host))
    reasons = [
        interface_names.predictable_names(card.name, card.mac, card.driver, cards, seen.command_line, links, rules)
        for card in seen.ground.cards
    ]
    loose = [reason for reason in reasons if reason]
    observed = "; ".join(loose) or ", ".join(card.name for card in seen.ground.cards) or "no default route"
    return warning("interface names", not loose, "net.name_unpinned", observed, "names that no kernel changes")
