"""What can be wrong with a server under test, as one exception that carries a registered cause."""

from __future__ import annotations

from gpuhost.causes import cause


class ServeFault(Exception):
    """The server did something that ends the check, or that is counted.

    ``kind`` is the word under which errors are counted, finer than the cause: ``http_500``, ``connection_reset``.
    """

    def __init__(self, code: str, observed: str, kind: str = "") -> None:
        super().__init__(f"{code}: {observed}")
        self.code = code
        self.observed = observed
        self.kind = kind or code.partition(".")[2]

    @property
    def exit_status(self) -> int:
        return cause(self.code).exit_status

    @property
    def next_step(self) -> str:
        return cause(self.code).next_step


class HttpRefused(Exception):
    """An HTTP status other than 200, with what the server said."""

    def __init__(self, status: int, excerpt: str) -> None:
        super().__init__(f"HTTP {status}: {excerpt}")
        self.status = status
        self.excerpt = excerpt

    def as_fault(self, what: str) -> ServeFault:
        """The fault that it is once the server was ready."""
        observed = f"{what}: HTTP {self.status}: {self.excerpt or 'no text'}"
        code = "serve.rejected"
        if self.status in (401, 403):
            code = "serve.unauthorized"
        elif self.status >= 500:
            code = "serve.server_error"
        return ServeFault(code, observed, f"http_{self.status}")
