"""The table of defects: each spoils a clean root in one way and returns the cause that has to come out.

The defects themselves are in defects_driver.py, defects_ground.py and defects_boot.py.
"""

from __future__ import annotations

from collections.abc import Callable

from fake_ready import DEBIAN, Distribution, Root

Defect = Callable[[Root], str]
DEFECTS: dict[str, tuple[Distribution, Defect]] = {}
WARNINGS = {
    "boot.fallback_not_booted",
    "driver.reboot_pending",
    "dkms.other_not_built",
    "net.name_unpinned",
    "net.no_default_route",
}


def defect(kind: Distribution = DEBIAN) -> Callable[[Defect], Defect]:
    """Enter a function into the table, with the root that it is made in."""

    def register(spoil: Defect) -> Defect:
        assert spoil.__name__ not in DEFECTS
        DEFECTS[spoil.__name__] = (kind, spoil)
        return spoil

    return register
