"""/etc/default/grub and /etc/default/grub.d/*.cfg: what they come to, and a drop-in that gets our arguments in.

grub-mkconfig sources the main file and then each ``*.cfg`` in the order of a shell's glob (util/grub-mkconfig.in with
Debian's ``default-grub-d.patch``), with a plain POSIX shell under ``set -e``. Another ending (``.conf``) is not read. A
kernel gets ``$GRUB_CMDLINE_LINUX $GRUB_CMDLINE_LINUX_DEFAULT``, a recovery entry only the first (10_linux.in).

What is understood of the shell is said in shell_assignments.py.

Pure: text in, frozen dataclasses and text out.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from . import cmdline, grub_config
from .shell_assignments import DEFAULT, LINUX, NEEDED, Assignment, Reference, assignments

#: Our drop-in: it sorts behind what distributions ship there (50-cloudimg-settings, init-select, kdump-tools).
OWN = "zz-gpuhost.cfg"


@dataclass(frozen=True)
class Effective:
    """The values that grub-mkconfig works with; None where no file sets the variable.

    assigned  variable -> names of the files that assign it, in order
    """

    cmdline_linux: str | None
    cmdline_linux_default: str | None
    default: str | None
    assigned: dict[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def line(self) -> str:
        """What a kernel gets behind ``root=... ro``."""
        return f"{self.cmdline_linux or ''} {self.cmdline_linux_default or ''}"


def _order(name: str) -> tuple[bool, bytes]:
    """The main file first, then the drop-ins as a shell's glob sorts them in the C locale."""
    last = name.rsplit("/", 1)[-1]
    return last.endswith(".cfg"), last.encode("utf-8", "surrogateescape")


def _is_read(name: str) -> bool:
    last = name.rsplit("/", 1)[-1]
    return last == "grub" or (last.endswith(".cfg") and not last.startswith("."))


def effective(files: Sequence[tuple[str, str]], without_ours: bool = False) -> Effective:
    """The values after all files were sourced.

    files         (name or path, text) of /etc/default/grub and of the files in grub.d, in any order
    without_ours  leave our own drop-in out: what ``render_dropin`` starts from

    ValueError, with file and line, where a variable we need is not certain.
    """
    values: dict[str, str | None] = {}
    unknown: dict[str, str] = {}
    assigned: dict[str, tuple[str, ...]] = {}
    for name, text in sorted(files, key=lambda item: _order(item[0])):
        if not _is_read(name) or (without_ours and name.rsplit("/", 1)[-1] == OWN):
            continue
        try:
            found = assignments(text)
        except ValueError as error:
            raise ValueError(f"{name}, {error}") from error
        for item in found:
            assigned[item.name] = (*assigned.get(item.name, ()), name)
            value = _evaluate(item, values)
            values[item.name] = value
            if value is None:
                references = [part.name for part in item.parts or () if isinstance(part, Reference)]
                cause = next((unknown[other] for other in references if other in unknown), "")
                unknown[item.name] = cause or f"{name}, line {item.line}"
    for needed in NEEDED:
        if needed in values and values[needed] is None:
            raise ValueError(f"{unknown[needed]}: the value of {needed} is not understood")
    return Effective(values.get(LINUX), values.get(DEFAULT), values.get("GRUB_DEFAULT"), assigned)


def _evaluate(item: Assignment, values: dict[str, str | None]) -> str | None:
    """The value of an assignment; None where it is unknown. A variable that is not set is empty."""
    if item.parts is None:
        return None
    result = ""
    for part in item.parts:
        value = values.get(part.name, "") if isinstance(part, Reference) else part
        if value is None:
            return None
        result += value
    return result


# --- our drop-in


def _escaped(text: str) -> str:
    """Text for between double quotes of a shell; ValueError for a line end, which a kernel line cannot hold."""
    if re.search(r"[\n\0]", text):
        raise ValueError(f"a line end in {text!r}")
    return re.sub(r'([\\"$`])', r"\\\1", text)


def _has(text: str, key: str) -> bool:
    name = key.replace("-", "_")
    return any(item.key == name for item in cmdline.parse(text).own)


def _changed(linux: str, default: str, wanted: cmdline.Wanted) -> tuple[str, str]:
    """Both values with our arguments: each where its key is already, a new one in the second."""
    for key, value in wanted.items():
        together = f"{linux} {default}"
        if cmdline.apply(together, {key: value}) == together:  # right already; also refuses to guess
            continue
        if value is None or value is False:
            linux, default = cmdline.apply(linux, {key: None}), cmdline.apply(default, {key: None})
        elif _has(linux, key) or len(cmdline.parse(linux).own) < len(cmdline.parse(linux).arguments):
            linux, default = cmdline.apply(linux, {key: value}), cmdline.apply(default, {key: None})
        else:
            default = cmdline.apply(default, {key: value})
    return linux, default


def _others(line: str, wanted: cmdline.Wanted) -> list[tuple[str, str | None]]:
    keys = {key.replace("-", "_") for key in wanted}
    return [(item.key, item.value) for item in cmdline.parse(line).arguments if item.key not in keys]


def render_dropin(effective_before: Effective, wanted: cmdline.Wanted) -> str:
    """Text of ``/etc/default/grub.d/zz-gpuhost.cfg``; empty where the arguments are all right without it.

    effective_before  the values without our own drop-in

    A new argument is appended, so that later changes of the other files still count. Where one has to be replaced or
    removed, the value is set as a whole. Nothing else is changed, which is proven on what the kernel receives.

    ValueError: a guess would be needed (see ``cmdline.apply``), GRUB could not hand a value on, or a file that sorts
    behind ours sets the same variable.
    """
    linux, default = effective_before.cmdline_linux or "", effective_before.cmdline_linux_default or ""
    if "\n" in linux + default:
        raise ValueError(f"a line end within {LINUX} or {DEFAULT}: it would end the command in grub.cfg")
    new_linux, new_default = _changed(linux, default, wanted)
    if (new_linux, new_default) == (linux, default):
        return ""
    before, after = (grub_config.received(text) for text in (f"{linux} {default}", f"{new_linux} {new_default}"))
    lacks = cmdline.missing(after, wanted)
    if lacks or _others(before, wanted) != _others(after, wanted):
        raise ValueError(f"GRUB would not hand these arguments to the kernel as they are: {' '.join(lacks) or after}")
    lines = ["# Written by gpuhost: kernel arguments. What is set here by hand is lost."]
    for name, old, new in ((LINUX, linux, new_linux), (DEFAULT, default, new_default)):
        if new == old:
            continue
        sources = effective_before.assigned.get(name, ())
        later = [source for source in sources if _order(source) > _order(OWN)]
        if later:
            raise ValueError(f"{later[-1]} sorts behind {OWN} and sets {name} again")
        kept = old.rstrip(" ")
        if not kept or new.startswith(kept + " "):
            lines.append(f'{name}="${name} {_escaped(new[len(kept) :].strip(" "))}"')
        else:
            lines.append(f"# An argument is replaced, so this is the whole value. {sources[-1]} came to: {old}")
            lines.append(f'{name}="{_escaped(new)}"')
    return "\n".join(lines) + "\n"


def with_default(entry: str) -> str:
    """Text of a drop-in that makes an entry the default, by its id path.

    grub-mkconfig copies the value between double quotes of grub.cfg as it is: ValueError for what would not survive.
    """
    if not entry or re.search(r'[\\"$`\n\0]', entry):
        raise ValueError(f"{entry!r} cannot be a GRUB_DEFAULT")
    return f'GRUB_DEFAULT="{entry}"\n'
