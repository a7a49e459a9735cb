"""The command ``gpu_checks`` as it is shipped, with a fault in the check ``p2p`` on real GPUs; for tests only.

    python3 p2p_inject.py ARCHIVE FAULT PAIR p2p --json ...

FAULT: none, hang, wrong, zeros, slow, dies, no_access. PAIR: the way of the data, 0-1; 0-0 has the whole check work on
the one pair of GPU 0 with itself, for which one GPU is enough.
"""

from __future__ import annotations

import dataclasses
import os
import signal
import sys


def main(archive: str, fault: str, pair: tuple[int, int], arguments: list[str]) -> int:
    """Put the fault in and run the command."""
    sys.path.insert(0, archive)
    from gpu_checks import cli, registry  # noqa: PLC0415 - from the archive
    from gpu_checks.gpus import open_gpus  # noqa: PLC0415
    from gpu_checks.p2p import check as p2p  # noqa: PLC0415 - from the archive
    from gpu_checks.p2p.copies import Flow, Mover  # noqa: PLC0415
    from gpu_checks.p2p.steps import Tools  # noqa: PLC0415

    local = pair[0] == pair[1]

    class Faulty(Mover):
        """Moves as always, but for one pair."""

        def __init__(self, *given: object) -> None:
            super().__init__(*given)
            self.flag = self.api.host_memory(64)
            self.flag.write32(0)

        def move(self, flow: Flow, turn: int) -> None:
            meant = (flow.source, flow.target) == pair
            if meant and fault == "hang":
                # The stream waits for what nobody ever writes, as it would for a packet that got lost.
                self.on(flow.runs_on).kernels.hold(self.flag.device_address, flow.stream, limit_s=600)
            if meant and fault == "dies":
                os.kill(os.getpid(), signal.SIGKILL)
            for _ in range(10 if meant and fault == "slow" else 1):
                super().move(flow, turn)

        def prove(self, flow: Flow, turns: int) -> dict[str, int] | None:
            if (flow.source, flow.target) == pair and fault in ("wrong", "zeros"):
                ready = self.on(flow.target)
                size = 4 if fault == "wrong" else flow.each * min(turns, flow.parts)
                place = 64 if fault == "wrong" else 0
                self.api.fill(flow.target_address + place, 0, size, ready.stream)
            return super().prove(flow, turns)

    def opened(options: registry.Options, report: registry.Report):
        gpus = open_gpus(options, report, "p2p", "pairs", at_least=1 if local else 2)
        if gpus is not None and fault == "no_access":
            gpus.api.can_access_peer = lambda ordinal, peer: False
        return gpus

    tools = Tools(open=opened, mover=Faulty)
    if local:
        tools = dataclasses.replace(tools, pairs=lambda count, quick: [pair])

    def run(options: registry.Options, report: registry.Report) -> None:
        p2p.check(options, report, tools)

    registry.REGISTRY["p2p"] = dataclasses.replace(registry.REGISTRY["p2p"], run=run)
    return cli.main(arguments)


if __name__ == "__main__":
    first, _, second = sys.argv[3].partition("-")
    sys.exit(main(sys.argv[1], sys.argv[2], (int(first), int(second)), sys.argv[4:]))
