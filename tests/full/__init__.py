"""What takes long, or measures time and may be wrong on a busy machine: ``make test-full``."""
