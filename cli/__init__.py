"""The ``gpuhost`` command: ansible-runner underneath, progress, run records, reports."""
