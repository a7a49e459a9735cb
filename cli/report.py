"""stub"""


def write(run_dir):
    return run_dir / "report.html"
