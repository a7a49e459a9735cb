"""What one line of a container configuration says: a device rule, a mount from below /dev, a devN entry.

The rule grammar is liblxc's (cgfsng.c: device_cgroup_rule_parse, device_cgroup_rule_parse_devpath).
"""

from __future__ import annotations

import re
from functools import lru_cache

from .lxc_lines import DevEntry, DeviceMount, DeviceRule, Line, RuleKind, display
from .proc_devices import nvidia_node

# An empty `lxc.cgroup2` clears the rules of both keys; with a value it is none of ours.
_DEVICE_KEY = re.compile(r"lxc\.cgroup(2?)(?:\.devices\.(allow|deny))?\Z")
_LOOKS_LIKE_RULE = re.compile(rb"\s*lxc\.cgroup2?\.devices\.(allow|deny)\s*[:=]", re.IGNORECASE)
# "exactly one blank" is one isspace() character; after three access letters anything may follow.
_NUMBERS = re.compile(rb"([abc])\s(\*|\d+):(\*|\d+)\s([rwm]{1,2}\Z|[rwm]{3})", re.DOTALL)
_PATH = re.compile(rb"(/[^ ]*) +([rwm]{1,2}(?= |\Z)|[rwm]{3})", re.DOTALL)
_INT_MAX = 2**31 - 1  # liblxc keeps the numbers in an int


@lru_cache(maxsize=8192)
def device_rule(line: Line) -> DeviceRule | None:
    """The device rule of a line, or None where it has none."""
    key = _DEVICE_KEY.match(line.key) if line.kind == "entry" else None
    value = line.value
    if not key or (value and not key.group(2)):
        return None
    version, allow = (2 if key.group(1) else 1), key.group(2) == "allow"

    def rule(kind: RuleKind, **more: object) -> DeviceRule:
        common = (line.number, line.section, line.key, version, allow, kind, line.text)
        return DeviceRule(*common, file=line.file, **more)  # type: ignore[arg-type]

    if value in (b"", b"a"):
        return rule("all") if value else rule("clear")
    path = _PATH.match(value)
    if path:
        refused = "" if allow else "only an allow rule may name a path"
        return rule("path", path=display(path.group(1)), access=path.group(2).decode("ascii"), malformed=refused)
    numbers = _NUMBERS.match(value)
    problem = _problem(numbers)
    if problem or not numbers:
        return rule("malformed", malformed=problem)
    major, minor = numbers.group(2), numbers.group(3)
    return rule(
        "numbers",
        type=numbers.group(1).decode("ascii"),
        major=None if major == b"*" else int(major),
        minor=None if minor == b"*" else int(minor),
        access=numbers.group(4).decode("ascii"),
        major_span=(line.value_start + numbers.start(2), line.value_start + numbers.end(2)),
    )


def ignored_rule(line: Line) -> bool:
    """Whether the line looks like a device rule and its reader does not take it as one."""
    return line.kind == "unparsed" and _LOOKS_LIKE_RULE.match(line.body) is not None


def _problem(numbers: re.Match[bytes] | None) -> str:
    """Why liblxc would refuse the numbers of a rule, or read other ones; empty when it would not."""
    if not numbers:
        return "not 'type major:minor access' with one blank and 1-3 letters of rwm"
    digits = [number for number in numbers.group(2, 3) if number != b"*"]
    if any(len(number) > 1 and number.startswith(b"0") for number in digits):
        return "a leading zero makes liblxc read the number as octal"
    if any(len(number) > 10 or int(number) > _INT_MAX for number in digits):
        return "the number is too large for a device number"
    return ""


def device_mount(line: Line) -> DeviceMount | None:
    """The bind mount of a line whose source lies below /dev, or None."""
    if line.kind != "entry" or line.key != "lxc.mount.entry":
        return None
    fields = display(line.value).split()
    if not fields or not fields[0].startswith("/dev/"):
        return None
    options = tuple(fields[3].split(",")) if len(fields) > 3 else ()
    return DeviceMount(line.number, line.section, fields[0], options, nvidia_node(fields[0]), line.file)


def dev_entry(line: Line) -> DevEntry | None:
    """The devN entry of a line, or None."""
    if line.kind != "entry" or not line.key.startswith("dev") or not re.fullmatch(r"dev\d+", line.key):
        return None
    parts = [part.strip() for part in display(line.value).split(",")]
    # The path is the default key of the property string: first and bare, or path= anywhere.
    named = [part[len("path=") :] for part in parts if part.startswith("path=")]
    path = (named or parts)[0]
    return DevEntry(line.number, line.section, line.key, path, nvidia_node(path))
