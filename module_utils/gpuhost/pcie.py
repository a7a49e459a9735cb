"""PCIe tuning: MaxReadReq of each GPU and of the bridges above it, now and after whatever resets it.

One set of functions for the module, for ``gpu-pcie-tuning.service`` at boot and for the udev rules: what tune sets is
what audit expects and what the host keeps.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from . import pcie_findings, pcie_register, pcie_tree, pcie_unit
from .errors import Stop
from .host_io import Host
from .pcie_tree import Facts, Selection, Wishes, choose
from .tune_step import Concern
from .tuning import Wanted, Write

CONCERN = Concern("pcie", "pcie", "pcie.not_writable")
NOTHING_TO_DO = "nothing to do"


def wishes(given: dict[str, Any]) -> Wishes:
    """The role's variables, by the module's names. Raises Stop(input.invalid)."""
    devices = tuple(str(item) for item in given["devices"])
    return Wishes(int(given["max_read_request_bytes"]), bool(given["bridges"]), devices).checked()


def read(host: Host) -> Facts:
    """The bus now: GPUs, the bridges above them, their links."""
    return pcie_tree.read(host)


def wanted(facts: Facts, wish: Wishes) -> Wanted:
    """Findings as they are, and the writes that would end them: registers, and what keeps them.

    On a host without any GPU there is nothing to keep, nor where nothing may be set. A GPU without a driver counts: the
    rules are for when it gets one.
    """
    chosen = choose(facts.functions, wish)
    found = pcie_findings.findings(facts, chosen, wish)
    waits = any(item.is_gpu and not item.driver and not item.is_virtual for item, _ in chosen.left_alone)
    if wish.max_read_request_bytes and (facts.forbids or not (chosen.gpus or waits)):
        return Wanted(found)
    return Wanted(found, (*pcie_unit.writes(wish), *registers(facts, chosen, wish)))


def registers(facts: Facts, chosen: Selection, wish: Wishes) -> tuple[Write, ...]:
    """The writes of registers that can be read and that have another value: each device once, the root port before it.

    A device that answers 0xffff is never among them.
    """
    size = wish.max_read_request_bytes
    addresses = dict.fromkeys(item for gpu in chosen.gpus for item in (gpu.path if wish.bridges else gpu.path[-1:]))
    return tuple(
        Write(pcie_register.KIND, address, str(size), f"MaxReadReq of {address} in bytes")
        for address in addresses
        if size and not facts.forbids and facts.registers[address].state == "readable"
    )


def keep(host: Host, address: str | None = None) -> str:
    """Set what the host is to keep, for all GPUs or for one and what lies above it; a line for each device.

    Nothing is recorded: the values from before the first tune are on record since then. One device that does not take
    it keeps none of the others back, and fails no unit at every boot: the audit says what does not hold.
    """
    wish = pcie_unit.settings(host)
    if wish is None:
        return f"{NOTHING_TO_DO}: no {pcie_unit.SETTINGS}"
    facts = read(host)
    chosen = choose(facts.functions, wish)
    if address is not None:
        chosen = replace(chosen, gpus=tuple(gpu for gpu in chosen.gpus if gpu.address == address))
    return "\n".join(_kept(host, item) for item in registers(facts, chosen, wish)) or NOTHING_TO_DO


def _kept(host: Host, write: Write) -> str:
    before = pcie_register.read(host, write.object)
    if before == write.value:
        return f"{write.object}: {before}"
    try:
        pcie_register.write(host, write.object, write.value)
    except Stop as error:
        return f"{write.object}: {error.blocker.cause}: {error.blocker.observed}"
    return f"{write.object}: {before} -> {write.value}"
