"""Inference servers among a host's processes, by their command lines. Pure: /proc's texts in, dataclasses out.

Sources: each project's own entry points: ``python -m sglang.launch_server``, ``vllm serve``, ``python -m
vllm.entrypoints.openai.api_server``, ``llama-server``, ``text-generation-launcher``. Their workers rename themselves
(setproctitle): ``sglang::scheduler_TP0``, ``VLLM::Worker_TP0``.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

SGLANG, VLLM, LLAMA, TGI = "SGLang", "vLLM", "llama.cpp", "TGI"
PACKAGES = {SGLANG: "sglang", VLLM: "vllm", LLAMA: "llama-cpp-python", TGI: "text-generation-server"}
"""The Python package whose version is the server's."""

_PYTHON = re.compile(r"python(\d(\.\d+)?)?|pypy3?")
_MODULES = {SGLANG: re.compile(r"sglang\.launch_server\w*|sglang\.srt\.\S+server\S*"),
            VLLM: re.compile(r"vllm(\.entrypoints\.\S+)?"), LLAMA: re.compile(r"llama_cpp\.server")}  # fmt: skip
_SCRIPTS = {
    SGLANG: re.compile(r"(?:.*/)?sglang/launch_server\.py"),
    VLLM: re.compile(r"(?:.*/)?vllm/entrypoints/.*\.py"),
}
_COMMANDS = {"vllm": (VLLM, "serve"), "sglang": (SGLANG, "serve"), "llama-server": (LLAMA, ""),
             "text-generation-launcher": (TGI, ""), "text-generation-router": (TGI, ""),
             "text-generation-server": (TGI, "serve")}  # fmt: skip
"""Programs and console scripts: the kind, and the word that has to come next (empty: any)."""
_TITLES = {SGLANG: re.compile(r"sglang::"), VLLM: re.compile(r"VLLM::")}
# Options of Python itself that take the next word.
_WITH_VALUE = ("-X", "-W")

_LIBRARY = re.compile(
    r"lib(?P<name>nccl|cudart|cuda|torch_cuda|cublas|cudnn|nvshmem_host|ggml-cuda)(?:-[0-9a-f]{8})?\.so(?:\.(?P<version>[\d.]+))?"
)
_SITE = re.compile(r"(/.*?/(?:site|dist)-packages)/")
_DELETED = " (deleted)"


@dataclass(frozen=True)
class Process:
    """As /proc has it. ``container``: its name or Docker's short id; empty on the host itself."""

    pid: int
    parent: int
    argv: tuple[str, ...]
    container: str = ""


@dataclass(frozen=True)
class Library:
    """One that a process has mapped. ``version`` by its file's name or its Python package; empty where unknown."""

    name: str
    path: str
    version: str = ""
    deleted: bool = False
    """The file was replaced or removed since."""


@dataclass(frozen=True)
class Server:
    """A server with its workers. ``argv`` has no secrets in it."""

    kind: str
    pid: int
    argv: tuple[str, ...]
    container: str = ""
    workers: tuple[int, ...] = ()
    versions: Mapping[str, str] = field(default_factory=dict)
    """Python package to version, of those that matter."""
    libraries: tuple[Library, ...] = ()
    nccl_by_pid: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    """The paths of libnccl that each process has mapped."""
    preload: str = ""
    unread: tuple[int, ...] = ()
    """Processes whose libraries can't be read."""

    @property
    def command(self) -> str:
        """The command line, for people."""
        return " ".join(self.argv)

    @property
    def label(self) -> str:
        """``SGLang 0.5.2, pid 4211 in container 101``."""
        version = self.versions.get(PACKAGES[self.kind], "")
        where = f" in container {self.container}" if self.container else ""
        return f"{' '.join(filter(None, (self.kind, version)))}, pid {self.pid}{where}"


def kind_of(argv: Sequence[str]) -> str:
    """Which server a command line starts; empty for none. A shell or a tool that starts one is none itself."""
    if not argv or not argv[0]:
        return ""
    for kind, title in _TITLES.items():
        if title.match(argv[0]):
            return kind
    name = posixpath.basename(argv[0])
    if not _PYTHON.fullmatch(name):
        return _of_command(name, argv[1:])
    module, script, rest = _python(argv[1:])
    table, what = (_MODULES, module) if module else (_SCRIPTS, script)
    for kind, pattern in table.items():
        if what and pattern.fullmatch(what):
            return kind if what != "vllm" or rest[:1] == ("serve",) else ""
    return _of_command(posixpath.basename(script), rest) if script else ""


def _of_command(name: str, rest: Sequence[str]) -> str:
    kind, word = _COMMANDS.get(name, ("", ""))
    return kind if kind and (not word or word in rest[:1]) else ""


def _python(words: Sequence[str]) -> tuple[str, str, tuple[str, ...]]:
    """(module of -m, script, the words behind it) of a Python interpreter's arguments."""
    index = 0
    while index < len(words):
        word = words[index]
        if word == "-m" and index + 1 < len(words):
            return words[index + 1], "", tuple(words[index + 2 :])
        if word.startswith("-c"):
            return "", "", ()
        if not word.startswith("-"):
            return "", word, tuple(words[index + 1 :])
        index += 2 if word in _WITH_VALUE else 1
    return "", "", ()


def is_title(argv: Sequence[str]) -> bool:
    """Whether this is a worker that has renamed itself: its command line is gone."""
    return any(title.match(argv[0]) for title in _TITLES.values()) if argv else False


def group(processes: Iterable[Process]) -> list[tuple[str, Process, tuple[int, ...]]]:
    """(kind, the server's own process, its workers) of all servers: what descends from one belongs to it."""
    known = {item.pid: item for item in processes}
    kinds = {pid: kind for pid, item in known.items() if (kind := kind_of(item.argv))}

    def above(pid: int) -> list[int]:
        found: list[int] = []
        while (parent := known[pid].parent) in known and parent not in found:
            found.append(parent)
            pid = parent
        return found

    tops = {pid: ([item for item in above(pid) if item in kinds] or [pid])[-1] for pid in kinds}
    heads = sorted(set(tops.values()))
    workers: dict[int, list[int]] = {head: [] for head in heads}
    for pid in sorted(known):
        lineage = above(pid)
        head = next((item for item in reversed(lineage) if item in workers), None)
        if head is not None and pid not in workers:
            workers[head].append(pid)
    return [(kinds[head], known[head], tuple(workers[head])) for head in heads]


def mapped(maps: str) -> tuple[tuple[Library, ...], tuple[str, ...]]:
    """(libraries of interest, site-packages folders) in a /proc/PID/maps. Its paths have no links in them."""
    paths = dict.fromkeys(
        fields[5] for line in maps.splitlines() if len(fields := line.split(None, 5)) > 5 and fields[5].startswith("/")
    )
    libraries = []
    for path in paths:
        plain = path.removesuffix(_DELETED)
        found = _LIBRARY.fullmatch(posixpath.basename(plain))
        if found:
            version = found["version"] or ""
            exact = version if version.count(".") else ""
            libraries.append(Library(found["name"], plain, exact, path != plain))
    sites = dict.fromkeys(found[1] for path in paths if (found := _SITE.match(path)))
    return tuple(libraries), tuple(sites)


_DIST_INFO = re.compile(r"(?P<name>[A-Za-z0-9._]+?)-(?P<version>\d[^-]*)\.(?:dist|egg)-info")
_NAMED = re.compile(
    r"torch|triton|transformers|vllm|sglang|sgl.kernel|flashinfer.*|llama.cpp.python|text.generation.server"
    r"|nvidia.(?:nccl|cuda.runtime|cublas|cudnn|nvshmem)(?:.cu\d+)?"
)
_OWNERS = {
    "nccl": "nvidia-nccl",
    "cudart": "nvidia-cuda-runtime",
    "cublas": "nvidia-cublas",
    "cudnn": "nvidia-cudnn",
    "torch_cuda": "torch",
    "nvshmem_host": "nvidia-nvshmem",
}


def versions(names: Iterable[str]) -> dict[str, str]:
    """Package to version by the names of ``*.dist-info`` folders; only packages that matter for serving."""
    found = {}
    for name in names:
        match = _DIST_INFO.fullmatch(name)
        if match and _NAMED.fullmatch(match["name"].lower()):
            found[match["name"].lower().replace("_", "-").replace(".", "-")] = match["version"]
    return found


def with_version(library: Library, site: str, found: Mapping[str, str]) -> Library:
    """The library with the version of the Python package that brought it, where its file's name has none."""
    owner = _OWNERS.get(library.name)
    if library.version or owner is None or not library.path.startswith(f"{site}/"):
        return library
    version = next((found[name] for name in found if re.fullmatch(rf"{owner}(?:-cu\d+)?", name)), "")
    return Library(library.name, library.path, version, library.deleted)
