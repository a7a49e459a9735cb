"""Whether a network card keeps its name under another kernel.

Pure: text in, a reason out.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from . import cmdline

#: Paravirtual cards: their names come from a hypervisor that does not change with the guest's kernel.
_VIRTUAL_DRIVERS = {"virtio_net", "xen_netfront", "vif", "hv_netvsc", "ena", "gve", "vmxnet3"}


def predictable_names(
    interface: str, mac: str, driver: str, cards: int, command_line: str, link_files: Mapping[str, str], udev_rules: str
) -> str | None:
    """Why the default route's card may have another name under another kernel; None where nothing speaks for it.

    interface   a physical one; with a bond or bridge ask for each member
    cards       number of physical cards in the host
    link_files  path -> text of *.link (/etc and /run/systemd/network; netplan's ``set-name`` is there too)
    udev_rules  text of 70-persistent-net.rules
    """
    if (
        _pinned(interface, mac, command_line, link_files, udev_rules)
        or interface == f"enx{mac.replace(':', '').lower()}"
    ):
        return None
    if interface.startswith(("eth", "wlan")):
        if cards == 1:
            return None
        return (
            f"{interface} is one of {cards} cards named in the order in which they are found, and no .link file pins it"
        )
    if driver in _VIRTUAL_DRIVERS or not re.match(r"(?:en|wl|ww|ib)", interface):
        return None
    return (
        f"{interface} is named by slot or path, which a new kernel may count otherwise; no .link file pins it by {mac}"
    )


def _pinned(interface: str, mac: str, command_line: str, link_files: Mapping[str, str], udev_rules: str) -> bool:
    """Whether a .link file, a udev rule or dracut's ``ifname=`` ties the name to the card's address."""
    wanted = mac.lower()
    for text in link_files.values():
        settings = re.findall(r"^\s*(\w+)\s*=\s*(.*?)\s*$", text, re.MULTILINE)
        addresses = [value.lower().replace("-", ":").split() for key, value in settings if key.endswith("MACAddress")]
        if any(wanted in found for found in addresses) and ("Name", interface) in settings:
            return True
    for line in udev_rules.splitlines():
        if (
            not line.lstrip().startswith("#")
            and f'NAME="{interface}"' in line
            and f'address}}=="{wanted}"' in line.lower()
        ):
            return True
    arguments = [(item.key, item.value or "") for item in cmdline.parse(command_line).own]
    return any(key == "ifname" and value.lower() == f"{interface}:{wanted}".lower() for key, value in arguments)
