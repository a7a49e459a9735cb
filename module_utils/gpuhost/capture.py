"""``gpuhost survey --capture``: a real host as a fixture, without its names, addresses and secrets.

Every part of the audit reads through a recorder; what it looked at is cut down to what it needed, redacted, and written
as one text (audit_snapshot) that a test lays out again. Let somebody read it before it leaves the house all the same.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from dataclasses import replace

from . import audit_containers, audit_rooted, audit_servers, audit_serving, kernel
from .audit_recorder import Recorder
from .audit_redact import Redactor
from .audit_snapshot import Snapshot, render
from .host_io import Host

_PID = re.compile(r"/proc/(\d+)(/|$)")
_PACKAGE = re.compile(r"(?:linux|proxmox|pve)-(?:image|headers|kernel|modules)\S*|.*nvidia.*|cuda-drivers.*|dkms|dpkg")
_PACKAGE_LISTS = ("dpkg-query", "apt-cache")
"""They name nobody, and a version may look like an address."""
_XID = re.compile(r"^.*NVRM: Xid.*\n", re.MULTILINE)
_MACHINE_NAMES = ("/proc/sys/kernel/hostname", "/etc/hostname", "/proc/sys/kernel/domainname", "/etc/mailname")
_FIRST_USER, _LAST_USER = 1000, 60000
_CONTAINER_NAME = re.compile(r"^(?:lxc\.uts\.name\s*=|hostname:)\s*(\S+)", re.MULTILINE)
# A process that is number 1 in its own namespace, and no deeper.
_INIT = re.compile(r"^NSpid:\s+\d+\s+1$", re.MULTILINE)
_MODULES = re.compile(r"(?:/usr)?/lib/modules/")
_SETTINGS = re.compile(r"(?:/usr/local/lib|/usr/lib|/lib|/etc|/run)/sysctl\.(?:d/|conf$)")
_COMMENT = re.compile(r"\s*(?:[#;].*)?$")
_COMMAND_SOCKET = re.compile(r"^.* @\S.*/command$", re.MULTILINE)


def capture(host: Host, looks: Iterable[Callable[[Host], object]], about: str = "") -> str:
    """The text of the fixture. ``looks``: what reads the host, as the audit does (``Part.look``)."""
    recorder = Recorder(host)
    for look in looks:
        look(recorder)
    _site_packages(recorder)
    made = redacted(shortened(recorder.snapshot), Redactor(names(host, recorder.snapshot)))
    return render(replace(made, about=about or "# Captured and redacted by: gpuhost survey --capture\n"))


def _site_packages(host: Recorder) -> None:
    """The folders of Python packages, which are read below /proc/PID/root without the host's own functions."""
    for server in audit_serving.read(host).servers:
        for pid in (server.pid, *server.workers):
            for site in audit_servers.mapped(host.read(f"/proc/{pid}/maps") or "")[1]:
                found = audit_rooted.names(host, pid, site) or ()
                known = [name for name in found if audit_servers.versions([name])]
                host.snapshot.folders |= {f"/proc/{pid}/root{site}/{name}" for name in known}


def names(host: Host, snapshot: Snapshot) -> tuple[str, ...]:
    """Names of the machine, of its people and of its containers."""
    found = {name for path in _MACHINE_NAMES for name in (host.read(path) or "").split()}
    found |= {part for name in found for part in name.split(".")[:1]}
    for line in (host.read("/etc/passwd") or "").splitlines():
        fields = line.split(":")
        if len(fields) > 2 and fields[2].isdecimal() and _FIRST_USER <= int(fields[2]) < _LAST_USER:
            found.add(fields[0])
    for path, data in snapshot.files.items():
        if path.endswith((".conf", "/config")):
            found |= set(_CONTAINER_NAME.findall(data.decode("utf-8", "replace")))
        parts = path.split("/")
        if path.startswith("/var/lib/lxc/") and len(parts) > 4:
            found.add(parts[4])
    return tuple(sorted(name for name in found if name and not name.isdecimal()))


# --- cut down


def shortened(seen: Snapshot) -> Snapshot:
    """What the audit needs of what it looked at."""
    ours = _processes(seen)
    files, links = {}, {}
    for path, data in seen.files.items():
        found = _PID.match(path)
        if found and int(found[1]) not in ours:
            continue
        if _MODULES.match(path) and not data and "nvidia" not in path:
            continue
        files[path] = _short(path, data)
    for path, target in seen.links.items():
        found = _PID.match(path)
        if not found or int(found[1]) in ours:
            links[path] = target
    folders = {path for path in seen.folders if not (found := _PID.match(path)) or int(found[1]) in ours}
    # What something lies in need not be named.
    needed = {parent for path in (*files, *links, *folders) for parent in _parents(path)}
    runs = {argv: (status, _short_output(argv, out), err) for argv, (status, out, err) in seen.runs.items()}
    return replace(seen, files=files, links=links, folders=folders - needed, runs=runs)


def _parents(path: str) -> set[str]:
    parts = path.split("/")
    return {"/".join(parts[:end]) for end in range(2, len(parts))}


def _processes(seen: Snapshot) -> set[int]:
    """Those that hold a GPU, that are a server or its worker, and the containers' first ones."""
    processes, held = [], set()
    for path, data in seen.files.items():
        found = _PID.match(path)
        if found and path.endswith("/cmdline") and data:
            status = seen.files.get(f"/proc/{found[1]}/status", b"").decode("utf-8", "replace")
            processes.append(audit_serving.process(int(found[1]), data.decode("utf-8", "replace"), status))
        if found and path.endswith("/status") and _INIT.search(data.decode("utf-8", "replace")):
            held.add(int(found[1]))
    held |= {int(found[1]) for path in seen.links if "/fd/" in path and (found := _PID.match(path))}
    groups = audit_servers.group(processes)
    return held | {pid for _, head, workers in groups for pid in (head.pid, *workers)}


def _short(path: str, data: bytes) -> bytes:
    """One file, cut down to what is read in it."""
    text = data.decode("utf-8", "replace")
    if path == "/proc/cpuinfo":
        first = text.split("\n\n")[0] + "\n"
        return "".join(re.findall(r"^(?:processor|vendor_id|model name|flags)\s*:.*\n", first, re.MULTILINE)).encode()
    if _SETTINGS.match(path):
        return "".join(line for line in text.splitlines(keepends=True) if not _COMMENT.match(line)).encode()
    if path == "/proc/net/unix":
        return "".join(f"{line}\n" for line in _COMMAND_SOCKET.findall(text)).encode()
    if path.endswith("/maps") and _PID.match(path):
        return _short_maps(text).encode()
    if path.endswith("/environ") and _PID.match(path):
        return "".join(f"{word}\0" for word in text.split("\0") if word.startswith("LD_PRELOAD=")).encode()
    if path.endswith("/limits") and _PID.match(path):
        return "".join(re.findall(r"^Max locked memory.*\n", text, re.MULTILINE)).encode()
    if path == "/proc/self/status" or (path.endswith("/status") and _PID.match(path)):
        return "".join(re.findall(r"^(?:PPid|NSpid|CapEff):.*\n", text, re.MULTILINE)).encode()
    if path.startswith(f"{audit_containers.DOCKER}/"):
        return _short_json(text).encode()
    return data


def _short_maps(text: str) -> str:
    """The lines by which libraries and folders of packages are known, each path once."""
    lines: dict[str, str] = {}
    known: set[str] = set()
    for line in text.splitlines():
        path = line.split(None, 5)[5] if len(line.split(None, 5)) > 5 else ""
        libraries, sites = audit_servers.mapped(line)
        if libraries or any(site not in known for site in sites):
            lines.setdefault(path, f"0-0 r--p 00000000 00:00 0 {path}\n")
            known |= set(sites)
    return "".join(lines.values())


def _short_json(text: str) -> str:
    """Docker's files hold whole environments."""
    try:
        found = json.loads(text)
    except ValueError:
        return "{}\n"
    kept = {
        key: found[key] for key in ("DeviceRequests", "Devices", "Runtime", "RestartPolicy", "Name") if key in found
    }
    state = found.get("State")
    if isinstance(state, dict) and "Running" in state:
        kept["State"] = {"Running": state["Running"]}
    return json.dumps(kept) + "\n"


def _short_output(argv: tuple[str, ...], text: str) -> str:
    if argv[:1] == ("dpkg-query",):
        return "".join(line for line in text.splitlines(keepends=True) if _PACKAGE.match(line.split("\t")[0]))
    if argv[:2] == ("apt-cache", "pkgnames"):
        return "".join(f"{name}\n" for name in sorted(text.split()) if kernel.release_of_image_package(name))
    if argv[:1] == ("dmesg",) and text:
        return "(lines of others were here)\n" + "".join(_XID.findall(text))
    if argv[:1] == ("modinfo",):
        return "".join(re.findall(r"^(?:version|license|vermagic):.*\n", text, re.MULTILINE))
    return text


# --- redacted


def redacted(seen: Snapshot, by: Redactor) -> Snapshot:
    """With stand-ins everywhere, in paths as well."""
    return replace(
        seen,
        files={by.text(path): _redacted_bytes(path, data, by) for path, data in seen.files.items()},
        links={by.text(path): by.text(target) for path, target in seen.links.items()},
        folders={by.text(path) for path in seen.folders},
        nodes={by.text(path): numbers for path, numbers in seen.nodes.items()},
        modes={by.text(path): mode for path, mode in seen.modes.items()},
        runs={
            by.words(argv): (status, out if argv[0] in _PACKAGE_LISTS else by.text(out), by.text(err))
            for argv, (status, out, err) in seen.runs.items()
        },
        gpus=[{name: by.text(value) for name, value in row.items()} for row in seen.gpus],
    )  # fmt: skip


def _redacted_bytes(path: str, data: bytes, by: Redactor) -> bytes:
    if path.endswith("/cmdline") and _PID.match(path):
        words = data.decode("utf-8", "replace").removesuffix("\0").split("\0")
        return "".join(f"{word}\0" for word in by.words(words)).encode()
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return data
    return data if "\0" in text and not path.startswith("/proc/") else by.text(text).encode()
