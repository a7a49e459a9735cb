"""Entry point of `python -m gpuhost_lab`."""

import sys

from .cli import main

sys.exit(main())
