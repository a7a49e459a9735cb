"""The check ``health``: see ``check``."""
