"""memlock: the line that a container's config needs, every other byte kept, and the limit that processes have."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from fake_gpus import Machine
from fake_host import FakeHost
from fake_roll import REPOSITORY
from hypothesis import given
from hypothesis import strategies as st

from gpuhost import lxc_config, memlock, tuning
from gpuhost.lxc_lines import Style
from gpuhost.memlock import CONFIG_KIND, KEY, UNLIMITED, config_value, with_value
from gpuhost.tuning import Write

CONFIG = b"lxc.uts.name = c1\nlxc.mount.entry = /dev/nvidia0 dev/nvidia0 none bind,optional,create=file 0 0\n"
PVE = b"#notes\nhostname: gpu\nlxc.mount.entry: /dev/nvidia0 dev/nvidia0 none bind 0 0\n\n[snap]\nhostname: old\n"
PATH = "/var/lib/lxc/c1/config"
MIB8 = "8388608"


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    made = Machine(FakeHost(tmp_path))
    made.host.put(PATH, CONFIG)
    return made


def look(machine: Machine, wish: Any = "report") -> tuning.Wanted:
    return memlock.wanted(memlock.read(machine.host), wish)


def said(machine: Machine, wish: Any = "report") -> dict[str, tuple[str, str, str]]:
    return {item.id: (item.severity, item.observed, item.fix) for item in look(machine, wish).findings}


# --- the line


def value(data: bytes, style: Style) -> str | None:
    return config_value(lxc_config.parse(data, style))


def test_the_line_comes_after_the_last_one_of_the_container_itself() -> None:
    assert with_value(CONFIG, "lxc", UNLIMITED) == CONFIG + b"lxc.prlimit.memlock = unlimited\n"
    lines = with_value(PVE, "pve", UNLIMITED).splitlines()
    assert lines[3:6] == [b"lxc.prlimit.memlock: unlimited", b"", b"[snap]"]


def test_a_line_that_is_there_gets_another_value_and_nothing_else() -> None:
    config = b"lxc.prlimit.memlock\t=  65536 \r\nlxc.x = 1"
    assert with_value(config, "lxc", UNLIMITED) != config
    assert with_value(with_value(config, "lxc", UNLIMITED), "lxc", value(config, "lxc")) == config


def test_the_last_of_several_lines_counts() -> None:
    config = f"{KEY} = unlimited\n{KEY} = 1024\n".encode()
    assert value(config, "lxc") == "1024"
    assert with_value(config, "lxc", UNLIMITED) == f"{KEY} = unlimited\n{KEY} = unlimited\n".encode()


def test_a_snapshots_line_is_not_the_containers() -> None:
    config = PVE + f"{KEY}: unlimited\n".encode()
    assert value(config, "pve") is None
    assert with_value(config, "pve", UNLIMITED).count(KEY.encode()) == 2


@given(
    st.binary(max_size=200) | st.text("lxc.a:= \r\n#[]u1", max_size=200).map(str.encode),
    st.sampled_from(["lxc", "pve"]),
)
def test_set_and_taken_back_are_the_same_bytes(config: bytes, style: Style) -> None:
    before = value(config, style)
    written = with_value(config, style, UNLIMITED)
    assert value(written, style) == UNLIMITED
    assert with_value(written, style, UNLIMITED) == written
    if before != UNLIMITED:
        assert with_value(written, style, before) == config


@pytest.mark.parametrize("path", sorted((REPOSITORY / "tests/cases").glob("lxc-*.in.conf")), ids=lambda path: path.stem)
def test_public_cases_keep_every_other_line(path: Path) -> None:
    config = path.read_bytes()
    for style in ("pve", "lxc"):
        written = with_value(config, style, UNLIMITED)  # type: ignore[arg-type]
        kept = [line for line in written.splitlines() if KEY.encode() not in line]
        assert kept == [line for line in config.splitlines() if KEY.encode() not in line]


def test_the_incidents_container_says_it_already() -> None:
    config = (REPOSITORY / "tests/cases/lxc-01-stale-uvm-and-caps-with-snapshot.in.conf").read_bytes()
    assert value(config, "pve") == UNLIMITED


@pytest.mark.parametrize(
    ("text", "unlimited"),
    [("unlimited", True), ("unlimited:unlimited", True), ("8388608", False), ("1024:unlimited", False), (None, False)],
)
def test_what_is_unlimited(text: str | None, unlimited: bool) -> None:
    assert memlock.is_unlimited(text) is unlimited


# --- containers


def test_a_config_that_says_nothing_is_a_finding_with_the_line_to_add(machine: Machine) -> None:
    severity, observed, fix = said(machine)["containers.memlock"]
    assert (severity, observed) == ("p0_runtime", f"{PATH} says nothing")
    assert f"add 'lxc.prlimit.memlock = unlimited' to {PATH}, then restart c1" in fix
    assert look(machine).writes == ()


def test_on_proxmox_the_line_has_a_colon(machine: Machine) -> None:
    machine.host.put("/usr/bin/pmxcfs")
    machine.host.put("/etc/pve/lxc/101.conf", PVE)
    assert "add 'lxc.prlimit.memlock: unlimited' to /etc/pve/lxc/101.conf" in said(machine)["containers.memlock"][2]


def test_it_is_applied_where_that_is_asked_for(machine: Machine) -> None:
    (result,) = tuning.apply(machine.host, look(machine, "apply").writes, False)
    assert result.line == f"{PATH}: nothing -> unlimited"
    assert machine.host.read_bytes(PATH) == CONFIG + b"lxc.prlimit.memlock = unlimited\n"
    assert look(machine, "apply").writes == ()
    assert said(machine)["containers.memlock"][:2] == ("good", "unlimited: c1")
    tuning.revert(machine.host, False)
    assert machine.host.read_bytes(PATH) == CONFIG


def test_where_no_limit_can_be_raised_nothing_is_written(machine: Machine) -> None:
    """With such a line the container would not start any more."""
    machine.host.put("/proc/self/status", "Name:\tpython3\nCapEff:\t000001fffeffffff\n")
    assert look(machine, "apply").writes == ()
    assert "no CAP_SYS_RESOURCE" in said(machine, "apply")["containers.memlock"][2]
    machine.host.put("/proc/self/status", "Name:\tpython3\nCapEff:\t000001ffffffffff\n")
    assert len(look(machine, "apply").writes) == 1


def test_a_locked_config_on_proxmox_is_refused_and_stays(machine: Machine) -> None:
    machine.host.put("/usr/bin/pmxcfs")
    machine.host.put("/etc/pve/.members", '{"nodename": "gpu"}')
    config = b"lock: backup\n" + PVE
    machine.host.put("/etc/pve/lxc/101.conf", config)
    (result,) = tuning.apply(machine.host, [Write(CONFIG_KIND, "/etc/pve/lxc/101.conf", UNLIMITED)], False)
    assert (result.status, result.reason) == ("refused", "lock: backup")
    assert machine.host.read_bytes("/etc/pve/lxc/101.conf") == config


def test_a_container_that_runs_with_an_older_limit_has_to_be_restarted(machine: Machine) -> None:
    machine.host.put(PATH, with_value(CONFIG, "lxc", UNLIMITED))
    machine.process(900, "systemd", "/lxc.payload.c1/init.scope", limit=MIB8, gpu=False, init=True)
    severity, observed, fix = said(machine)["containers.memlock"]
    assert (severity, fix) == ("p0_runtime", "Restart container c1")
    assert observed == "c1 runs with 8 MiB, from before its config said unlimited"


def test_the_limit_is_that_of_the_containers_own_init(machine: Machine) -> None:
    machine.process(800, "python3", "/lxc.payload.c1/app.service", limit="1024", gpu=False)
    machine.process(900, "systemd", "/lxc.payload.c1/init.scope", limit=MIB8, gpu=False, init=True)
    assert said(machine)["containers.memlock"][1] == f"{PATH} says nothing, runs with 8 MiB"


def test_proxmoxs_cgroups(machine: Machine) -> None:
    machine.host.put("/usr/bin/pmxcfs")
    machine.host.put("/etc/pve/lxc/101.conf", with_value(PVE, "pve", UNLIMITED))
    machine.host.remove(PATH)
    machine.process(900, "systemd", "/lxc/101/ns/init.scope", limit=MIB8, gpu=False, init=True)
    assert said(machine)["containers.memlock"][1].startswith("101 runs with 8 MiB")


def test_a_container_without_a_gpu_is_none_of_ours(machine: Machine) -> None:
    machine.host.put(PATH, b"lxc.uts.name = c1\n")
    assert said(machine)["containers.memlock"][:2] == ("info", "not applicable: no container gets a GPU")


# --- processes


def test_a_service_gets_a_drop_in_and_then_a_restart(machine: Machine) -> None:
    machine.process(41872, "python3", "/system.slice/vllm.service", limit=MIB8)
    severity, observed, fix = said(machine)["gpu.service_memlock"]
    assert (severity, observed) == ("p0_runtime", "python3 (41872) in vllm.service runs with 8 MiB")
    assert "LimitMEMLOCK=infinity in a drop-in of vllm.service" in fix
    tuning.apply(machine.host, look(machine, "apply").writes, False)
    path = "/etc/systemd/system/vllm.service.d/50-gpuhost-memlock.conf"
    assert machine.host.read(path) == memlock.DROP_IN
    assert ["systemctl", "daemon-reload"] in machine.host.calls
    assert said(machine, "apply")["gpu.service_memlock"][2] == "systemctl restart vllm.service"
    assert {item.status for item in tuning.apply(machine.host, look(machine, "apply").writes, False)} == {"same"}


@pytest.mark.parametrize(
    ("cgroup", "fix"),
    [
        ("/system.slice/docker-" + "a1" * 32 + ".scope", "--ulimit memlock=-1:-1"),
        ("/docker/" + "a1" * 32, "--ulimit memlock=-1:-1"),
        ("/user.slice/user-1000.slice/session-3.scope", "/etc/security/limits.d"),
        ("/user.slice/user-1000.slice/user@1000.service/app.slice/vllm.service", "/etc/security/limits.d"),
        ("/system.slice/system-vllm.slice/vllm@0.service/worker", "a drop-in of vllm@0.service"),
        ("/lxc.payload.c9/system.slice/vllm.service", "In container c9: LimitMEMLOCK=infinity"),
    ],
)
def test_who_gives_a_process_its_limit(machine: Machine, cgroup: str, fix: str) -> None:
    machine.process(41872, "python3", cgroup, limit=MIB8)
    assert fix in said(machine)["gpu.service_memlock"][2]


def test_what_the_containers_init_is_short_of_is_said_once(machine: Machine) -> None:
    machine.process(900, "systemd", "/lxc.payload.c1/init.scope", limit=MIB8, gpu=False, init=True)
    machine.process(901, "python3", "/lxc.payload.c1/system.slice/vllm.service", limit=MIB8)
    found = said(machine)
    assert found["containers.memlock"][0] == "p0_runtime"
    assert found["gpu.service_memlock"][0] == "good"


def test_the_drivers_own_services_need_none(machine: Machine) -> None:
    machine.process(700, "nvidia-persiste", "/system.slice/nvidia-persistenced.service", limit=MIB8)
    assert said(machine)["gpu.service_memlock"][0] == "info"


def test_an_ordinary_user_is_told_so(machine: Machine) -> None:
    machine.host.root_user = False
    assert said(machine) == {"containers.memlock": ("unknown", "unknown: needs root", "")}
