"""Secure Boot: whether the kernel refuses modules without a trusted signature, and whether NVIDIA's have one.

A module that DKMS signed with a key that nobody enrolled builds, installs and passes every other proof; it is refused
only when it is loaded ("Key was rejected by service"), which is after the reboot.

Pure: bytes and texts in, frozen dataclasses out.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

EFI_FOLDER = "/sys/firmware/efi/efivars"
SECURE_BOOT = f"{EFI_FOLDER}/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"
SETUP_MODE = f"{EFI_FOLDER}/SetupMode-8be4df61-93ca-11d2-aa0d-00e098032b8c"
MOK_SB_STATE = f"{EFI_FOLDER}/MokSBStateRT-605dab50-e046-4300-abb6-3dd810dd8b23"
LOCKDOWN = "/sys/kernel/security/lockdown"
SIG_ENFORCE = "/sys/module/module/parameters/sig_enforce"

#: efivarfs puts four bytes of attributes before the value; bit 0 is EFI_VARIABLE_NON_VOLATILE.
_ATTRIBUTES = 4
_NON_VOLATILE = 0x01


@dataclass(frozen=True)
class SignerProblem:
    """Modules that the kernel would refuse. ``code`` is a cause code."""

    code: str
    observed: str
    expected: str


def _is_one(variable: bytes | None) -> bool:
    """Whether an EFI variable of one byte is there and is 1."""
    return variable is not None and len(variable) == _ATTRIBUTES + 1 and variable[_ATTRIBUTES] == 1


def _shim_ignores(mok_sb_state: bytes | None) -> bool:
    """Whether validation is off in shim (``mokutil --disable-validation``).

    Shim makes the variable anew at each boot; one that is stored was made by somebody else and counts for nothing
    (the kernel's efi_get_secureboot() looks at the same bit).
    """
    return _is_one(mok_sb_state) and mok_sb_state is not None and not mok_sb_state[0] & _NON_VOLATILE


def enforces(
    secure_boot_var: bytes | None,
    setup_mode_var: bytes | None,
    lockdown: str,
    cmdline: str,
    sig_enforce: str,
    mok_sb_state_var: bytes | None = None,
) -> bool:
    """Whether the target kernel will refuse a module without a trusted signature.

    The variables are bytes as efivarfs gives them, None where absent (BIOS). ``cmdline`` is the target's.

    Secure Boot alone is enough, whatever the running kernel's ``lockdown`` says: Debian, Ubuntu and Proxmox lock their
    kernels down where it is on, and the target may be such a kernel where the running one is a self-built one.
    """
    secure_boot = _is_one(secure_boot_var) and not _is_one(setup_mode_var) and not _shim_ignores(mok_sb_state_var)
    locked = re.search(r"\[(?:integrity|confidentiality)\]", lockdown) is not None
    asked = any(
        re.fullmatch(r"module\.sig_enforce(?:=[1yY]\S*)?|lockdown=(?:integrity|confidentiality)", word)
        for word in cmdline.split()
    )
    return secure_boot or locked or asked or sig_enforce.strip() in ("Y", "1")


#: OpenSSL 1 and 3 write ``CN = name``, 3.2 and later ``CN=name``; a value with a comma is quoted.
_COMMON_NAME = re.compile(r'\bCN\s*=\s*(?:"(?P<quoted>[^"]*)"|(?P<plain>[^,/]+))')
_SUBJECT = re.compile(r"^\s*Subject:(?P<name>.*)$")
#: ``mokutil --list-enrolled --short``: the first ten digits of the fingerprint, then the subject.
_SHORT = re.compile(r"^[0-9a-f]{10} (?P<name>.*)$")


def parse_enrolled(text: str) -> tuple[str, ...]:
    """Common names of ``mokutil --list-enrolled``, long or ``--short`` form, in its order."""
    names = []
    for line in text.splitlines():
        subject = _SUBJECT.match(line) or _SHORT.match(line)
        found = subject and _COMMON_NAME.search(subject["name"])
        if found:
            names.append((found["quoted"] or found["plain"] or "").strip())
    return tuple(dict.fromkeys(filter(None, names)))


#: ``1a2b3c4d I------  1 perm 1f030000  0  0 asymmetri Name: 58e5a3...: X509.rsa 12ab34cd []``
_KEY = re.compile(r"^\S+\s+\S+\s+\d+\s+\S+\s+\S+\s+\S+\s+\S+\s+asymmetri\s+(?P<name>.*?)(?:: [0-9a-f]+)?: X509\.")


def parse_proc_keys(text: str) -> tuple[str, ...]:
    """Names of the X.509 keys in /proc/keys: builtin, ``.machine`` and ``.platform`` alike.

    They have the form ``name`` or ``organisation: name`` (the kernel's x509_fabricate_name()). Which keyring a key is
    in can't be seen there. Needed beside mokutil: keys that are built into a kernel are in no EFI variable.
    """
    found = (_KEY.match(line) for line in text.splitlines())
    return tuple(dict.fromkeys(match["name"].strip() for match in found if match))


def _trusted(signer: str, enrolled: Iterable[str]) -> bool:
    return any(name == signer or name.endswith(f": {signer}") for name in enrolled)


def signer_problem(enforced: bool, module_signer: Mapping[str, str], enrolled: Collection[str]) -> SignerProblem | None:
    """What the kernel would refuse; None where it takes every module, or asks for no signature.

    module_signer  module -> ``modinfo -F signer``; empty where the module is unsigned
    enrolled       names of :func:`parse_enrolled` and :func:`parse_proc_keys` together
    """
    if not enforced:
        return None
    unsigned = [module for module, signer in module_signer.items() if not signer.strip()]
    if unsigned:
        return SignerProblem("driver.unsigned", f"no signature: {', '.join(unsigned)}", "signed modules")
    strangers: dict[str, list[str]] = {}
    for module, signer in module_signer.items():
        if not _trusted(signer.strip(), enrolled):
            strangers.setdefault(signer.strip(), []).append(module)
    if not strangers:
        return None
    observed = "; ".join(f"{', '.join(modules)} signed by {signer!r}" for signer, modules in strangers.items())
    return SignerProblem("driver.signer_not_enrolled", observed, f"one of: {', '.join(enrolled) or 'no key at all'}")
