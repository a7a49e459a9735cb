"""The domain *serving*: which inference servers run, what they really loaded, and whether they run as they were meant.

From /proc alone, in containers too. Another user's libraries need root; versions come from the names of ``dist-info``
folders below the process's own root, and no link in there is followed (audit_rooted).
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from . import audit_flags, audit_rooted, audit_secrets, audit_servers
from .audit_flags import Declared
from .audit_servers import Library, Process, Server
from .documents import Finding, Severity
from .host_io import Host

DOMAIN = "serving"
_CONTAINER = re.compile(
    r"/lxc\.payload\.(?P<payload>[^/\n]+)|/lxc/(?P<lxc>[^/\n]+)|/(?:docker[-/]|libpod-|cri-containerd-)(?P<id>[0-9a-f]{12})"
)
_PARENT = re.compile(r"^PPid:\s+(\d+)$", re.MULTILINE)
_CONFIG_FILE = ("--config", "--config-file")


@dataclass(frozen=True)
class Facts:
    """What was read."""

    servers: tuple[Server, ...] = ()
    root: bool = True


def read(host: Host) -> Facts:
    """One walk through /proc; of the servers among it the libraries."""
    processes = []
    for name in host.names("/proc"):
        # A kernel thread has an empty command line.
        words = (host.read(f"/proc/{name}/cmdline") or "") if name.isdecimal() else ""
        if words:
            processes.append(process(int(name), words, host.read(f"/proc/{name}/status") or ""))
    servers = [_server(host, *item) for item in audit_servers.group(processes)]
    return Facts(tuple(servers), host.is_root())


def process(pid: int, cmdline: str, status: str) -> Process:
    """A process by its files of these names. One that has renamed itself may have no NUL at all."""
    parent = _PARENT.search(status)
    return Process(pid, int(parent[1]) if parent else 0, tuple(cmdline.rstrip("\0").split("\0")))


def container_of(cgroup: str) -> str:
    """LXC's name of the container that a process is in (the outermost), or Docker's short id; empty on the host."""
    found = _CONTAINER.search(cgroup)
    return next((text for text in found.groups() if text), "") if found else ""


def _server(host: Host, kind: str, head: Process, workers: tuple[int, ...]) -> Server:
    libraries: dict[str, Library] = {}
    versions: dict[str, str] = {}
    nccl: dict[int, tuple[str, ...]] = {}
    unread, preloads = [], []
    sites: dict[str, dict[str, str]] = {}
    for pid in (head.pid, *workers):
        maps = host.read(f"/proc/{pid}/maps")
        if not maps:
            unread.append(pid)
            continue
        found, folders = audit_servers.mapped(maps)
        for site in folders:
            if site not in sites:
                sites[site] = audit_servers.versions(audit_rooted.names(host, pid, site) or ())
                versions = {**sites[site], **versions}
        for item in found:
            site = next((name for name in sites if item.path.startswith(f"{name}/")), "")
            libraries.setdefault(item.path, audit_servers.with_version(item, site, sites.get(site, {})))
        paths = tuple(item.path for item in found if item.name == "nccl")
        nccl.update({pid: paths} if paths else {})
        preloads.append(_preload(host, pid))
    return Server(
        kind,
        head.pid,
        audit_secrets.hidden(head.argv),
        container_of(host.read(f"/proc/{head.pid}/cgroup") or ""),
        workers,
        versions,
        tuple(libraries.values()),
        nccl,
        next((text for text in preloads if text), ""),
        tuple(unread),
    )


def _preload(host: Host, pid: int) -> str:
    """LD_PRELOAD alone: what else is in an environment is nobody's business."""
    words = (host.read(f"/proc/{pid}/environ") or "").split("\0")
    return next((word.partition("=")[2] for word in words if word.startswith("LD_PRELOAD=")), "")


def findings(facts: Facts, flags: Sequence[Declared] = ()) -> tuple[Finding, ...]:
    """All of them. ``flags``: audit_flags.declared of the role's variable."""
    found = []
    if not facts.servers:
        text = "none runs: SGLang, vLLM, llama.cpp and TGI are looked for"
        found.append(_finding("serving.servers", "info", text, "", "There is nothing to compare.", "/proc/*/cmdline"))
    for server in facts.servers:
        found += [*_about(server), *_nccl(server), *_replaced(server)]
    return (*found, *_flags(facts, flags))


def _finding(
    code: str, severity: Severity, observed: str, expected: str, why: str, source: str, fix: str = ""
) -> Finding:
    return Finding(code, DOMAIN, severity, observed, expected, why, fix, source)


def _about(server: Server) -> Iterator[Finding]:
    why = "What runs, with the libraries that it has really mapped; a script's name promises nothing."
    loaded = ", ".join(
        dict.fromkeys(f"{item.name} {item.version or posixpath.basename(item.path)}" for item in server.libraries)
    )
    torch = server.versions.get("torch", "")
    more = "; ".join(filter(None, (f"torch {torch}" if torch else "", loaded)))
    observed = f"{server.label}: {server.command}" + (f" [{more}]" if more else "")
    yield _finding("serving.servers", "info", observed, "", why, f"/proc/{server.pid}/cmdline")
    if server.pid in server.unread or (server.unread and not server.libraries):
        text = f"{server.label}: unknown: needs root to see its libraries"
        yield _finding("serving.libraries", "unknown", text, "", why, f"/proc/{server.pid}/maps")


def _nccl(server: Server) -> Iterator[Finding]:
    source = f"/proc/{server.pid}/maps"
    code, expected = "serving.nccl", "one libnccl in all of a server's processes"
    why = "Two versions of NCCL in one job fail, hang, or silently run with the one that nobody tuned for."
    paths = list(dict.fromkeys(path for found in server.nccl_by_pid.values() for path in found))
    shown = [_shown(server, path) for path in paths]
    preloaded = [word for word in re.split(r"[:\s]+", server.preload) if "libnccl" in posixpath.basename(word)]
    if len(paths) > 1:
        pids = ", ".join(str(pid) for pid, found in server.nccl_by_pid.items() if len(found) > 1)
        where = f" (both in pid {pids})" if pids else ""
        fix = "Take LD_PRELOAD, VLLM_NCCL_SO_PATH or the second package out of its environment, then restart it"
        text = f"{server.label} has {len(paths)}: {', '.join(shown)}{where}"
        yield _finding(code, "p0_runtime", text, expected, why, source, fix)
    elif paths:
        by_preload = " by LD_PRELOAD" if preloaded else ""
        severity: Severity = "info" if preloaded else "good"
        yield _finding(code, severity, f"{server.label}: {shown[0]}{by_preload}", expected, why, source)
    if preloaded and not any(posixpath.basename(word) in path for word in preloaded for path in paths):
        text = f"{server.label}: LD_PRELOAD={server.preload}, and none of its processes has it"
        why_not = (
            "The loader leaves out what it does not find in the container, with a line on stderr that nobody reads."
        )
        yield _finding("serving.preload_lost", "info", text, "the library that is named", why_not, source)


def _shown(server: Server, path: str) -> str:
    version = next((item.version for item in server.libraries if item.path == path), "")
    return f"{version} at {path}" if version else path


def _replaced(server: Server) -> Iterator[Finding]:
    gone = [item.path for item in server.libraries if item.deleted]
    if gone:
        why = "The process goes on with the old file; its next start takes the new one, which may fit no more."
        text = f"{server.label}: {', '.join(gone)} was replaced since it started"
        source, fix = f"/proc/{server.pid}/maps", "Restart the server when it suits"
        yield _finding("serving.replaced_library", "p0_runtime", text, "the files on disk", why, source, fix)


def _flags(facts: Facts, flags: Sequence[Declared]) -> Iterator[Finding]:
    code, why = "serving.flags", "A server that runs without a flag gives answers all the same, only slower."
    for item in flags:
        expected = " ".join(flag.text for flag in item.flags)
        servers = [server for server in facts.servers if item.match in server.command or item.match == server.container]
        if not servers:
            text = f"no server runs whose command line or container is {item.match!r}"
            fix = f"Start it, or correct {audit_flags.VARIABLE}"
            yield _finding("serving.not_running", "p0_runtime", text, expected, why, "/proc/*/cmdline", fix)
        for server in servers:
            yield _judged(server, item, expected, code, why)


def _judged(server: Server, item: Declared, expected: str, code: str, why: str) -> Finding:
    source = f"/proc/{server.pid}/cmdline"
    lacking = audit_flags.missing(item.flags, server.argv)
    if not lacking:
        return _finding(code, "good", f"{server.label} has {expected}", expected, why, source)
    if audit_servers.is_title(server.argv):
        return _finding(code, "unknown", f"{server.label}: unknown: it has renamed itself", expected, why, source)
    if any(word.partition("=")[0] in _CONFIG_FILE for word in server.argv):
        text = f"{server.label}: {', '.join(lacking)} is not on its command line; unknown: its --config file may set it"
        return _finding(code, "unknown", text, expected, why, source)
    text = f"{server.label} runs without {', '.join(lacking)}: {server.command}"
    return _finding(code, "p0_runtime", text, expected, why, source, "Correct how it is started, then restart it")
