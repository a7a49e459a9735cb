"""gpuhost's core: text or dict in, frozen dataclass out. The only file with input and output is ``host_io``."""

from __future__ import annotations

__version__ = "0.1.0"
