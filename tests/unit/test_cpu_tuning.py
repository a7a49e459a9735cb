"""The CPUs' settings: what is said on four kinds of machines, what is written, and what runs at the next boot.

The trees are synthetic but for the captured virtual machine, see cpu_trees.
"""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path
from typing import Any

import cpu_trees
import pytest
import yaml
from cpu_trees import CPUS, HUGE_PAGES
from fake_host import FakeHost
from fake_roll import REPOSITORY, step

from gpuhost import cpu_boot, cpu_tuning, tuning
from gpuhost.cpu_boot import IdleState, Policy, Wishes
from gpuhost.errors import Stop, stop

DEFAULTS = yaml.safe_load((REPOSITORY / "roles/cpu_tuning/defaults/main.yml").read_text())
ROLE = {key.removeprefix("cpu_tuning_"): value for key, value in DEFAULTS.items()}
BOOT_FILES = [cpu_tuning.PROGRAM, cpu_tuning.UNIT_FILE, cpu_tuning.RULES_FILE, cpu_tuning.LINK]
WISHES = Wishes("performance", "performance", "on", 50, "madvise")


class KernelHost(FakeHost):
    """Answers as the kernel does: a choice in brackets, EBUSY under the governor performance."""

    def write_live(self, path: str, value: str) -> None:
        if path.endswith("energy_performance_preference") and value.strip() != "performance":
            governor = self.read_line(path.replace("energy_performance_preference", "scaling_governor"))
            if governor == "performance":
                raise stop("host.module_failed", path, f"{value.strip()!r} can't be written: Device or resource busy")
        super().write_live(path, value)
        if path == HUGE_PAGES:
            words = ("always", "madvise", "never")
            if value.strip() not in words:
                raise stop("host.module_failed", path, "can't be written: Invalid argument")
            self.put(path, " ".join(f"[{word}]" if word == value.strip() else word for word in words) + "\n")


def made(folder: Path, tree: dict[str, str]) -> KernelHost:
    host = KernelHost(folder)
    for path, text in tree.items():
        host.put(path, text)
    host.put("/var/lib/gpuhost/lock")
    for path in BOOT_FILES:
        host.path(path).parent.mkdir(parents=True, exist_ok=True)
    return host


def tune(host: FakeHost, check: bool = False, **given: Any) -> dict[str, Any]:
    return step(host, "gpuhost_cpu_tuning", check=check, **{**ROLE, **given})


def said(answer: dict[str, Any], *severities: str) -> list[tuple[str, str]]:
    (document,) = answer["gpuhost_documents"]
    return [(item["id"], item["observed"]) for item in document["findings"] if item["severity"] in severities]


def finding(answer: dict[str, Any], code: str) -> dict[str, Any]:
    (document,) = answer["gpuhost_documents"]
    (found,) = [item for item in document["findings"] if item["id"] == code]
    return dict(found)


# --- what is said


def test_the_incidents_host_gives_exactly_its_findings(tmp_path: Path) -> None:
    answer = tune(made(tmp_path, cpu_trees.epyc_acpi()), check=True)
    assert said(answer, "p0_runtime") == [("cpu.idle_states", "C2 with 100 us latency on 4 CPUs")]
    assert said(answer, "p1_reboot") == [("cpu.scaling_driver", "acpi-cpufreq instead of amd_pstate")]
    assert finding(answer, "cpu.scaling_driver")["fix"] == "boot_config_cmdline: {amd_pstate: active}, then boot"
    assert finding(answer, "cpu.scaling_driver")["expected"] == "amd-pstate-epp"
    assert [code for code, _ in said(answer, "good")] == ["cpu.governor", "cpu.boost", "cpu.huge_pages"]


@pytest.mark.parametrize(("release", "mode", "needs"), [
    ("5.15.0-1-generic", "active", "it needs Linux 6.3 or later, this is 5.15.0-1-generic"),
    ("6.1.0-1-amd64", "active", "it needs Linux 6.3 or later, this is 6.1.0-1-amd64"),
    ("6.1.0-1-amd64", "passive", ""),
    ("6.3.0", "guided", "it needs Linux 6.4 or later, this is 6.3.0"),
    ("6.12.0", "guided", ""),
])  # fmt: skip
def test_the_driver_may_need_a_newer_kernel_too(tmp_path: Path, release: str, mode: str, needs: str) -> None:
    answer = tune(made(tmp_path, cpu_trees.epyc_acpi(release=release)), check=True, mode=mode)
    found = finding(answer, "cpu.scaling_driver")
    assert found["severity"] == "p1_reboot"
    assert found["fix"] == f"boot_config_cmdline: {{amd_pstate: {mode}}}, then boot" + (f"; {needs}" if needs else "")


def test_without_cppc_the_firmware_is_named(tmp_path: Path) -> None:
    tree = {path: text for path, text in cpu_trees.epyc_acpi().items() if "acpi_cppc" not in path}
    answer = tune(made(tmp_path, tree), check=True)
    assert said(answer, "p1_reboot") == []
    assert ("cpu.scaling_driver", "acpi-cpufreq; the firmware does not offer CPPC") in said(answer, "info")


def test_another_mode_of_the_right_driver(tmp_path: Path) -> None:
    tree = {path: text.replace("amd-pstate-epp", "amd-pstate") for path, text in cpu_trees.epyc_pstate().items()}
    host = made(tmp_path, tree)
    assert said(tune(host, check=True), "p1_reboot") == [("cpu.scaling_driver", "amd-pstate instead of amd-pstate-epp")]
    assert said(tune(host, check=True, mode="guided"), "p1_reboot") == []
    assert said(tune(host, check=True, mode="keep"), "p1_reboot") == []


def test_intel_without_hwp_control(tmp_path: Path) -> None:
    tree = {path: text.replace("intel_pstate\n", "acpi-cpufreq\n") for path, text in cpu_trees.xeon().items()}
    answer = tune(made(tmp_path, tree), check=True)
    assert said(answer, "p1_reboot") == [("cpu.scaling_driver", "acpi-cpufreq instead of intel_pstate")]
    assert finding(answer, "cpu.scaling_driver")["fix"] == "boot_config_cmdline: {intel_pstate: active}, then boot"


@pytest.mark.parametrize("tree", [cpu_trees.vm, cpu_trees.captured_vm])
def test_a_virtual_machine_is_not_applicable(tmp_path: Path, tree: Any) -> None:
    answer = tune(made(tmp_path, tree()), check=True, huge_pages="keep")
    assert said(answer, "info") == [
        ("cpu.scaling_driver", "not applicable: no frequency scaling here"),
        ("cpu.idle_states", "not applicable: no idle states here (none)"),
    ]
    assert said(answer, "p0_runtime", "p1_reboot", "unknown") == []
    assert (answer["changed"], answer["lines"]) == (False, [])
    assert "virtual machine" in finding(answer, "cpu.scaling_driver")["why"]


def test_the_captured_machine_has_its_huge_pages_right(tmp_path: Path) -> None:
    answer = tune(made(tmp_path, cpu_trees.captured_vm()), check=True)
    assert said(answer, "good") == [("cpu.huge_pages", "madvise")]
    assert said(answer, "p0_runtime", "p1_reboot") == []


def test_real_iron_without_a_driver_is_told_where_to_look(tmp_path: Path) -> None:
    tree = {path: text.replace("hypervisor", "") for path, text in cpu_trees.vm().items()}
    found = finding(tune(made(tmp_path, tree), check=True), "cpu.scaling_driver")
    assert "firmware" in found["fix"]
    assert found["severity"] == "info"


def test_a_latency_that_is_not_there_is_unknown(tmp_path: Path) -> None:
    host = made(tmp_path, cpu_trees.epyc_acpi())
    for number in range(4):
        host.remove(f"{CPUS}/cpu{number}/cpuidle/state2/latency")
    answer = tune(host)
    assert said(answer, "unknown") == [("cpu.idle_states", "unknown: the latency of C2 can't be read")]
    assert host.read_line(f"{CPUS}/cpu0/cpuidle/state2/disable") == "0"


@pytest.mark.parametrize(("given", "code", "observed"), [
    ({"governor": "userspace"}, "cpu.governor", "powersave; the driver has only: performance powersave"),
    ({"epp": "fast"}, "cpu.epp", "balance_performance; fast is not offered"),
    ({"epp": "power"}, "cpu.epp", "balance_performance; power is not offered"),  # not with the governor performance
])  # fmt: skip
def test_what_the_driver_does_not_have(tmp_path: Path, given: dict[str, Any], code: str, observed: str) -> None:
    host = made(tmp_path, cpu_trees.epyc_pstate())
    found = finding(tune(host, check=True, **given), code)
    assert (found["severity"], found["observed"]) == ("info", observed)
    tune(host, **given)
    assert tune(host, **given)["changed"] is False


# --- what is written


@pytest.mark.parametrize("tree", cpu_trees.TREES.values(), ids=list(cpu_trees.TREES))
def test_twice_and_back(tmp_path: Path, tree: Any) -> None:
    host = made(tmp_path, tree())
    before = host.snapshot()
    said_before = tune(host, check=True)
    assert host.snapshot() == before
    answer = tune(host)
    assert answer["lines"] == said_before["lines"]
    assert said(answer, "p0_runtime", "unknown") == []
    again = tune(host)
    assert (again["changed"], again["lines"], again["diff"]) == (False, [], [])
    assert {item.status for item in tuning.revert(host, False)} <= {"written"}
    assert host.snapshot() == before


def test_what_becomes_of_an_epyc(tmp_path: Path) -> None:
    host = made(tmp_path, cpu_trees.epyc_pstate())
    answer = tune(host)
    assert answer["lines"] == [
        *(f"{path}: written" for path in BOOT_FILES[:3]),
        f"{cpu_tuning.LINK}: nothing -> {cpu_tuning.UNIT_FILE}",
        "energy preference: balance_performance -> performance "
        f"(4 files, the first {CPUS}/cpufreq/policy0/energy_performance_preference)",
        f"governor: powersave -> performance (4 files, the first {CPUS}/cpufreq/policy0/scaling_governor)",
        f"{CPUS}/cpufreq/boost: 0 -> 1",
        f"idle state C2 (100 us) off: 0 -> 1 (4 files, the first {CPUS}/cpu0/cpuidle/state2/disable)",
        f"{HUGE_PAGES}: always -> madvise",
    ]
    assert [host.read_line(f"{CPUS}/cpu3/cpuidle/state{number}/disable") for number in range(3)] == ["0", "0", "1"]
    assert host.ran("systemctl") == [["systemctl", "daemon-reload"]]
    assert [code for code, _ in said(answer, "good")] == [
        "cpu.scaling_driver", "cpu.governor", "cpu.epp", "cpu.boost", "cpu.idle_states", "cpu.huge_pages",
    ]  # fmt: skip


def test_a_xeon_keeps_c1e_and_gets_its_turbo(tmp_path: Path) -> None:
    host = made(tmp_path, cpu_trees.xeon())
    tune(host)
    assert [host.read_line(f"{CPUS}/cpu0/cpuidle/state{number}/disable") for number in range(4)] == ["0", "0", "0", "1"]
    assert host.read_line(f"{CPUS}/intel_pstate/no_turbo") == "0"


@pytest.mark.parametrize(("limit", "off"), [
    (0, ["C1", "C1E", "C6"]), (1, ["C1E", "C6"]), (2, ["C6"]), (289, ["C6"]), (290, []), (-1, []),
])  # fmt: skip
def test_idle_states_go_by_latency(tmp_path: Path, limit: int, off: list[str]) -> None:
    host = made(tmp_path, cpu_trees.xeon())
    tune(host, max_idle_latency_us=limit)
    places = [f"{CPUS}/cpu1/cpuidle/state{number}" for number in range(4)]
    assert [host.read_line(f"{place}/name") for place in places if host.read_line(f"{place}/disable") == "1"] == off


def test_idle_states_do_not_go_by_number(tmp_path: Path) -> None:
    """A kernel that lists another state second: the shallow ones stay all the same."""
    tree = cpu_trees.epyc_acpi()
    for number in range(4):
        place = f"{CPUS}/cpu{number}/cpuidle"
        tree |= {f"{place}/state1/latency": "100\n", f"{place}/state2/latency": "1\n"}
    host = made(tmp_path, tree)
    tune(host)
    assert [host.read_line(f"{CPUS}/cpu0/cpuidle/state{number}/disable") for number in range(3)] == ["0", "1", "0"]


def test_one_cpu_that_refuses_keeps_none_of_the_others_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    host = made(tmp_path, cpu_trees.epyc_acpi())
    write = host.write_live

    def refusing(path: str, value: str) -> None:
        if path.startswith((f"{CPUS}/cpu1/", f"{CPUS}/cpu2/")):
            raise stop("host.module_failed", path, "'1' can't be written: Invalid argument")
        write(path, value)

    monkeypatch.setattr(host, "write_live", refusing)
    answer = tune(host)
    assert said(answer, "p0_runtime") == [
        ("cpu.idle_states", "C2 with 100 us latency on 2 CPUs"),
        ("cpu.refused", f"{CPUS}/cpu1/cpuidle/state2/disable and 1 more: '1' can't be written: Invalid argument"),
    ]
    assert host.read_line(f"{CPUS}/cpu3/cpuidle/state2/disable") == "1"
    assert tune(host)["changed"] is False


GOVERNORS = ("performance", "powersave")


@pytest.mark.parametrize("epp", ["performance", "balance_performance", "power"])
@pytest.mark.parametrize("governor", GOVERNORS)
@pytest.mark.parametrize("before", GOVERNORS)
def test_governor_and_preference_in_the_kernels_order(tmp_path: Path, before: str, governor: str, epp: str) -> None:
    """Whatever the host had: nothing is refused, neither now nor when it is put back."""
    preference = "performance" if before == "performance" else "balance_power"
    host = made(tmp_path, cpu_trees.epyc_pstate(governor=before, epp=preference))
    tree = host.snapshot()
    answer = tune(host, governor=governor, epp=epp)
    assert "cpu.refused" not in {code for code, _ in said(answer, "p0_runtime")}
    policy = f"{CPUS}/cpufreq/policy0"
    assert host.read_line(f"{policy}/scaling_governor") == governor
    if governor == "powersave":
        assert host.read_line(f"{policy}/energy_performance_preference") == epp
    assert tune(host, governor=governor, epp=epp)["changed"] is False
    assert {item.status for item in tuning.revert(host, False)} == {"written"}
    assert host.snapshot() == tree


def test_keep_leaves_everything(tmp_path: Path) -> None:
    keep: dict[str, Any] = {**dict.fromkeys(ROLE, "keep"), "max_idle_latency_us": -1}
    host = made(tmp_path, cpu_trees.epyc_pstate())
    before = host.snapshot()
    answer = tune(host, **keep)
    assert (answer["changed"], host.snapshot()) == (False, before)
    tune(host)
    tune(host, **keep)  # and takes away what an earlier tune installed
    assert [path for path in BOOT_FILES if host.exists(path)] == []


@pytest.mark.parametrize("given", [
    {"boost": "maybe"}, {"governor": "per formance"}, {"epp": "--x"}, {"huge_pages": ""}, {"mode": "fast"},
    {"governor": "a\nExecStart=b"},
])  # fmt: skip
def test_a_wish_that_can_not_be_is_refused(tmp_path: Path, given: dict[str, Any]) -> None:
    with pytest.raises(Stop) as caught:
        tune(made(tmp_path, cpu_trees.vm()), **given)
    assert caught.value.blocker.cause == "input.invalid"


@pytest.mark.parametrize(("value", "word"), [("True", "on"), ("False", "off"), ("on", "on")])
def test_a_bare_on_is_a_boolean_for_yaml(value: str, word: str) -> None:
    assert cpu_tuning.wishes({**ROLE, "boost": value}).boot.boost == word


# --- the next boot


def test_a_right_host_that_nothing_keeps_right_is_told(tmp_path: Path) -> None:
    host = made(tmp_path, cpu_trees.epyc_acpi())
    tune(host)
    for path in BOOT_FILES:
        assert host.remove(path)
        answer = tune(host, check=True)
        assert [code for code, _ in said(answer, "info")] == ["cpu.after_boot"]
        assert answer["changed"]
        assert said(tune(host), "info") == []


def boot(host: FakeHost, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """What the unit's own command sets, on the fake host's files."""
    unit = host.read(cpu_tuning.UNIT_FILE) or ""
    (command,) = [line.split("=", 1)[1].split() for line in unit.splitlines() if line.startswith("ExecStart=")]
    assert command[:2] == ["/usr/bin/python3", cpu_tuning.PROGRAM]
    with monkeypatch.context() as patched:
        patched.setattr(cpu_boot, "Files", lambda: host)
        patched.setattr(cpu_boot, "_set", lambda _, item: f"{item.path} {item.value}")
        assert cpu_boot.main(command[2:]) == 0
    return capsys.readouterr().out.splitlines()


def test_the_boot_does_what_the_module_did(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    host = made(tmp_path, cpu_trees.xeon())
    tune(host)
    tuning_writes = cpu_tuning.wanted(cpu_tuning.read(host), cpu_tuning.wishes(ROLE)).writes
    kinds = (tuning.LIVE, cpu_tuning.CHOICE)
    live = [f"{item.object} {(item.value or '').strip()}" for item in tuning_writes if item.kind in kinds]
    assert boot(host, monkeypatch, capsys) == live


def test_the_program_runs_by_itself(tmp_path: Path) -> None:
    """The copy on the host: Python alone, nothing of this package, and no failure whatever the machine has."""
    host = made(tmp_path, cpu_trees.epyc_acpi())
    tune(host)
    program = host.path(cpu_tuning.PROGRAM)
    assert program.read_text() == (REPOSITORY / "module_utils/gpuhost/cpu_boot.py").read_text()
    argv = [sys.executable, "-I", "-S", str(program)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "nothing to do\n", "")


def test_setting_a_file(tmp_path: Path) -> None:
    value = tmp_path / "enabled"
    value.write_text("always [madvise] never\n")
    files = cpu_boot.Files()
    item = cpu_boot.Setting(str(value), "madvise", "")
    assert cpu_boot._set(files, item) == ""
    assert cpu_boot._set(files, dataclasses.replace(item, value="never")) == f"{value}: always [madvise] never -> never"
    assert value.read_text() == "never\n"
    missing = dataclasses.replace(item, path=str(tmp_path))
    assert cpu_boot._set(files, missing) == f"{tmp_path}: 'madvise' can't be written: Is a directory"
    assert (files.read_line(str(tmp_path / "no")), files.names(str(tmp_path / "no"))) == ("", [])


def test_a_failing_set_fails_no_unit() -> None:
    """A unit of ours that fails would take a trial boot back, see units.BLOCKING."""
    assert "Type=oneshot" in cpu_tuning.unit_text(WISHES)
    assert cpu_boot.main(["--governor", "no_such", "--max-idle-latency-us", "keep"]) == 0


def test_arguments_round_trip() -> None:
    assert cpu_boot.arguments(Wishes())[-3:] == ["keep", "--huge-pages", "keep"]
    assert cpu_boot.arguments(WISHES)[6:8] == ["--max-idle-latency-us", "50"]


def test_cpus_in_their_own_order(tmp_path: Path) -> None:
    host = made(tmp_path, cpu_trees.epyc_acpi(12))
    assert [item.path.rsplit("policy", 1)[1] for item in cpu_boot.read(host).policies] == [str(n) for n in range(12)]


def test_a_policy_without_cpus_is_left_out(tmp_path: Path) -> None:
    host = made(tmp_path, cpu_trees.epyc_acpi(2))
    host.remove(f"{CPUS}/cpufreq/policy1/scaling_governor")  # the kernel answers EBUSY
    assert len(cpu_boot.read(host).policies) == 1


def test_types_of_a_state() -> None:
    policy = Policy("p", "amd-pstate-epp", "performance", GOVERNORS, "performance", ("performance",))
    # The kernel lists only performance while that governor is in force.
    assert cpu_boot.epp_of(policy, Wishes("powersave", "balance_power")) == ("balance_power",)
    assert cpu_boot.epp_of(policy, Wishes("keep", "balance_power")) == ()
    assert cpu_boot.about(IdleState("s", "C2", 100, False)) == "idle state C2 (100 us) off"


# --- who else


def test_other_tools_are_named(tmp_path: Path) -> None:
    host = made(tmp_path, cpu_trees.epyc_acpi())
    host.put("/etc/systemd/system/graphical.target.wants/power-profiles-daemon.service")
    host.put("/sys/fs/cgroup/system.slice/cpupower.service/cgroup.procs")
    host.put("/etc/rc2.d/S01cpufrequtils")
    host.put("/sys/fs/cgroup/system.slice/tuned.service/cgroup.procs")
    host.put("/etc/tuned/active_profile", "latency-performance\n")
    host.put(
        "/usr/lib/tuned/profiles/latency-performance/tuned.conf",
        "[main]\nsummary=x\n[cpu]\nforce_latency=cstate.id_no_zero:1|3\ngovernor=performance\n[sysctl]\nvm.swappiness=10\n",
    )
    host.put("/etc/rc.local", "#!/bin/sh\ncpupower frequency-set -g performance\nsysctl -w vm.swappiness=1\n")
    host.path("/etc/rc.local").chmod(0o755)
    before = host.snapshot()
    answer = tune(host)
    assert [observed for code, observed in said(answer, "info") if code == "cpu.other_tool"] == [
        "power-profiles-daemon.service is in use",
        "cpupower.service is in use",
        "cpufrequtils.service is in use",
        "TuneD's profile latency-performance sets governor = performance, force_latency = cstate.id_no_zero:1|3",
        "/etc/rc.local: cpupower frequency-set -g performance",
    ]
    after = host.snapshot()
    assert [path for path in before if path.startswith("etc") and after[path] != before[path]] == []
