"""Whether signatures are enforced, and whether the driver's signer is enrolled."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuhost.secure_boot import SignerProblem, enforces, parse_enrolled, parse_proc_keys, signer_problem

#: Attributes as the firmware has them: boot-service and runtime access; 0x07 is stored as well.
ON, OFF = b"\x06\x00\x00\x00\x01", b"\x06\x00\x00\x00\x00"
STORED_ON = b"\x07\x00\x00\x00\x01"
NOT_LOCKED = "[none] integrity confidentiality\n"

#: ``mokutil --list-enrolled``; certificates made with OpenSSL 3.0 and shortened.
ENROLLED = """\
[key 1]
SHA1 Fingerprint: 53:61:0c:f8:1f:bd:7e:0c:eb:67:91:3c:9e:f3:e7:94:a9:63:3e:cb
Certificate:
    Data:
        Version: 3 (0x2)
        Serial Number:
            ed:54:a1:d5:af:87:48:94:8d:9f:89:32:ee:9c:7c:34
        Signature Algorithm: sha256WithRSAEncryption
        Issuer: CN=Debian Secure Boot CA
        Validity
            Not Before: Aug 16 18:09:18 2016 GMT
            Not After : Aug  9 18:09:18 2046 GMT
        Subject: CN=Debian Secure Boot CA
        Subject Public Key Info:

[key 2]
SHA1 Fingerprint: 9b:3f:5d:8c:44:6a:2f:5e:72:29:d4:ba:1b:5a:bc:61:0f:ba:5e:8f
Certificate:
    Data:
        Version: 3 (0x2)
        Serial Number:
            58:52:93:63:80:fe:ae:e5:d4:1a:32:7a:e3:2e:e1:9d:12:8e:6a:bd
        Issuer: CN = DKMS module signing key
        Subject: CN = DKMS module signing key
        Subject Public Key Info:

[key 3]
        Issuer: CN = somebody else
        Subject: C = DE, O = "Example, Org", CN = host1.example.com Secure Boot Module Signature key, \
emailAddress = a@example.com
"""
#: ``--short``: the first ten digits of the fingerprint, then the subject.
ENROLLED_SHORT = "53610cf81f CN=Debian Secure Boot CA\n9b3f5d8c44 CN=DKMS module signing key\n"

#: Synthetic, in the form of proc_keys_show() and the kernel's X.509 parser.
PROC_KEYS = """\
0388a77b I--Q---     2 perm 1f3f0000     0 65534 keyring   _uid.0: empty
0a10dd2e I------     1 perm 1f0b0000     0     0 keyring   .machine: 1
1b5a2d3f I------     1 perm 1f030000     0     0 asymmetri Canonical Ltd. Kernel Module Signing: 88f752e560a1e0737e31163a466ad7b70a850c19: X509.rsa 0a850c19 []
2c0f9b11 I------     1 perm 1f030000     0     0 asymmetri Debian Secure Boot CA: 6ccece7e4c6c0d1f6149f3dd27dfcc5cbb419ea1: X509.rsa bb419ea1 []
3d1e94ca I------     1 perm 1f010000     0     0 asymmetri Example Org: site key: 1fc9e68f7419556348fdee2fdeb7ff9da6337b00: X509.ecdsa-nist-p384 a6337b00 []
255a8e04 I------     1 perm 0f0b0000     0     0 keyring   .blacklist: empty
"""  # noqa: E501

MODULES = ("nvidia", "nvidia-uvm", "nvidia-modeset")


@pytest.mark.parametrize(
    ("secure_boot", "setup", "lockdown", "cmdline", "sig_enforce", "expected"),
    [
        (None, None, "", "", "", False),  # BIOS, no lockdown in the kernel
        (OFF, OFF, NOT_LOCKED, "quiet", "N\n", False),
        (ON, OFF, NOT_LOCKED, "", "N", True),  # the running kernel does not lock itself, the target may
        (ON, None, "", "", "", True),
        (ON, ON, NOT_LOCKED, "", "N", False),  # setup mode: no key is checked
        (OFF, OFF, "none [integrity] confidentiality", "", "N", True),
        (OFF, OFF, "none integrity [confidentiality]", "", "N", True),
        (OFF, OFF, NOT_LOCKED, "root=/dev/sda1 module.sig_enforce=1", "N", True),
        (None, None, "", "module.sig_enforce", "", True),
        (None, None, "", "module.sig_enforce=0 my.module.sig_enforce=1", "N", False),
        (None, None, "", "lockdown=integrity", "", True),
        (None, None, "", "lockdown=none", "", False),
        (None, None, "", "", "Y\n", True),
        (b"\x01", None, "", "", "", False),  # cut short
        (b"", b"", "", "", "", False),
    ],
)
def test_enforces(
    secure_boot: bytes | None, setup: bytes | None, lockdown: str, cmdline: str, sig_enforce: str, expected: bool
) -> None:
    assert enforces(secure_boot, setup, lockdown, cmdline, sig_enforce) is expected


def test_validation_disabled_in_shim() -> None:
    assert not enforces(ON, OFF, NOT_LOCKED, "", "N", mok_sb_state_var=ON)
    assert enforces(ON, OFF, NOT_LOCKED, "", "N", mok_sb_state_var=OFF)
    assert enforces(ON, OFF, NOT_LOCKED, "", "N", mok_sb_state_var=STORED_ON)  # not made by shim
    assert enforces(ON, OFF, NOT_LOCKED, "", "Y", mok_sb_state_var=ON)  # asked for otherwise


def test_enrolled_names() -> None:
    assert parse_enrolled(ENROLLED) == (
        "Debian Secure Boot CA",
        "DKMS module signing key",
        "host1.example.com Secure Boot Module Signature key",
    )
    assert parse_enrolled(ENROLLED_SHORT) == ("Debian Secure Boot CA", "DKMS module signing key")
    assert parse_enrolled('        Subject: O=Example, CN="key, with comma"\n') == ("key, with comma",)
    assert parse_enrolled("MokListRT is empty\n") == ()
    assert parse_enrolled("EFI variables are not supported on this system\n") == ()


def test_proc_keys() -> None:
    assert parse_proc_keys(PROC_KEYS) == (
        "Canonical Ltd. Kernel Module Signing",
        "Debian Secure Boot CA",
        "Example Org: site key",
    )
    assert parse_proc_keys("") == ()


def test_nothing_enforced_nothing_asked() -> None:
    assert signer_problem(False, dict.fromkeys(MODULES, ""), []) is None


def test_all_signed_by_an_enrolled_key() -> None:
    signer = "DKMS module signing key"
    assert signer_problem(True, dict.fromkeys(MODULES, signer), parse_enrolled(ENROLLED)) is None
    assert signer_problem(True, dict.fromkeys(MODULES, "site key"), parse_proc_keys(PROC_KEYS)) is None
    ubuntu = dict.fromkeys(MODULES, "Canonical Ltd. Kernel Module Signing")
    assert signer_problem(True, ubuntu, parse_proc_keys(PROC_KEYS)) is None
    assert signer_problem(True, {}, []) is None


def test_unsigned() -> None:
    signers = dict.fromkeys(MODULES, "DKMS module signing key") | {"nvidia-uvm": ""}
    assert signer_problem(True, signers, parse_enrolled(ENROLLED)) == SignerProblem(
        "driver.unsigned", "no signature: nvidia-uvm", "signed modules"
    )


def test_signer_not_enrolled() -> None:
    signers = dict.fromkeys(MODULES, "DKMS module signing key") | {"nvidia-uvm": "signing key"}
    assert signer_problem(True, signers, ["Debian Secure Boot CA", "DKMS module signing key"]) == SignerProblem(
        "driver.signer_not_enrolled",
        "nvidia-uvm signed by 'signing key'",
        "one of: Debian Secure Boot CA, DKMS module signing key",
    )
    problem = signer_problem(True, dict.fromkeys(MODULES, "DKMS module signing key"), [])
    assert problem is not None
    assert problem.expected == "one of: no key at all"


@given(st.text(max_size=300))
def test_no_text_breaks_a_parser(text: str) -> None:
    parse_enrolled(text)
    parse_proc_keys(text)
    enforces(text.encode(), text.encode(), text, text, text)
