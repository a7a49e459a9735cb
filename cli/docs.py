"""The pages that are generated from the code: ``python -m gpuhost_cli.docs [--check]``."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import yaml

from gpuhost.causes import CAUSES
from gpuhost_cli.paths import ROOT

EXITS = {
    0: "good",
    1: "findings",
    2: "usage, input or connection",
    3: "back on the old kernel",
    4: "needs a person",
    5: "stopped at a safe point",
}


def causes_page() -> str:
    """docs/causes.md."""
    rows = [
        "# Causes",
        "",
        "Generated from `module_utils/gpuhost/causes.py` by `make docs`: change it there.",
        "",
        "Every error, verdict and report names one of these codes. The exit status is what a roll ends with that stops",
        "for this cause before the host left its kernel; afterwards it is 3 (back on the old kernel) or 4.",
        "",
    ]
    for item in CAUSES.values():
        rows += [f"## {item.code}", "", item.sentence, "", f"**Next:** {item.next_step}", ""]
        rows += [f"Exit status {item.exit_status} ({EXITS[item.exit_status]}).", ""]
    return "\n".join(rows)


def variables_page() -> str:
    """docs/variables.md, from every role's argument specification and defaults."""
    rows = ["# Variables", "", "Generated from `roles/*/meta/argument_specs.yml` by `make docs`: change it there.", ""]
    for role in sorted((ROOT / "roles").iterdir()):
        specification = yaml.safe_load((role / "meta" / "argument_specs.yml").read_text())["argument_specs"]["main"]
        defaults = yaml.safe_load((role / "defaults" / "main.yml").read_text()) or {}
        rows += [f"## {role.name}", "", specification["short_description"] + ".", ""]
        rows += ["| variable | type | default | what it does |", "|---|---|---|---|"]
        for name, option in specification.get("options", {}).items():
            rows.append(f"| `{name}` | {option['type']} | {_default(name, defaults)} | {option['description']} |")
        rows.append("")
    return "\n".join(rows)


def _default(name: str, defaults: dict[str, Any]) -> str:
    return f"`{defaults[name]!r}`" if name in defaults else "none"


PAGES = {"docs/causes.md": causes_page, "docs/variables.md": variables_page}


def main() -> int:
    """Write the pages, or with --check name those that differ."""
    made = argparse.ArgumentParser(description=__doc__)
    made.add_argument("--check", action="store_true", help="write nothing; exit status 1 where a page differs")
    check = made.parse_args().check
    different = []
    for name, render in PAGES.items():
        path: Path = ROOT / name
        if not path.exists() or path.read_text() != render():
            different.append(name)
            if not check:
                path.parent.mkdir(exist_ok=True)
                path.write_text(render())
    if check and different:
        print(f"not up to date: {', '.join(different)}: make docs", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
