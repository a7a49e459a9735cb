"""Which file wins: systemd-sysctl and procps' sysctl are asked, in a root and a network namespace of their own.

Only /proc/sys/net is there, and it is that of a new network namespace: nothing of this machine can be set.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SYSTEMD = Path("/usr/lib/systemd/systemd-sysctl")
SYSCTL = Path("/usr/sbin/sysctl")
KEYS = {
    "net/ipv4/conf/lo/tag": "-1",
    "net/ipv4/conf/all/tag": "-1",
    "net/ipv4/conf/lo/medium_id": "-1",
    "net/core/somaxconn": "4096",
}
"""Keys of a network namespace that take any number, and what they read before."""

# Runs inside the namespaces: lays each tree into a root of its own, asks the program, and asks ours.
ASK = """
import json, os, shutil, subprocess, sys
from pathlib import Path
from gpuhost.host_io import Host
from gpuhost import sysctl_files
from gpuhost.sysctl_facts import Wish, Wishes, read

root, order = Path(sys.argv[1]), json.load(sys.stdin)
def call(*argv):
    if subprocess.run(argv).returncode:
        sys.exit(f"{argv} failed")
for folder in ("usr/lib", "usr/lib64", "usr/sbin"):
    if Path("/", folder).is_dir():
        (root / folder).mkdir(parents=True)
        call("mount", "--bind", f"/{folder}", str(root / folder))
for folder in ("lib", "lib64", "sbin"):
    (root / folder).symlink_to(f"usr/{folder}")
for folder in ("etc", "run", "usr/local/lib", "proc/sys/net", "dev", "tmp"):
    (root / folder).mkdir(parents=True, exist_ok=True)
(root / "dev/null").touch()
call("mount", "--bind", "/dev/null", str(root / "dev/null"))
call("mount", "--bind", "/proc/sys/net", str(root / "proc/sys/net"))
call("mount", "-t", "tmpfs", "none", str(root / "usr/lib/sysctl.d"))
keys, proc = order["keys"], Path("/proc/sys")
def seen_by_cat(paths):
    "--cat-config shows nothing from a link that leads nowhere on; the program itself goes on."
    lost = [number for number, path in enumerate(paths) if not host.exists(path)]
    return paths[: lost[0]] if lost else paths
host = Host(str(root))
for tree in order["trees"]:
    for folder in sysctl_files.FOLDERS[:-1]:
        place = root / folder[1:]
        place.mkdir(exist_ok=True)
        for item in place.iterdir():
            item.unlink()
    (root / "etc/sysctl.conf").unlink(missing_ok=True)
    for path, content in tree.items():
        target = root / path[1:]
        if content.startswith("link:"):
            target.symlink_to(content[5:])
        else:
            target.write_bytes(content.encode())
    for key, value in keys.items():
        (proc / key).write_text(value)
    files = read(host, Wishes()).files
    if order["program"] == "systemd":
        argv = ["/usr/lib/systemd/systemd-sysctl"]
        ours = sysctl_files.outcome(sysctl_files.boot_writes(files, list(keys)))
        shown = subprocess.run(["chroot", root, *argv, "--cat-config", "--no-pager"], capture_output=True, text=True)
        names = [line[2:] for line in shown.stdout.splitlines() if line.startswith("# /")]
    else:
        argv = ["/usr/sbin/sysctl", "--system"]
        ours = sysctl_files.outcome(sysctl_files.system_writes(files, list(keys)))
        names = None
    done = subprocess.run(["chroot", root, *argv], capture_output=True, text=True)
    real = {key: (proc / key).read_text().strip() for key in keys}
    wanted = {key: ours[key].value if key in ours else value for key, value in keys.items()}
    print(json.dumps({"real": real, "ours": wanted, "names": names,
                      "order": seen_by_cat(sysctl_files.in_order(files)), "said": done.stdout + done.stderr}))
"""

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="a namespace with mounts needs root"),
    pytest.mark.skipif(not Path("/usr/lib/sysctl.d").is_dir(), reason="no /usr/lib/sysctl.d here"),
]

BY_HAND: list[dict[str, str]] = [
    # Case sysctl-01, with keys of a network namespace: tag for swappiness, somaxconn for numa_balancing.
    {
        "/etc/sysctl.d/99-gpu-compute.conf": "net.ipv4.conf.lo.tag = 10\nnet.core.somaxconn = 5\n",
        "/etc/sysctl.d/99-sysctl.conf": "link:../sysctl.conf",
        "/etc/sysctl.conf": "net.ipv4.conf.lo.tag=60\n",
        "/usr/lib/sysctl.d/zz-vendor.conf": "net/core/somaxconn = 1\n",
        "/etc/sysctl.d/README.sysctl": "net.core.somaxconn = 77\n",
    },
    {
        "/etc/sysctl.d/99-gpu-compute.conf": "net.ipv4.conf.lo.tag = 10\n",
        "/etc/sysctl.conf": "net.ipv4.conf.lo.tag=60\n",
    },
    # Masks.
    {"/etc/sysctl.d/a.conf": "link:/dev/null", "/usr/lib/sysctl.d/a.conf": "net.core.somaxconn = 1\n"},
    {"/etc/sysctl.d/a.conf": "", "/run/sysctl.d/a.conf": "net.core.somaxconn = 1\n"},
    # The names that our file may have, among others.
    *(
        {
            "/etc/sysctl.d/zzz-gpuhost.conf": "net.core.somaxconn = 1\n",
            "/etc/sysctl.d/~zzz-gpuhost.conf": "net.ipv4.conf.lo.tag = 1\n",
            f"/usr/lib/sysctl.d/{name}": "net.core.somaxconn = 2\nnet.ipv4.conf.lo.tag = 2\n",
        }
        for name in ("zz.conf", "zzzz.conf", "ZZZZ.conf", "~.conf", "~~.conf", "{.conf", "ä.conf", ".zzzz.conf")
    ),
    # Ends of lines, blanks, comments, and a value that is no number.
    {"/etc/sysctl.d/a.conf": "net.core.somaxconn = 1\r\n\tnet.ipv4.conf.lo.tag=  2 \r\n"},
    {"/etc/sysctl.d/a.conf": ";net.core.somaxconn = 1\n  # net.core.somaxconn = 2\nnet.core.somaxconn\n"},
    {"/etc/sysctl.d/a.conf": "/net/core//somaxconn = 3\n"},
    # Patterns.
    {"/etc/sysctl.d/a.conf": "net.ipv4.conf.*.tag = 1\n-net.ipv4.conf.lo.tag\n"},
    {"/etc/sysctl.d/a.conf": "net.ipv4.conf.lo.tag = 2\nnet.ipv4.conf.*.tag = 1\n"},
    {"/etc/sysctl.d/a.conf": "net.ipv4.conf.lo.tag = 2\n-net.ipv4.conf.lo.tag\n"},
    {"/etc/sysctl.d/a.conf": "net.ipv4.*.tag = 2\nnet.*.lo.tag = 3\n"},
    {
        "/etc/sysctl.d/a.conf": "net.ipv4.conf.*.tag = 1\n",
        "/etc/sysctl.d/b.conf": "net.ipv4.conf.[al]*.tag = 2\n",
        "/etc/sysctl.d/c.conf": "net/ipv4/conf/*/tag=1\n",
    },
]
LINES = (
    "net.ipv4.conf.lo.tag = {}", "net/ipv4/conf/lo/tag={}", "-net.ipv4.conf.lo.tag = {}", "-net.ipv4.conf.lo.tag",
    "net.ipv4.conf.*.tag = {}", "net.ipv4.conf.?o.* = {}", "net.ipv4.conf.[al]*.tag = {}", "-net.ipv4.conf.*.tag",
    "net.ipv4.conf.all.tag = {}", "net.core.somaxconn = {}", "-net.core.nothing_there = {}", "# {}", "broken",
    "net.ipv4.conf.lo.medium_id = {}", "net.ipv4.conf.lo.medium_id = {} # no comment",
)  # fmt: skip
NAMES = ("10-a.conf", "99-sysctl.conf", "99.conf", "a.conf", "zzz-gpuhost.conf", "zzzz.conf", "~.conf", "README.sysctl")
FOLDERS = ("/etc/sysctl.d", "/run/sysctl.d", "/usr/local/lib/sysctl.d", "/usr/lib/sysctl.d")
COUNT = 250


def generated() -> list[dict[str, str]]:
    """Trees by a fixed seed."""
    dice = random.Random(20261130)
    trees = []
    for _ in range(COUNT):
        tree = {}
        for _ in range(dice.randint(1, 6)):
            lines = [dice.choice(LINES).format(dice.randint(0, 3)) for _ in range(dice.randint(0, 5))]
            content = dice.choice(["link:/dev/null", "link:../sysctl.conf", *["\n".join(lines) + "\n"] * 6])
            tree[f"{dice.choice(FOLDERS)}/{dice.choice(NAMES)}"] = content
        if dice.random() < 0.3:
            tree["/etc/sysctl.conf"] = "\n".join(dice.choice(LINES).format(7) for _ in range(3)) + "\n"
        trees.append(tree)
    return trees


def ask(root: Path, program: str, trees: list[dict[str, str]]) -> list[dict[str, Any]]:
    """Each tree's values after the real program ran, and what ours says."""
    if not shutil.which("unshare"):
        pytest.skip("no unshare here")
    order = json.dumps({"program": program, "keys": KEYS, "trees": trees})
    argv = ["unshare", "--mount", "--net", "--propagation", "private", sys.executable, "-c", ASK, str(root)]
    done = subprocess.run(argv, input=order, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(answers) == len(trees)
    return answers


def refused(tree: dict[str, str]) -> set[str]:
    """Keys for which some line has a value that the kernel refuses: then what was there before stays."""
    return {"net/ipv4/conf/lo/medium_id"} if any("no comment" in text for text in tree.values()) else set()


def compare(root: Path, program: str, trees: list[dict[str, str]]) -> None:
    for tree, answer in zip(trees, ask(root, program, trees), strict=True):
        skipped = refused(tree)
        real = {key: value for key, value in answer["real"].items() if key not in skipped}
        ours = {key: value for key, value in answer["ours"].items() if key not in skipped}
        assert ours == real, (tree, answer["said"])
        if answer["names"] is not None:
            assert answer["order"] == answer["names"], tree


@pytest.mark.skipif(not SYSTEMD.exists(), reason="no systemd-sysctl here")
@pytest.mark.parametrize("trees", [BY_HAND, generated()], ids=["by hand", "generated"])
def test_our_winner_is_systemds_winner(tmp_path: Path, trees: list[dict[str, str]]) -> None:
    compare(tmp_path, "systemd", trees)


@pytest.mark.skipif(not SYSCTL.exists(), reason="no procps here")
@pytest.mark.parametrize("trees", [BY_HAND, generated()], ids=["by hand", "generated"])
def test_our_answer_for_sysctl_system_is_that_of_procps(tmp_path: Path, trees: list[dict[str, str]]) -> None:
    compare(tmp_path, "procps", trees)


@pytest.mark.skipif(not SYSTEMD.exists(), reason="no systemd-sysctl here")
def test_the_oracle_really_sets_something(tmp_path: Path) -> None:
    """Else every tree would agree."""
    (answer,) = ask(tmp_path, "systemd", [BY_HAND[0]])
    assert answer["real"] == {**KEYS, "net/ipv4/conf/lo/tag": "60", "net/core/somaxconn": "1"}
