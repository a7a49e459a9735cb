#!/usr/bin/python3
"""The lab's GPU workload: holds the GPUs through libcuda and answers GET /health.

It stands for an inference server, as the first process of a container. Health is 200
with CUDA initialised, else 503 with CUDA's error number; CUDA is tried again on each
request, so a repaired device rule shows without a restart.
"""

from __future__ import annotations

import ctypes
import json
import signal
import socket
import sys

ADDRESS = ("127.0.0.1", 8000)
# A client that says nothing must not block the next one.
CLIENT_TIMEOUT_S = 2.0


class Gpu:
    """CUDA as a server uses it: initialised once, then held."""

    def __init__(self) -> None:
        self.cuda = ctypes.CDLL("libcuda.so.1")
        self.error = -1

    def health(self) -> dict[str, int]:
        """CUDA's error number and the number of GPUs it shows."""
        if self.error != 0:
            self.error = self.cuda.cuInit(0)
        count = ctypes.c_int(0)
        self.cuda.cuDeviceGetCount(ctypes.byref(count))
        return {"cuda_error": self.error, "gpus": count.value}


def answer(client: socket.socket, gpu: Gpu) -> None:
    """Answer one HTTP request."""
    client.settimeout(CLIENT_TIMEOUT_S)
    request = client.recv(4096).decode("latin-1").split()
    body: dict[str, int] | dict[str, str]
    if request[:2] != ["GET", "/health"]:
        status, body = "404 Not Found", {"error": "only GET /health is here"}
    else:
        health = gpu.health()
        status, body = "200 OK" if health["cuda_error"] == 0 else "503 Service Unavailable", health
    text = json.dumps(body) + "\n"
    head = f"HTTP/1.0 {status}\r\nContent-Type: application/json\r\nContent-Length: {len(text)}\r\n\r\n"
    client.sendall((head + text).encode())


def stop(_signum: int, _frame: object) -> None:
    """End at once: LXC asks with SIGPWR, others with SIGTERM."""
    sys.exit(0)


def main() -> None:
    """Initialise CUDA, then serve for ever."""
    for number in (signal.SIGTERM, signal.SIGPWR, signal.SIGINT):
        signal.signal(number, stop)
    # First process of the container: children of others end up here and must be reaped.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    gpu = Gpu()
    gpu.health()
    with socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind(ADDRESS)
        server.listen(16)
        while True:
            client, _ = server.accept()
            with client:
                try:
                    answer(client, gpu)
                except OSError as error:
                    print(f"client: {error}", file=sys.stderr)


main()
