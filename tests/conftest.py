"""Settings for all tests."""

from __future__ import annotations

from hypothesis import settings

# A time limit for one example says something about the machine's load, not about the code.
settings.register_profile("gpuhost", deadline=None)
settings.load_profile("gpuhost")
