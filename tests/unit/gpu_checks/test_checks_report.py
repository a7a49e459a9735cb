"""What a child says, and how it ended, in words."""

from hypothesis import given
from hypothesis import strategies as st

from gpu_checks.child import Heard, hear, last_line
from gpu_checks.runner import ending


@given(st.binary())
def test_any_line_can_be_heard(line):
    heard = Heard()
    hear(heard, line)
    assert heard.measurements == []


def test_last_line_skips_empty_ones():
    assert last_line(b"one\n  two \n\n \n") == "two"
    assert last_line(b"") == ""


def test_ending_in_words():
    assert ending(None) == "it could not be waited for"
    assert ending(256) == "exit status 1"
    assert ending(9) == "killed by SIGKILL"
