"""Hosts of tests/fixtures/hosts laid out on a fake host: files, links, nodes and what programs answer."""

from __future__ import annotations

import io
from pathlib import Path

from fake_host import Answer, FakeHost

from gpuhost.audit_snapshot import Snapshot, parse

HOSTS = Path(__file__).parents[1] / "fixtures/hosts"
HARDWARE = {"pve-amd-8gpu": "amd-8gpu/hardware.tree", "ubuntu-amd-8gpu": "amd-8gpu/hardware.tree"}
"""What hosts have in common."""


def snapshot(name: str) -> Snapshot:
    """A host of the fixtures; of what is there twice its own counts."""
    parts = [HARDWARE[name]] if name in HARDWARE else []
    return parse("".join((HOSTS / part).read_text() for part in [*parts, f"{name}/host.tree"]))


def lay(host: FakeHost, made: Snapshot) -> FakeHost:
    """Lay it out."""
    for path in sorted(made.folders):
        host.path(path).mkdir(parents=True, exist_ok=True)
    for path, data in made.files.items():
        host.put(path, data)
    for path, target in made.links.items():
        place = host.path(path)
        place.parent.mkdir(parents=True, exist_ok=True)
        # An absolute target is the host's own path; those of /proc/PID/fd are only read as texts.
        inside = str(host.path(target)) if target.startswith("/") and "/fd/" not in path else target
        place.symlink_to(inside)
        # What is written through a link that leads out of the folder is written on this machine.
        assert "/fd/" in path or place.resolve().is_relative_to(host.root.resolve()), f"{path} -> {target}"
    for path, mode in made.modes.items():
        host.path(path).chmod(mode)
    host.nodes |= made.nodes
    host.root_user = made.root
    host.programs |= dict(made.runs)
    if made.gpus:
        host.programs["nvidia-smi",] = _nvidia_smi(made)
    return host


def _nvidia_smi(made: Snapshot):  # type: ignore[no-untyped-def]
    def answer(host: FakeHost, argv: list[str]) -> Answer:
        query = next((word for word in argv if word.startswith("--query-gpu=")), None)
        if query is None:
            return 1, "", f"nvidia-smi: no answer to {argv[1:]} in this fixture"
        out = io.StringIO()
        fields = query.partition("=")[2].split(",")
        for row in made.gpus:
            out.write(", ".join(row.get(name, "[N/A]") for name in fields) + "\n")
        return 0, out.getvalue(), ""

    return answer
