"""Kernel settings: which file wins at boot, one file of ours that does, and what is said where none can.

All trees are synthetic; the program's own verdicts are in tests/integration/test_sysctl_native.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from fake_host import FakeHost
from fake_roll import step
from hypothesis import given
from hypothesis import strategies as st

from gpuhost import sysctl, tuning
from gpuhost.errors import Stop, stop
from gpuhost.sysctl_defaults import DEFAULTS
from gpuhost.sysctl_facts import Facts, Wish, Wishes
from gpuhost.sysctl_files import (
    RIVALS,
    after_boot,
    boot_writes,
    dotted,
    in_order,
    normal,
    outcome,
    parse,
    system_writes,
)

OURS, SECOND = sysctl.DROP_INS
INCIDENT = {"vm.swappiness": "10", "kernel.numa_balancing": "0", "vm.dirty_ratio": "10"}
ONLY_INCIDENT = {dotted(item.key): None for item in DEFAULTS} | INCIDENT
"""The keys of case sysctl-01, and no default."""


def live(host: FakeHost, **values: str) -> None:
    for key, value in values.items():
        host.put(f"/proc/sys/{key.replace('__', '/')}", f"{value}\n")


@pytest.fixture
def host(tmp_path: Path) -> FakeHost:
    made = FakeHost(tmp_path)
    live(made, vm__swappiness="60", kernel__numa_balancing="1", vm__dirty_ratio="20", vm__dirty_bytes="0")
    made.put("/proc/cmdline", "root=/dev/sda1 quiet\n")
    made.put("/var/lib/gpuhost/lock")
    return made


def tune(host: FakeHost, keys: dict[str, Any] | None = None, check: bool = False, **given: Any) -> dict[str, Any]:
    return step(host, "gpuhost_sysctl", check=check, keys=ONLY_INCIDENT if keys is None else keys, **given)


def said(answer: dict[str, Any], *severities: str) -> list[tuple[str, str]]:
    (document,) = answer["gpuhost_documents"]
    return [(item["id"], item["observed"]) for item in document["findings"] if item["severity"] in severities]


def boot(host: FakeHost) -> dict[str, str | None]:
    """What the next boot sets, by the files as they lie on the host now."""
    wish = sysctl.wishes(ONLY_INCIDENT)
    facts = sysctl.read(host, wish)
    return {dotted(key): item.value for key, item in after_boot(facts.files, wish.keys, facts.arguments).items()}


# --- the files


@pytest.mark.parametrize(
    ("key", "path"),
    [
        ("kernel.numa_balancing", "kernel/numa_balancing"),
        ("kernel/numa_balancing", "kernel/numa_balancing"),
        ("net.ipv4.conf.enp3s0/200.forwarding", "net/ipv4/conf/enp3s0.200/forwarding"),
        ("net/ipv4/conf/enp3s0.200/forwarding", "net/ipv4/conf/enp3s0.200/forwarding"),
        ("/kernel//domainname", "kernel/domainname"),
        ("x", "x"),
    ],
)
def test_both_spellings_of_a_key(key: str, path: str) -> None:
    assert normal(key) == path
    assert normal(dotted(path)) == path


@given(st.lists(st.text("abc.*-", min_size=1, max_size=4).filter(lambda part: part != "."), min_size=1, max_size=5))
def test_a_key_survives_its_spelling(parts: list[str]) -> None:
    path = "/".join(["net", *parts])  # no first part has a dot
    assert normal(path) == path
    assert normal(dotted(path)) == path


def test_the_lines_of_a_file() -> None:
    text = "# c\n; c\r\n\n a.b=1\r\n-c.d =  2 3\t\n-e.*.f\nno assignment\n = 4\nkernel.x = 10 # part of the value\n"
    assert [(item.key, item.value, item.line) for item in parse("/f", text)] == [
        ("a/b", "1", 4),
        ("c/d", "2 3", 5),
        ("e/*/f", None, 6),
        ("kernel/x", "10 # part of the value", 9),
    ]


def test_files_are_read_by_name_and_of_one_name_the_first_folder_counts() -> None:
    names = ["/usr/lib/sysctl.d/zz.conf", "/usr/lib/sysctl.d/50.conf", "/run/sysctl.d/50.conf", "/etc/sysctl.d/99.conf"]
    ignored = ["/etc/sysctl.d/README.sysctl", "/etc/sysctl.d/.x.conf", "/etc/sysctl.conf", "/srv/sysctl.d/1.conf"]
    assert in_order([*names, *ignored]) == [
        "/run/sysctl.d/50.conf", "/etc/sysctl.d/99.conf", "/usr/lib/sysctl.d/zz.conf",
    ]  # fmt: skip


def test_the_order_is_that_of_bytes() -> None:
    names = ["99-a.conf", "99.conf", "A.conf", "_.conf", "a.conf", "zzz-gpuhost.conf", "zzzz.conf", "~.conf", "ä.conf"]
    assert in_order(f"/etc/sysctl.d/{name}" for name in reversed(names)) == [f"/etc/sysctl.d/{name}" for name in names]


def test_a_mask_hides_its_namesakes() -> None:
    files = {"/etc/sysctl.d/zz.conf": "", "/usr/lib/sysctl.d/zz.conf": "a.b = 1\n"}
    assert list(boot_writes(files, ["a/b"])) == []


def one(text: str, keys: list[str]) -> dict[str, str | None]:
    return {key: item.value for key, item in outcome(boot_writes({"/etc/sysctl.d/a.conf": text}, keys)).items()}


def by_hand(text: str, keys: list[str]) -> dict[str, str | None]:
    return {key: item.value for key, item in outcome(system_writes({"/etc/sysctl.d/a.conf": text}, keys)).items()}


A, B = "net/ipv4/conf/a/x", "net/ipv4/conf/b/x"
STAR = "net.ipv4.conf.*.x"


@pytest.mark.parametrize(
    ("text", "systemd", "procps"),
    [
        (f"{STAR} = 1", {A: "1", B: "1"}, {A: "1", B: "1"}),
        (f"net.ipv4.conf.a.x = 2\n{STAR} = 1", {A: "2", B: "1"}, {A: "2", B: "1"}),
        (f"{STAR} = 1\n-net.ipv4.conf.a.x", {B: "1"}, {B: "1"}),
        # An exclusion takes away a line that names the key, with systemd only.
        ("net.ipv4.conf.a.x = 2\n-net.ipv4.conf.a.x", {}, {A: "2"}),
        ("-net.ipv4.conf.a.x\nnet.ipv4.conf.a.x = 2", {A: "2"}, {A: "2"}),
        # A value that is only repeated stays at its place: the other pattern comes after it.
        (f"{STAR} = 1\nnet.ipv4.conf.[ab].x = 2\n{STAR} = 1", {A: "2", B: "2"}, {A: "1", B: "1"}),
        ("net.ipv4.*.x = 1", {}, {}),
    ],
)
def test_patterns_and_exclusions(text: str, systemd: dict[str, str], procps: dict[str, str]) -> None:
    assert one(text, [A, B]) == systemd
    assert by_hand(text, [A, B]) == procps


def test_of_two_rivals_the_last_one_clears_the_other() -> None:
    keys = ["vm/dirty_ratio", "vm/dirty_bytes"]
    assert one("vm.dirty_ratio = 10\nvm.dirty_bytes = 1000000\n", keys) == {"vm/dirty_bytes": "1000000"}
    assert one("vm.dirty_bytes = 1000000\nvm.dirty_ratio = 10\n", keys) == {"vm/dirty_ratio": "10"}


def test_a_kernel_argument_counts_where_no_file_sets_the_key() -> None:
    arguments = {"vm/swappiness": "7"}
    assert after_boot({}, ["vm/swappiness"], arguments)["vm/swappiness"].place == "the kernel command line"
    files = {"/etc/sysctl.d/a.conf": "vm.swappiness = 8"}
    assert after_boot(files, ["vm/swappiness"], arguments)["vm/swappiness"].value == "8"


# --- case sysctl-01: 99-gpu-compute.conf is not the last word


@pytest.fixture
def case_01(host: FakeHost) -> FakeHost:
    host.put(
        "/etc/sysctl.d/99-gpu-compute.conf", "vm.swappiness = 10\nkernel.numa_balancing = 0\nvm.dirty_ratio = 10\n"
    )
    host.put("/etc/sysctl.conf", "# old\nvm.swappiness=60\n")
    host.path("/etc/sysctl.d/99-sysctl.conf").symlink_to("../sysctl.conf")
    host.put("/usr/lib/sysctl.d/zz-vendor.conf", "kernel/numa_balancing = 1\n")
    host.put("/etc/sysctl.d/README.sysctl", "vm.dirty_ratio = 77\n")
    live(host, vm__swappiness="10", kernel__numa_balancing="0", vm__dirty_ratio="10")
    return host


def test_case_01_right_now_says_nothing_about_the_next_boot(case_01: FakeHost) -> None:
    assert boot(case_01) == {"vm.swappiness": "60", "kernel.numa_balancing": "1", "vm.dirty_ratio": "10"}
    answer = tune(case_01, check=True)
    assert said(answer, "p0_runtime") == [
        (
            "sysctl.after_boot",
            "kernel.numa_balancing reads 0 now, but at a boot "
            "/usr/lib/sysctl.d/zz-vendor.conf line 1 sets kernel.numa_balancing = 1",
        ),
        (
            "sysctl.after_boot",
            "vm.swappiness reads 10 now, but at a boot /etc/sysctl.d/99-sysctl.conf line 2 sets vm.swappiness = 60",
        ),
    ]
    assert [item for item, _ in said(answer, "good")] == ["sysctl.value"]


def test_case_01_our_file_wins_and_nobody_elses_is_touched(case_01: FakeHost) -> None:
    before = case_01.snapshot()
    answer = tune(case_01)
    assert answer["changed"]
    assert boot(case_01) == INCIDENT
    assert said(answer, "p0_runtime") == []
    after = case_01.snapshot()
    assert set(after) - set(before) == {OURS[1:], "var/lib/gpuhost/tuning.json"}
    assert {path: data for path, data in after.items() if path in before} == before
    assert case_01.effects == [f"write {tuning.RECORD}", f"write {OURS}"]  # what reads right is not written


def test_case_01_without_the_link_only_sysctl_system_reads_etc_sysctl_conf(case_01: FakeHost) -> None:
    case_01.remove("/etc/sysctl.d/99-sysctl.conf")
    assert boot(case_01)["vm.swappiness"] == "10"
    ((code, observed),) = said(tune(case_01), "info")
    assert code == "sysctl.by_hand"
    assert observed == "sysctl --system would follow /etc/sysctl.conf line 2: vm.swappiness = 60"


def test_case_01_with_the_link_sysctl_system_reads_it_again(case_01: FakeHost) -> None:
    assert [code for code, _ in said(tune(case_01), "info")] == ["sysctl.by_hand"]


def test_a_second_run_changes_nothing(case_01: FakeHost) -> None:
    live(case_01, vm__swappiness="60")
    assert tune(case_01)["lines"] == [f"{OURS}: written", "/proc/sys/vm/swappiness: 60 -> 10"]
    before = case_01.snapshot()
    again = tune(case_01)
    assert (again["changed"], again["lines"], again["diff"]) == (False, [], [])
    assert case_01.snapshot() == before
    assert [item for item, _ in said(again, "good")] == ["sysctl.value"] * 3


def test_revert_is_byte_for_byte(case_01: FakeHost, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two rivals the one that was in force comes back, the one that the kernel cleared."""
    live(case_01, vm__dirty_ratio="0", vm__dirty_bytes="4096000", vm__swappiness="60")
    write = case_01.write_live

    def as_the_kernel(path: str, value: str) -> None:
        write(path, value)
        rival = RIVALS.get(path.removeprefix("/proc/sys/"))
        if rival:
            case_01.put(f"/proc/sys/{rival}", "0\n")

    monkeypatch.setattr(case_01, "write_live", as_the_kernel)
    before = case_01.snapshot()
    assert "/proc/sys/vm/dirty_ratio|dirty_bytes: dirty_bytes 4096000 -> dirty_ratio 10" in "".join(
        tune(case_01)["lines"]
    )
    assert case_01.read_line("/proc/sys/vm/dirty_ratio") == "10"
    assert tune(case_01)["changed"] is False
    assert [item.status for item in tuning.revert(case_01, False)] == ["written"] * 3
    assert case_01.snapshot() == before


def test_the_incidents_host_gives_exactly_its_finding(host: FakeHost) -> None:
    """All defaults, and a host that had set everything by a file of its own; only that one key was taken from it."""
    for item in DEFAULTS:
        host.put(f"/proc/sys/{item.key}", f"{item.value}\n")
    host.put("/etc/sysctl.d/99-gpu-compute.conf", "".join(f"{item.key} = {item.value}\n" for item in DEFAULTS))
    host.put("/usr/lib/sysctl.d/zz-vendor.conf", "kernel/numa_balancing = 1\n")
    live(host, kernel__numa_balancing="1")
    answer = tune(host, {}, check=True)
    assert said(answer, "p0_runtime", "p1_reboot", "info", "unknown") == [
        (
            "sysctl.value",
            "kernel.numa_balancing reads 1; at a boot "
            "/usr/lib/sysctl.d/zz-vendor.conf line 1 sets kernel.numa_balancing = 1",
        )
    ]
    assert len(said(answer, "good")) == len(DEFAULTS) - 1


# --- hostile names


@pytest.mark.parametrize("name", ["zz-top.conf", "zzz-a.conf", "99-zzz.conf", "~zzz-gpuhost.conf.bak", "zzzz"])
def test_a_name_that_sorts_first_or_is_no_conf_is_harmless(host: FakeHost, name: str) -> None:
    host.put(f"/etc/sysctl.d/{name}", "vm.swappiness = 99\n")
    tune(host)
    assert host.exists(OURS)
    assert boot(host) == INCIDENT


@pytest.mark.parametrize("name", ["zzzz.conf", "zzz-gpuhosts.conf", "{.conf", "~.conf"])
@pytest.mark.parametrize(
    "line", ["vm.swappiness = 99", "vm/swappiness=99", "-vm.swappiness", "vm.dirty_bytes = 5000000"]
)
def test_our_second_name_beats_what_sorts_after_the_first(host: FakeHost, name: str, line: str) -> None:
    host.put(f"/usr/lib/sysctl.d/{name}", f"{line}\n")
    answer = tune(host)
    assert (host.exists(OURS), host.exists(SECOND)) == (False, True)
    assert boot(host) == INCIDENT
    assert said(answer, "p0_runtime") == []
    assert tune(host)["changed"] is False
    host.remove(f"/usr/lib/sysctl.d/{name}")  # and back to the plain name when the other one is gone
    assert tune(host)["changed"]
    assert (host.exists(OURS), host.exists(SECOND)) == (True, False)


@pytest.mark.parametrize(
    ("line", "observed"),
    [
        ("vm.swappiness = 99", "/etc/sysctl.d/~~~.conf line 2 sets vm.swappiness = 99 after our file"),
        ("-vm.swappiness", "/etc/sysctl.d/~~~.conf line 2 takes vm.swappiness out after our file"),
    ],
)
def test_what_sorts_after_both_names_is_a_finding(host: FakeHost, line: str, observed: str) -> None:
    host.put("/etc/sysctl.d/~~~.conf", f"# mine\n{line}\n")
    answer = tune(host)
    assert said(answer, "p0_runtime") == [("sysctl.overridden", observed)]
    assert host.read_line("/proc/sys/vm/swappiness") == "10"  # now, at least
    assert boot(host)["kernel.numa_balancing"] == "0"
    assert said(tune(host), "p0_runtime") == [("sysctl.overridden", observed)]


def test_a_rival_that_sorts_after_both_names_is_a_finding(host: FakeHost) -> None:
    host.put("/etc/sysctl.d/~~~.conf", "vm.dirty_bytes = 5000000\n")
    assert said(tune(host), "p0_runtime") == [
        ("sysctl.overridden", "/etc/sysctl.d/~~~.conf line 1 sets vm.dirty_bytes = 5000000 after our file")
    ]


def test_a_later_file_that_agrees_is_no_finding(host: FakeHost) -> None:
    host.put("/etc/sysctl.d/~~~.conf", "vm.swappiness = 10\n")
    answer = tune(host)
    assert host.exists(OURS)
    assert said(answer, "p0_runtime", "info") == []


# --- case sysctl-02: a key that is not there, a broken key in somebody else's file

CASE_02 = {dotted(item.key): None for item in DEFAULTS} | {
    "kernel.sched_autogroup_enabled": 0, "kernel.numa_balancing": 0, "kernel.nmi_watchdog": 0, "vm.swappiness": 10,
}  # fmt: skip


@pytest.fixture
def case_02(host: FakeHost, monkeypatch: pytest.MonkeyPatch) -> FakeHost:
    live(host, kernel__nmi_watchdog="0")
    host.put("/etc/sysctl.d/50-old.conf", "kernel.sched_compat_yield = 1\n")
    write = host.write_live

    def refusing(path: str, value: str) -> None:
        if path.endswith("nmi_watchdog"):
            raise stop("host.module_failed", path, "'0' can't be written: Permission denied")
        write(path, value)

    monkeypatch.setattr(host, "write_live", refusing)
    return host


def test_case_02_the_keys_that_are_there_are_set(case_02: FakeHost) -> None:
    answer = tune(case_02, CASE_02)
    assert answer["lines"] == [
        f"{OURS}: written",
        "/proc/sys/kernel/numa_balancing: 1 -> 0",
        "/proc/sys/vm/swappiness: 60 -> 10",
    ]
    assert said(answer, "p0_runtime") == []
    assert said(answer, "info") == [
        ("sysctl.not_available", "kernel.sched_autogroup_enabled is not available on this kernel")
    ]
    assert (
        "sysctl.value",
        f"kernel.nmi_watchdog reads 0; at a boot {OURS} line 3 sets kernel.nmi_watchdog = 0",
    ) in said(answer, "good")
    assert (case_02.read(OURS) or "").splitlines()[2:] == [
        "kernel.nmi_watchdog = 0",
        "kernel.numa_balancing = 0",
        "-kernel.sched_autogroup_enabled = 0",
        "vm.swappiness = 10",
    ]
    again = tune(case_02, CASE_02)
    assert (again["changed"], again["lines"]) == (False, [])


def test_case_02_a_refused_write_is_that_keys_own_failure(case_02: FakeHost) -> None:
    live(case_02, kernel__nmi_watchdog="1")
    answer = tune(case_02, CASE_02)
    assert said(answer, "p0_runtime") == [
        ("sysctl.refused", "/proc/sys/kernel/nmi_watchdog: '0' can't be written: Permission denied")
    ]
    assert case_02.read_line("/proc/sys/vm/swappiness") == "10"
    assert tune(case_02, CASE_02)["changed"] is False


def test_a_refused_rival_is_one_finding(case_02: FakeHost, monkeypatch: pytest.MonkeyPatch) -> None:
    def read_only(path: str, _: str) -> None:
        raise stop("host.module_failed", path, "Read-only file system")

    monkeypatch.setattr(case_02, "write_live", read_only)
    codes = [code for code, _ in said(tune(case_02), "p0_runtime")]
    assert codes == ["sysctl.refused"] * 3


def test_a_key_that_the_target_kernel_lacks_gets_the_dash(host: FakeHost) -> None:
    host.put("/boot/config-6.12.1", "CONFIG_NUMA=y\n# CONFIG_NUMA_BALANCING is not set\nCONFIG_LOCKUP_DETECTOR=y\n")
    answer = tune(host, target_release="6.12.1")
    assert said(answer, "info") == [("sysctl.not_on_target", "kernel.numa_balancing is not available on 6.12.1")]
    assert "-kernel.numa_balancing = 0" in (host.read(OURS) or "")
    assert host.read_line("/proc/sys/kernel/numa_balancing") == "0"


def test_without_the_targets_config_nothing_is_said_about_it(host: FakeHost) -> None:
    assert said(tune(host, target_release="6.12.1"), "info", "unknown") == []


# --- values


def test_a_value_that_no_file_keeps_is_said(host: FakeHost) -> None:
    live(host, vm__swappiness="10", kernel__numa_balancing="0", vm__dirty_ratio="10")
    assert said(tune(host, check=True), "info") == [
        ("sysctl.after_boot", f"{key} reads {INCIDENT[key]} now, and no file sets it") for key in sorted(INCIDENT)
    ]


LEAST = {dotted(item.key): None for item in DEFAULTS if item.key != "net/ipv4/tcp_rmem"}
TCP_RMEM = "/proc/sys/net/ipv4/tcp_rmem"


@pytest.mark.parametrize(("value", "file", "written"), [
    ("4096\t131072\t6291456", None, True),
    ("4096\t131072\t33554432", None, False),
    ("4096\t131072\t33554432", "4096 87380 33554432", False),
    ("4096\t131072\t33554432", "4096 87380 4194304", True),
    ("4096\t131072\t6291456", "4096 87380 33554432", False),
])  # fmt: skip
def test_at_least_leaves_more_alone(host: FakeHost, value: str, file: str | None, written: bool) -> None:
    host.put(TCP_RMEM, value + "\n")
    if file:
        host.put("/etc/sysctl.d/70-net.conf", f"net.ipv4.tcp_rmem = {file}\n")
    tune(host, LEAST)
    assert host.exists(OURS) is written
    assert int((host.read(TCP_RMEM) or "").split()[-1]) >= 16777216
    again = tune(host, LEAST)
    assert again["changed"] is False
    assert said(again, "p0_runtime") == []


def test_no_keys_no_file(host: FakeHost) -> None:
    tune(host)
    assert host.exists(OURS)
    nothing = {dotted(item.key): None for item in DEFAULTS}
    assert tune(host, nothing)["lines"] == [f"{OURS}: removed"]
    assert tune(host, nothing)["changed"] is False


def test_wishing_a_rival_drops_the_default() -> None:
    keys = sysctl.wishes({"vm.dirty_bytes": 1 << 30}).keys
    assert "vm/dirty_ratio" not in keys
    assert keys["vm/dirty_bytes"] == Wish("1073741824")
    assert "vm/dirty_background_ratio" in keys


@pytest.mark.parametrize(
    "keys",
    [
        {"vm.dirty_bytes": 1, "vm.dirty_ratio": 2},
        {"net.ipv4.conf.*.x": 1},
        {"-vm.swappiness": 1},
        {"vm.swap piness": 1},
        {"vm.swappiness": []},
        {"vm.swappiness": ""},
        {"vm.swappiness\nkernel.x": 1},
        {7: 1},
    ],
)
def test_a_wish_that_can_not_be_is_refused(keys: dict[Any, Any]) -> None:
    with pytest.raises(Stop) as caught:
        sysctl.wishes(keys)
    assert caught.value.blocker.cause == "input.invalid"


def test_yaml_booleans_and_lists_of_numbers() -> None:
    keys = sysctl.wishes({"a.b": True, "c/d": "1  2\t3"}).keys
    assert (keys["a/b"].value, keys["c/d"].value) == ("1", "1 2 3")


# --- what can't be read, and who else tunes


def test_an_ordinary_user_is_told_what_is_not_known() -> None:
    facts = Facts({"vm/swappiness": None}, {}, ("/etc/sysctl.d/90-secret.conf",))
    found = sysctl.wanted(facts, Wishes({"vm/swappiness": Wish("10")})).findings
    assert [(item.id, item.severity, item.observed) for item in found] == [
        ("sysctl.value", "unknown", "vm.swappiness: unknown: needs root"),
        ("sysctl.unreadable", "unknown", "/etc/sysctl.d/90-secret.conf: unknown: needs root"),
    ]


def test_a_file_that_can_not_be_read_is_said(host: FakeHost, monkeypatch: pytest.MonkeyPatch) -> None:
    host.put("/etc/sysctl.d/90-secret.conf", "vm.swappiness = 99\n")
    read_bytes = host.read_bytes

    def ordinary_user(path: str) -> bytes | None:
        if path.endswith("secret.conf") or path.startswith("/boot/"):
            raise stop("host.module_failed", path, "Permission denied")
        return read_bytes(path)

    monkeypatch.setattr(host, "read_bytes", ordinary_user)
    assert said(tune(host, check=True, target_release="6.12.1"), "unknown") == [
        ("sysctl.unreadable", "/etc/sysctl.d/90-secret.conf: unknown: needs root"),
        ("sysctl.unreadable", "/boot/config-6.12.1: unknown: needs root"),
    ]


@pytest.fixture
def tuned(host: FakeHost) -> FakeHost:
    host.put("/etc/tuned/active_profile", "mine\n")
    host.put("/sys/fs/cgroup/system.slice/tuned.service/cgroup.procs")
    host.put("/etc/tuned/mine/tuned.conf", "[main]\ninclude=throughput-performance\n[sysctl]\nvm.dirty_ratio=40\n")
    host.put(
        "/usr/lib/tuned/throughput-performance/tuned.conf",
        "[main]\nsummary=x\n[cpu]\ngovernor=performance\n[sysctl]\nvm.swappiness=10\nvm.dirty_ratio=20\nnet.core.x=1\n",
    )
    return host


def test_tuned_is_named_and_has_not_the_last_word(tuned: FakeHost) -> None:
    before = tuned.snapshot()
    answer = tune(tuned)
    assert said(answer, "p0_runtime") == []
    assert said(answer, "info") == [
        ("sysctl.other_tool", f"TuneD's profile mine sets {value}, and then reads the files again (reapply_sysctl)")
        for value in ("vm.swappiness = 10", "vm.dirty_ratio = 40")
    ]
    after = tuned.snapshot()
    assert [path for path in before if "etc/tuned" in path and after[path] != before[path]] == []


def test_tuned_without_reapply_wins(tuned: FakeHost) -> None:
    tuned.put("/etc/tuned/tuned-main.conf", "daemon = 1\nreapply_sysctl = 0\n")
    assert said(tune(tuned), "p0_runtime") == [
        ("sysctl.other_tool", "TuneD's profile mine sets vm.dirty_ratio = 40, and has the last word")
    ]


def test_a_profile_of_a_tuned_that_is_off_says_nothing(tuned: FakeHost) -> None:
    tuned.remove("/sys/fs/cgroup/system.slice/tuned.service/cgroup.procs")
    tuned.remove_empty_folder("/sys/fs/cgroup/system.slice/tuned.service")
    assert said(tune(tuned), "info") == []


def test_ktune_and_rc_local_are_named(host: FakeHost) -> None:
    host.put("/etc/systemd/system/multi-user.target.wants/ktune.service")
    host.put("/etc/rc.local", "#!/bin/sh\n# sysctl -w vm.swappiness=1\nsysctl -w vm.swappiness=60\nsysctl -w a.b=1\n")
    host.path("/etc/rc.local").chmod(0o755)
    assert said(tune(host), "info") == [
        ("sysctl.other_tool", "ktune.service is in use"),
        ("sysctl.other_tool", "/etc/rc.local: sysctl -w vm.swappiness=60"),
    ]


# --- all of it together

NAMES = st.sampled_from(["10-a", "99-sysctl", "zz", "zzz-gpuhost", "zzzz", "~", "~zzz-gpuhost", "~~"])
LINES = st.sampled_from([
    "vm.swappiness = 60", "vm/swappiness=10", "-vm.swappiness", "-vm.swappiness = 5", "vm.* = 7", "-vm.*",
    "kernel.numa_balancing=1", "vm.dirty_bytes = 5000000", "vm.dirty_ratio=10", "broken",
])  # fmt: skip
TREES = st.dictionaries(
    st.tuples(st.sampled_from(["/etc/sysctl.d", "/usr/lib/sysctl.d"]), NAMES), st.lists(LINES, max_size=4), max_size=5
)


@given(TREES)
def test_whatever_the_files_are_ours_wins_or_it_is_said(tree: dict[tuple[str, str], list[str]]) -> None:
    wish = sysctl.wishes(ONLY_INCIDENT)
    files = {f"{folder}/{name}.conf": "\n".join(lines) for (folder, name), lines in tree.items()}
    facts = Facts(dict.fromkeys(wish.touched, "1"), files)
    found = sysctl.wanted(facts, wish)
    after = dict(files)
    for item in found.writes:
        if item.kind == tuning.FILE:
            after.pop(item.object, None)
            if item.value is not None:
                after[item.object] = item.value
    held = after_boot(after, wish.touched, {})
    lost = {key for key, item in wish.keys.items() if key not in held or not item.met_by(held[key].value)}
    overridden = [item for item in found.findings if item.id == "sysctl.overridden"]
    assert len(overridden) == len(lost)
    again = sysctl.wanted(Facts(facts.live, after), wish)
    assert again.writes == found.writes


# --- bytes that somebody has set, and our ratio


@pytest.mark.parametrize("conf", ["vm.dirty_bytes = 268435456\n", ""])
def test_a_default_ratio_does_not_clear_somebodys_bytes(host: FakeHost, conf: str) -> None:
    live(host, vm__dirty_ratio="0", vm__dirty_bytes="268435456")
    host.put("/etc/sysctl.d/50-nas.conf", conf)
    answer = step(host, "gpuhost_sysctl")
    assert host.read_line("/proc/sys/vm/dirty_bytes") == "268435456"
    assert "dirty_ratio" not in (host.read(OURS) or "")
    (found,) = [item for item in answer["gpuhost_documents"][0]["findings"] if "is left alone" in item["observed"]]
    assert found["severity"] == "info"
    assert not step(host, "gpuhost_sysctl")["changed"]


def test_a_ratio_that_is_asked_for_clears_them(host: FakeHost) -> None:
    live(host, vm__dirty_ratio="0", vm__dirty_bytes="268435456")
    answer = step(host, "gpuhost_sysctl", keys={"vm.dirty_ratio": 10})
    assert any("dirty_bytes 268435456 -> dirty_ratio 10" in line for line in answer["lines"])


@pytest.mark.parametrize(
    ("live", "raised"),
    [
        ("8192\t262144\t8388608", "8192 262144 16777216"),
        ("4096\t131072\t6291456", "4096 131072 16777216"),
        ("4096 131072", "4096 131072 16777216"),
        (None, "4096 131072 16777216"),
    ],
)
def test_what_somebody_has_raised_is_not_lowered_with_the_rest(live: str | None, raised: str) -> None:
    assert Wish("4096 131072 16777216", at_least=True).raised(live).value == raised


def test_one_number_and_a_plain_wish_stay() -> None:
    assert Wish("16", at_least=True).raised("99").value == "16"
    assert Wish("1 2 3").raised("9 9 9").value == "1 2 3"
