"""Measure, inside the container or venv where the workload runs, what its GPUs really do; judging is done elsewhere.

Python 3.9 and the standard library. Shipped as one archive: see ``build_zipapp``.
"""

__version__ = "0.1.0"
