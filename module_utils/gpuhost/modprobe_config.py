"""What modprobe's configuration says, in an image or on a host: the options of modules, and what keeps one away.

How modprobe reads its configuration was tried with kmod 34 on Debian 13.

Pure: bytes in, frozen dataclasses out.
"""

from __future__ import annotations

import posixpath
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass

from . import cmdline, dkms
from .initramfs import Image
from .target_modules import canonical, module_name

#: modprobe.d(5): of two files of one name the first of these folders wins; then all are read in the order of names.
_MODPROBE_FOLDERS = ("etc", "run", "usr/local/lib", "usr/lib", "lib")
_DOES_NOTHING = {"false", "true", "nologin", ":"}


@dataclass(frozen=True)
class KeptAway:
    """Whether a module stays unloaded, and by what; where it does not, what is there instead."""

    kept: bool
    reason: str


def _modprobe_lines(files: Mapping[str, bytes]) -> Iterator[tuple[str, str, str, str]]:
    """(path, command, name with ``-``, rest) of each line of modprobe's configuration, in modprobe's order."""
    chosen: dict[str, str] = {}
    for folder in _MODPROBE_FOLDERS:
        for path in files:
            if posixpath.dirname(path).lstrip("/") == f"{folder}/modprobe.d" and path.endswith(".conf"):
                chosen.setdefault(posixpath.basename(path), path)
    for _, path in sorted(chosen.items()):
        for line in files[path].decode("utf-8", "replace").replace("\\\n", "").splitlines():
            words = line.split(None, 2)
            if len(words) >= 2 and not words[0].startswith("#"):
                yield path, words[0], canonical(words[1]), words[2] if len(words) > 2 else ""


def _options(files: Mapping[str, bytes], names: set[str], command_line: str) -> Iterator[tuple[str, str, str | None]]:
    """(where, key, value) of each option for a module; the last one of a key is in force."""
    for path, command, name, rest in _modprobe_lines(files):
        if command == "options" and name in names:
            for item in cmdline.parse(rest).own:
                yield path, item.key, item.value
    for item in cmdline.parse(command_line).own:
        module, dot, key = item.key.partition(".")
        if dot and canonical(module) in names:
            yield "the kernel command line", key, item.value


def modprobe_problems(image: Image, wanted: Mapping[str, Mapping[str, str]], command_line: str = "") -> tuple[str, ...]:
    """Options (module -> key -> value) that are not in force inside the image, for the modules that it holds."""
    return option_problems("in the image", image.files, image.names, wanted, command_line)


def option_problems(
    place: str,
    files: Mapping[str, bytes],
    names: Iterable[str],
    wanted: Mapping[str, Mapping[str, str]],
    command_line: str = "",
    builtin: Collection[str] | None = None,
) -> tuple[str, ...]:
    """Options that are not in force at a place.

    names    files of the place; Debian's nvidia-current counts as nvidia: its ``install`` line hands the options on
    builtin  the modules that the kernel has built in, where each module has to be; None: one without a file is passed

    A module that is built in never sees modprobe.d: only ``module.key=value`` on the kernel's command line counts.
    """
    names = list(names)
    exact = {module_name(path): path for path in names}
    held = {module: exact[canonical(module)] for module in wanted if canonical(module) in exact}
    held |= dkms.find_modules(names, wanted)
    problems: list[str] = []
    for module in sorted(set(wanted) - set(held)) if builtin is not None else ():
        problems += _without_file(place, module, wanted[module], command_line, canonical(module) in (builtin or ()))
    for module, path in sorted(held.items()):
        options = list(_options(files, {canonical(module), module_name(path)}, command_line))
        for key, value in sorted(wanted[module].items()):
            there = [(where, found) for where, name, found in options if name == key.replace("-", "_")]
            if not there:
                problems.append(f"{path} is {place}, its option {key}={value} is not")
            elif there[-1][1] != value:
                where, found = there[-1]
                problems.append(f"{where} {place} sets {key}={found} for {module}, wanted is {key}={value}")
    return tuple(problems)


def _without_file(
    place: str, module: str, wanted: Mapping[str, str], command_line: str, built_in: bool
) -> Iterator[str]:
    """What is wrong with the options of a module that has no file."""
    if wanted and not built_in:
        yield f"no such module {place}: {module}"
        return
    there = {name: value for _, name, value in _options({}, {canonical(module)}, command_line)}
    for key, value in sorted(wanted.items()):
        if there.get(key.replace("-", "_")) != value:
            yield f"{module} is built in: use {module}.{key}={value} on the command line, modprobe.d has no effect"


def kept_away(
    module: str, files: Mapping[str, bytes], command_line: str = "", *, present: Collection[str], initramfs: bool
) -> KeptAway:
    """Whether nothing loads a module by itself: nouveau, nova_core, nova_drm.

    files      modprobe.d of the image (``Image.files``) or of the host, path -> bytes
    present    names of the modules that exist there: what is not there needs no blacklist
    initramfs  the files are an image's: ``conf/modules`` loads in spite of a blacklist, and two more arguments count
    """
    name = canonical(module)
    if name not in {canonical(item) for item in present}:
        return KeptAway(True, f"no module {module}")
    arguments = [(item.key, item.value or "") for item in cmdline.parse(command_line).own]
    # Both of these compare with the module's own name: nova-core would keep nothing away.
    kernels = [value for key, value in arguments if key == "module_blacklist"][-1:]
    if name.replace("-", "_") in ",".join(kernels).split(","):
        return KeptAway(True, f"module_blacklist={kernels[0]}")
    lines = list(_modprobe_lines(files))
    for path, command, subject, rest in lines:
        if command == "install" and subject == name and posixpath.basename((rest.split() or ["?"])[0]) in _DOES_NOTHING:
            return KeptAway(True, f"install {module} {rest} in {path}")
    loaded = files.get("conf/modules", b"").decode("utf-8", "replace").splitlines() if initramfs else []
    if any(canonical(line.split()[0]) == name for line in loaded if line.split()):
        return KeptAway(False, f"conf/modules in the image loads {module}, in spite of any blacklist")
    for key, value in arguments:
        exact = key == "modprobe.blacklist" and name.replace("-", "_") in value.split(",")
        early = initramfs and key in ("blacklist", "rd.driver.blacklist")
        if exact or (early and name in canonical(value).split(",")):
            return KeptAway(True, f"{key}={value}")
    for path, command, subject, _ in lines:
        if command == "blacklist" and subject == name:
            return KeptAway(True, f"blacklist {module} in {path}")
    if any(line[1:] == ("alias", name, "off") for line in lines):
        return KeptAway(False, f"alias {module} off does not keep udev from loading it by its device")
    return KeptAway(False, f"nothing keeps {module} from being loaded")
