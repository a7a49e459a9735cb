"""An audit as a page: Markdown for a team's repository, HTML that needs nothing else."""

from __future__ import annotations

import re

from gpuhost_cli.audit_data import LISTS, SHORT, Audits
from gpuhost_cli.report import environment

TONES = {
    "security": "bad",
    "p0_runtime": "bad",
    "p1_reboot": "warn",
    "unknown": "quiet",
    "good": "good",
    "info": "quiet",
}
VERDICTS = {
    "not_expected": "Not expected: changed, and not as wished",
    "expected": "Expected: as wished now",
    "other": "Other changes",
}


def _words() -> dict[str, object]:
    return {"lists": LISTS, "short": SHORT, "tones": TONES, "verdicts": VERDICTS}


def html(audits: Audits) -> str:
    """One page."""
    return environment(html=True).get_template("audit.html.j2").render(audits=audits, **_words())


def markdown(audits: Audits) -> str:
    """The same for a repository or a wiki."""
    page = environment(html=False).get_template("audit.md.j2").render(audits=audits, **_words())
    return re.sub(r"\n{3,}", "\n\n", page).strip() + "\n"
