"""What the lab shows to its user."""


class LabError(Exception):
    """Something did not work; the text says what, where and the way out."""


class NoAnswer(LabError):
    """A machine runs, and says nothing."""
