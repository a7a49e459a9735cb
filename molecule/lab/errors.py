"""The one error that the lab shows to its user."""


class LabError(Exception):
    """Something did not work; the text says what, where and the way out."""
