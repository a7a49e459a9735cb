"""Names, addresses and secrets replaced in text: the same thing by the same stand-in, wherever it stands.

Stand-ins are those that documentation uses: 192.0.2.0/24 (RFC 5737), 2001:db8::/32 (RFC 3849), example.com (RFC 2606),
locally administered MACs, UUIDs of zeros with a number. Numbers that GPU work is about (versions, PCI addresses, sizes)
stay. Where a text may be a name or not it is replaced: a fixture that is a little wrong is better than one that tells.

Pure.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from . import audit_secrets, secure_boot

_UUID = re.compile(r"(?<![0-9a-fA-F])[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}(?![0-9a-fA-F])")
_LONG_HEX = re.compile(r"(?<![0-9A-Za-z])(?:0x)?(?:[0-9a-f]{64}|[0-9a-f]{40}|[0-9a-f]{32})(?![0-9A-Za-z])")
_MAC = re.compile(r"(?<![0-9a-fA-F:])[0-9a-fA-F]{2}(?::[0-9a-fA-F]{2}){5}(?![0-9a-fA-F:])")
_MAC_DASHED = re.compile(r"(?<![0-9A-Za-z-])[0-9a-fA-F]{2}(?:-[0-9a-fA-F]{2}){5}(?![0-9A-Za-z-])")
_GUID = re.compile(r"(?<![0-9a-fA-F:])[0-9a-fA-F]{4}(?::[0-9a-fA-F]{4}){3}(?![0-9a-fA-F:])")
_IPV6 = re.compile(r"(?<![\w:])[0-9a-fA-F:]*:[0-9a-fA-F:]*:[0-9a-fA-F:.]*(?![\w:])")
# Not so a version's four numbers: they have a letter, a dot, or one more number beside them.
_IPV4 = re.compile(r"(?<![\w.])\d{1,3}(?:\.\d{1,3}){3}(?!\.?\w)")
# Not so an instance of a unit: lxc@NAME.service.
_MAIL = re.compile(
    r"[\w.+-]+@[A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)*\.(?!(?:service|socket|target|timer|mount|slice)\b)[A-Za-z0-9-]+(?!\.?\w)"
)
_HOME = re.compile(r"(?<=/home/)[^/\s:;,'\"]+")
_SERIAL = re.compile(r"(?im)^(\W*(?:serial(?: number)?|asset tag|board id|gpu pdi)\W*[:=]\s*)(?!N/A)\S.*$")
_SECRET = re.compile(
    r"(?i)(\b[\w.-]*(?:token|passw(?:or)?d|passphrase|secret|credential|api[-_]?key|[-_](?:key|pass|pwd))s?(?:[-_]\w+)?"
    r"[\"']?\s*[=:]\s*[\"']?)(?!\s)[^\s\"']+"
)
_KEPT_NETWORKS = tuple(
    map(ipaddress.ip_network, ("127.0.0.0/8", "192.0.2.0/24", "198.51.100.0/24", "203.0.113.0/24", "2001:db8::/32"))
)
_DOCUMENTED = ("192.0.2", "198.51.100", "203.0.113")
_SHORT = 12
COMMON = frozenset(
    {"debian", "docker", "gpu", "gpuhost", "host", "localhost", "lxc", "nobody", "nvidia", "pve", "proxmox", "root"}
    | {"server", "ubuntu", "user", "worker", "www-data", "kernel", "system"}
)
"""Names that tell nobody, and whose replacement would take half of a host's paths and versions with it."""
PUBLIC_UUIDS = frozenset(
    path[-36:] for path in (secure_boot.SECURE_BOOT, secure_boot.SETUP_MODE, secure_boot.MOK_SB_STATE)
)
"""Vendors' ids in the names of EFI variables: the same on every machine."""
_STAND_IN_UUID, _STAND_IN_MAC = "00000000-0000-0000-0000-", "02:00:00:00:"


@dataclass
class Redactor:
    """``names``: host names, user names and the like, which are replaced as whole words."""

    names: tuple[str, ...] = ()
    _known: dict[str, dict[str, str]] = field(default_factory=dict)

    def text(self, text: str) -> str:
        """The text with stand-ins."""
        text = _SECRET.sub(rf"\g<1>{audit_secrets.HIDDEN}", text)
        text = audit_secrets.without_values(text)
        text = _SERIAL.sub(r"\g<1>0", text)
        text = _UUID.sub(lambda found: self._uuid(found[0]), text)
        text = _LONG_HEX.sub(lambda found: self._long(found[0]), text)
        text = _MAC.sub(lambda found: self._mac(found[0], ":"), text)
        text = _MAC_DASHED.sub(lambda found: self._mac(found[0], "-"), text)
        text = _GUID.sub(lambda found: self._guid(found[0]), text)
        text = _IPV6.sub(lambda found: self._ipv6(found[0]), text)
        text = _IPV4.sub(lambda found: self._ipv4(found[0]), text)
        text = _MAIL.sub(lambda found: self._mail(found[0]), text)
        text = _HOME.sub(lambda found: self._home(found[0]), text)
        return self._named(text)

    def words(self, words: Iterable[str]) -> tuple[str, ...]:
        """A command line; a word stays one word."""
        return tuple(self.text(word) for word in audit_secrets.hidden(tuple(words)))

    def _number(self, kind: str, what: str) -> int:
        known = self._known.setdefault(kind, {})
        return int(known.setdefault(what, str(len(known) + 1)))

    def _uuid(self, what: str) -> str:
        if what.startswith(_STAND_IN_UUID) or what.lower() in PUBLIC_UUIDS:
            return what
        return f"{_STAND_IN_UUID}{self._number('uuid', what.lower()):012x}"

    def _long(self, what: str) -> str:
        digits = what.removeprefix("0x")
        if digits.startswith("0000") and not digits[_SHORT:].strip("0"):
            return what
        number = f"{self._number('long', digits):0{_SHORT}x}"  # Docker's short ids differ as well
        return what[: len(what) - len(digits)] + number.ljust(len(digits), "0")

    def _mac(self, what: str, separator: str) -> str:
        plain = what.lower().replace("-", ":")
        if plain.startswith(_STAND_IN_MAC) or plain in ("00:00:00:00:00:00", "ff:ff:ff:ff:ff:ff"):
            return what
        number = self._number("mac", plain)
        return f"{_STAND_IN_MAC}{number >> 8:02x}:{number & 0xFF:02x}".replace(":", separator)

    def _guid(self, what: str) -> str:
        if what.startswith("0000:0000:0000:"):
            return what
        return f"0000:0000:0000:{self._number('guid', what.lower()):04x}"

    def _ipv6(self, what: str) -> str:
        try:
            address = ipaddress.IPv6Address(what)
        except ValueError:
            return what
        if address.is_unspecified or address.is_loopback or any(address in net for net in _KEPT_NETWORKS):
            return what
        return f"2001:db8::{self._number('ipv6', str(address)):x}"

    def _ipv4(self, what: str) -> str:
        try:
            address = ipaddress.IPv4Address(what)
        except ValueError:
            return what
        mask = what.startswith("255.") or address.is_unspecified
        if mask or any(address in net for net in _KEPT_NETWORKS):
            return what
        number = self._number("ipv4", what) - 1
        return f"{_DOCUMENTED[number // 254 % 3]}.{number % 254 + 1}"

    def _mail(self, what: str) -> str:
        return what if what.endswith("@example.com") else f"user{self._number('user', what)}@example.com"

    def _home(self, what: str) -> str:
        return what if re.fullmatch(r"user\d+", what) else f"user{self._number('user', what)}"

    def _named(self, text: str) -> str:
        for name in sorted(set(self.names), key=len, reverse=True):
            if len(name) > 2 and name.lower() not in COMMON and not re.fullmatch(r"name\d+", name):
                stand_in = f"name{self._number('name', name)}"
                text = re.sub(rf"(?<![0-9A-Za-z]){re.escape(name)}(?![0-9A-Za-z])", stand_in, text)
        return text
