"""Entry point of ``python3 gpu_checks.pyz`` and of ``python3 -m gpu_checks``.

This one file must parse on any Python 3, so that an interpreter that is too old gets a sentence and no traceback.
"""

import sys


def start():  # type: ignore[no-untyped-def]
    """Run the command; returns its exit status."""
    if sys.version_info < (3, 9):  # noqa: UP036 - the archive can meet any interpreter
        sys.stderr.write("gpu_checks needs Python 3.9 or newer, this is %s\n" % sys.version.split()[0])  # noqa: UP031
        return 2
    from gpu_checks.cli import main  # noqa: PLC0415 - must come after the version test

    return main(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(start())  # type: ignore[no-untyped-call]
