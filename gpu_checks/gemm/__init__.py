"""The check ``gemm``: see ``check``."""
