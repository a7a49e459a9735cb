"""The parts of the audit that no tuning belongs to: each reads its own facts and judges them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

from . import (
    audit_containers,
    audit_driver,
    audit_firmware,
    audit_flags,
    audit_interconnect,
    audit_kernel,
    audit_serving,
)
from .documents import Finding
from .host_io import Host

Look = Callable[[Host], Sequence[Finding]]
_PLAIN = (audit_firmware, audit_containers, audit_driver, audit_kernel, audit_interconnect)
"""Files with ``DOMAIN``, ``read(host)`` and ``findings(facts)``."""


def looks(serving_flags: Any) -> dict[str, Look]:
    """What looks at a host, by domain. ``serving_flags``: host_audit_serving_flags. Raises Stop(input.invalid)."""
    declared = audit_flags.declared(serving_flags)

    def serving(host: Host) -> Sequence[Finding]:
        return audit_serving.findings(audit_serving.read(host), declared)

    return {**{module.DOMAIN: _look(module) for module in _PLAIN}, audit_serving.DOMAIN: serving}


def _look(module: ModuleType) -> Look:
    return lambda host: module.findings(module.read(host))
