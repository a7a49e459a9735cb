"""Plain LXC and Proxmox behind one interface: found, in order, started, stopped, and what is not ours.

``pct`` is a fake after the real one's formats (fake_pct); Proxmox itself is not to be had here.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from fake_host import Answer, FakeHost
from fake_pct import CLUSTER, GENERATED, STANDALONE, FakePct, make_proxmox, proxmox_host
from fake_tools import install_programs

from gpuhost import containers, containers_lxc, foreign_workloads
from gpuhost.containers import LAST, Container
from gpuhost.errors import Stop

PLAIN = "lxc.uts.name = {name}\nlxc.start.auto = 1\n"


@pytest.fixture
def host(tmp_path: Path) -> FakeHost:
    there = FakeHost(tmp_path)
    install_programs(there)
    for name, more in (("web", "lxc.start.order = 5\nlxc.start.delay = 4\n"), ("db", "lxc.start.order = 1\n")):
        there.put(f"/var/lib/lxc/{name}/config", PLAIN.format(name=name) + more)
        there.running.add(name)
    return there


@pytest.fixture
def pve(tmp_path: Path) -> tuple[FakeHost, FakePct]:
    return proxmox_host(tmp_path)


def named(host: FakeHost, name: str) -> Container:
    return next(item for item in containers.containers(host) if item.name == name)


def names(host: FakeHost) -> list[str]:
    return [item.name for item in containers.containers(host)]


# --- found


def test_plain_containers_in_start_order(host: FakeHost) -> None:
    found = containers.containers(host)
    assert [(item.name, item.engine, item.style, item.order, item.delay_s) for item in found] == [
        ("db", "lxc", "lxc", 1, 0),
        ("web", "lxc", "lxc", 5, 4),
    ]
    assert all(item.autostart and not item.is_template for item in found)
    assert found[0].config_path == "/var/lib/lxc/db/config"
    assert containers.running(host) == {"web", "db"}


def test_proxmox_order_those_without_one_last_by_number(pve: tuple[FakeHost, FakePct]) -> None:
    host, pct = pve
    pct.add(host, 1000)
    pct.add(host, 99)
    pct.add(host, 130, "onboot: 1\nstartup: order=2,up=30,down=60\n", running=False)
    pct.add(host, 120, "startup: 7,up=5\n")
    pct.add(host, 110, "startup: up=5\n")
    found = containers.containers(host)
    assert [(item.name, item.order, item.delay_s) for item in found] == [
        ("130", 2, 30), ("120", 7, 5), ("99", LAST, 0), ("110", LAST, 5), ("1000", LAST, 0),
    ]  # fmt: skip
    assert {(item.engine, item.style) for item in found} == {("pve", "pve")}
    assert [item.autostart for item in found] == [True, False, False, False, False]
    assert found[0].config_path == "/etc/pve/lxc/130.conf"
    assert containers.running(host) == {"1000", "99", "120", "110"}


def test_stray_files_and_other_nodes_are_no_containers(pve: tuple[FakeHost, FakePct]) -> None:
    """Case lxc-11."""
    host, pct = pve
    pct.add(host, 129)
    pct.add(host, 1290)
    for name in (
        "129.conf.bak", "129.conf.tmp", "129.conf.new", "129.conf.backup.20250301_101500", "gpu-notes.conf",
        ".ansible_tmpq1w2e3130.conf", "129.conf.tmp.gpuhost",
    ):  # fmt: skip
        host.put(f"/etc/pve/lxc/{name}", "arch: amd64\n")
    host.put("/etc/pve/nodes/node-b/lxc/131.conf", "arch: amd64\n")
    assert names(host) == ["129", "1290"]


def test_what_proxmox_generates_is_no_plain_container(pve: tuple[FakeHost, FakePct]) -> None:
    host, pct = pve
    pct.add(host, 101)
    host.put("/var/lib/lxc/102/config", GENERATED.format(vmid=102))  # has left this node
    host.put("/var/lib/lxc/7/config", PLAIN.format(name="7"))  # somebody's own, beside Proxmox
    host.put("/var/lib/lxc/web/config", PLAIN.format(name="web"))
    host.running |= {"web"}
    assert [(item.name, item.engine) for item in containers.containers(host)] == [
        ("7", "lxc"), ("web", "lxc"), ("101", "pve"),
    ]  # fmt: skip
    assert containers.running(host) == {"web", "101"}


def test_without_proxmox_a_number_is_a_name(host: FakeHost) -> None:
    host.put("/var/lib/lxc/102/config", GENERATED.format(vmid=102))
    assert "102" in names(host)


def test_a_template_is_never_started(pve: tuple[FakeHost, FakePct]) -> None:
    host, pct = pve
    pct.add(host, 900, "template: 1\n", running=False)
    assert named(host, "900").is_template
    with pytest.raises(Stop) as caught:
        containers.start(host, named(host, "900"))
    assert caught.value.blocker.cause == "workload.not_back"
    assert host.ran("pct", "start") == []


def test_gpu_nodes_come_by_mounts_and_by_dev_entries(pve: tuple[FakeHost, FakePct]) -> None:
    host, pct = pve
    text = "dev0: /dev/nvidiactl,gid=44\ndev1: /dev/ttyUSB0\n"
    host.put("/etc/pve/lxc/101.conf", text + "[before]\ndev2: /dev/nvidia7\n")
    pct.add(host, 102)
    assert named(host, "101").gpu_paths == ["/dev/nvidiactl"]
    assert named(host, "102").gpu_paths == ["/dev/nvidia0"]


# --- who runs


def test_nothing_runs_is_never_a_guess(pve: tuple[FakeHost, FakePct]) -> None:
    host, pct = pve
    assert containers.running(host) == set()
    assert host.ran("pct") == []
    pct.add(host, 101)
    pct.down = True
    with pytest.raises(Stop) as caught:
        containers.running(host)
    assert caught.value.blocker.object == "pct list"
    host.remove("/etc/pve/.members")
    host.remove("/etc/pve/lxc/101.conf")  # without pmxcfs the folder is empty
    with pytest.raises(Stop) as caught:
        containers.running(host)
    assert (caught.value.blocker.cause, caught.value.blocker.observed) == ("lxc.no_quorum", "/etc/pve is not mounted")


def test_a_container_that_pct_does_not_know(pve: tuple[FakeHost, FakePct]) -> None:
    host, _ = pve
    gone = Container("555", "pve", "/etc/pve/lxc/555.conf", "pve", b"")
    with pytest.raises(Stop) as caught:
        containers.start(host, gone)
    assert "does not exist" in caught.value.blocker.observed


# --- start and stop


def test_proxmox_start_and_stop(pve: tuple[FakeHost, FakePct]) -> None:
    host, pct = pve
    pct.add(host, 101)
    item = named(host, "101")
    assert not containers.start(host, item)
    containers.stop(host, item, 7)
    assert pct.running == set()
    assert host.ran("pct", "shutdown") == [["pct", "shutdown", "101", "--timeout", "7"]]
    assert containers.start(host, item)
    assert pct.running == {"101"}


def test_proxmox_that_does_not_stop_is_not_killed(pve: tuple[FakeHost, FakePct]) -> None:
    host, pct = pve
    pct.add(host, 101)
    pct.stubborn = {"101"}
    with pytest.raises(Stop) as caught:
        containers.stop(host, named(host, "101"), 7)
    blocker = caught.value.blocker
    assert (blocker.cause, blocker.object) == ("workload.not_stopped", "container 101")
    assert blocker.observed == "still runs after 7 s (container did not stop)"


def test_proxmox_that_does_not_start(pve: tuple[FakeHost, FakePct]) -> None:
    host, pct = pve
    pct.add(host, 101, running=False)
    pct.broken = {"101"}
    with pytest.raises(Stop) as caught:
        containers.start(host, named(host, "101"))
    blocker = caught.value.blocker
    assert (blocker.cause, blocker.object) == ("workload.not_back", "container 101")
    assert "startup for container '101' failed" in blocker.observed
    assert "pct start 101 --debug" in blocker.next_step


@pytest.mark.parametrize(("lock", "starts"), [("backup", False), ("migrate", False), ("mounted", True)])
def test_a_locked_container(pve: tuple[FakeHost, FakePct], lock: str, starts: bool) -> None:
    host, pct = pve
    pct.add(host, 101, f"lock: {lock}\n", running=False)
    if starts:
        assert containers.start(host, named(host, "101"))
        return
    with pytest.raises(Stop) as caught:
        containers.start(host, named(host, "101"))
    assert (caught.value.blocker.cause, caught.value.blocker.object) == ("lxc.locked", "/etc/pve/lxc/101.conf")
    assert f"lock: {lock}" in caught.value.blocker.observed
    pct.running.add("101")
    with pytest.raises(Stop) as caught:
        containers.stop(host, named(host, "101"), 7)
    assert caught.value.blocker.cause == "lxc.locked"
    assert host.ran("pct", "shutdown") == []


def test_a_lock_that_goes_is_waited_for(pve: tuple[FakeHost, FakePct], monkeypatch: pytest.MonkeyPatch) -> None:
    host, pct = pve
    pct.add(host, 101, "lock: backup\n", running=False)
    monkeypatch.setattr(host, "sleep", lambda _: pct.add(host, 101, running=False))
    assert containers.start(host, named(host, "101"))


def test_without_quorum_nothing_starts(tmp_path: Path) -> None:
    host, pct = proxmox_host(tmp_path, {**CLUSTER, "cluster": {"name": "lab", "quorate": 0}})
    pct.add(host, 101, running=False)
    with pytest.raises(Stop) as caught:
        containers.start(host, named(host, "101"))
    assert caught.value.blocker.cause == "lxc.no_quorum"


# --- the unit lxc@NAME.service


def with_unit(host: FakeHost, *active: str) -> list[str]:
    """Units that run; a start works only with the flag, because a roll holds the template."""
    flags: list[str] = []
    host.put("/lib/systemd/system/lxc@.service", "[Service]\n")

    def systemctl(there: FakeHost, argv: list[str]) -> Answer:
        name = argv[-1].removeprefix("lxc@").removesuffix(".service")
        if argv[1] == "list-units":
            return (
                0,
                "".join(f"lxc@{item}.service loaded active running LXC Container: {item}\n" for item in active),
                "",
            )
        if argv[1] == "start" and there.exists(f"{containers_lxc.START_FOLDER}/{name}"):
            flags.append(name)
            there.running.add(name)
        return 0, "", ""

    host.programs[("systemctl",)] = systemctl
    return flags


def test_a_container_of_a_unit_goes_through_it(host: FakeHost) -> None:
    flags = with_unit(host, "web")
    assert {item.name: item.engine for item in containers.containers(host)} == {"db": "lxc", "web": "lxc@"}
    item = named(host, "web")
    containers.stop(host, item, 9)
    # The unit's own stop kills after 60 s: it comes after a stop that does not, and has nothing left to do.
    ends = [call for call in host.calls if call[0] == "lxc-stop" or call[:2] == ["systemctl", "stop"]]
    assert ends == [
        ["lxc-stop", "-n", "web", "--nokill", "-t", "9"],
        ["systemctl", "stop", "lxc@web.service"],
    ]
    assert containers.start(host, item)
    assert flags == ["web"]
    assert host.ran("lxc-start") == []
    assert not host.exists(f"{containers_lxc.START_FOLDER}/web")


def test_an_enabled_unit_counts_also_when_it_does_not_run(host: FakeHost) -> None:
    with_unit(host)
    host.put("/etc/systemd/system/multi-user.target.wants/lxc@db.service")
    assert named(host, "db").engine == "lxc@"


def test_a_unit_whose_container_does_not_stop_is_not_stopped_either(host: FakeHost) -> None:
    with_unit(host, "web")
    host.stubborn = {"web"}
    with pytest.raises(Stop) as caught:
        containers.stop(host, named(host, "web"), 9)
    assert caught.value.blocker.cause == "workload.not_stopped"
    assert host.ran("systemctl", "stop") == []


def test_a_unit_that_does_not_start_its_container(host: FakeHost) -> None:
    with_unit(host, "web")
    host.running = set()
    host.programs[("systemctl", "start")] = (1, "", "Job for lxc@web.service failed.")
    with pytest.raises(Stop) as caught:
        containers.start(host, named(host, "web"))
    assert "Job for lxc@web.service failed." in caught.value.blocker.observed
    assert "journalctl -b -u lxc@web.service" in caught.value.blocker.next_step
    assert not host.exists(f"{containers_lxc.START_FOLDER}/web")


# --- ready


@pytest.mark.parametrize(
    ("pid", "comm", "state", "ready"),
    [
        ("4000\n", "lxc-start", "", False),
        ("4000\n", "python3", "", True),
        ("4000\n", "systemd", "starting\n", False),
        ("4000\n", "systemd", "", False),
        ("4000\n", "systemd", "stopping\n", False),
        ("4000\n", "systemd", "degraded\n", True),
        ("4000\n", "systemd", "running\n", True),
        ("4000\n", "", "", False),
        ("-1\n", "systemd", "running\n", False),
        ("", "systemd", "running\n", False),
    ],
)
def test_ready_means_that_init_is_up(host: FakeHost, pid: str, comm: str, state: str, ready: bool) -> None:
    host.programs[("lxc-info",)] = (0, pid, "")
    host.programs[("lxc-attach",)] = (1 if state != "running\n" else 0, state, "")
    if comm:
        host.put("/proc/4000/comm", comm + "\n")
    assert containers.is_ready(host, named(host, "web")) == ready


def test_who_is_not_ready_in_time_is_named(host: FakeHost) -> None:
    host.programs[("lxc-info",)] = lambda there, argv: (0, "4000\n" if argv[2] == "web" else "", "")
    host.put("/proc/4000/comm", "init\n")
    late = containers.wait_until_ready(host, containers.containers(host), 5)
    assert [item.name for item in late] == ["db"]


# --- what is not ours


def blocks(host: FakeHost) -> list[tuple[str, str]]:
    return [(item.cause, item.object) for item in foreign_workloads.in_the_way(host)]


SOCKETS = """Num       RefCount Protocol Flags    Type St Inode Path
0000000000000000: 00000002 00000000 00010000 0001 01 20001 @/var/lib/lxc/web/command
0000000000000000: 00000002 00000000 00010000 0001 01 20002 /run/systemd/private
0000000000000000: 00000003 00000000 00000000 0001 03 20003
"""


@pytest.mark.parametrize(
    ("path", "named_as", "said"),
    [
        ("@/var/lib/incus/containers/c1/command", "c1", "/var/lib/incus/containers"),
        ("@/var/snap/lxd/common/lxd/containers/web/command", "web", "/var/snap/lxd"),
        ("@/home/user/.local/share/lxc/web/command", "web", "/home/user"),
        ("@/var/lib/lxc/forgotten/command", "forgotten", "its config is gone"),
        ("@lxc/0123456789abcdef/command", "0123456789abcdef", "lxc"),
    ],
)
def test_containers_of_others_block(host: FakeHost, path: str, named_as: str, said: str) -> None:
    host.put("/proc/net/unix", SOCKETS)
    assert blocks(host) == []
    host.put("/proc/net/unix", SOCKETS + f"0000000000000000: 00000002 00000000 00010000 0001 01 20009 {path}\n")
    assert blocks(host) == [("workload.blocks", f"container {named_as}")]
    assert said in foreign_workloads.in_the_way(host)[0].observed


@pytest.mark.parametrize(
    ("cgroup", "free"),
    [
        ("/lxc.payload.web/system.slice", True),
        ("/lxc.payload.web-1/system.slice", True),  # an old cgroup of the name was left
        ("/lxc.payload.web/lxc.payload.inner/x", True),
        ("/lxc.payload.incus1/system.slice", False),
        ("/lxc/101/ns/init.scope", False),
    ],
)
def test_a_gpu_in_a_container_of_somebody_else_blocks(host: FakeHost, cgroup: str, free: bool) -> None:
    host.put("/proc/4242/comm", "vllm\n")
    host.put("/proc/4242/cgroup", f"0::{cgroup}\n")
    host.path("/proc/4242/fd").mkdir(parents=True)
    host.path("/proc/4242/fd/5").symlink_to("/dev/nvidia0")
    assert blocks(host) == ([] if free else [("workload.blocks", "process 4242 (vllm)")])


def test_proxmox_containers_do_not_block_by_themselves(pve: tuple[FakeHost, FakePct]) -> None:
    host, pct = pve
    pct.add(host, 101)
    host.put("/etc/pve/qemu-server/100.conf", "memory: 512\n")  # a VM that does not run
    host.put("/proc/4242/comm", "vllm\n")
    host.put("/proc/4242/cgroup", "0::/lxc/101/ns/system.slice\n")
    host.path("/proc/4242/fd").mkdir(parents=True)
    host.path("/proc/4242/fd/5").symlink_to("/dev/nvidia0")
    host.put("/proc/net/unix", "0000000000000000: 00000002 00000000 00010000 0001 01 2 @/var/lib/lxc/101/command\n")
    assert blocks(host) == []
    pct.add(host, 101, "lock: backup\n")
    assert blocks(host) == [("lxc.locked", "/etc/pve/lxc/101.conf")]


HA = """ct: 101
\tgroup gpu
\tstate started

vm: 100
\tstate stopped

ct: 102
\tcomment under nobody's eyes
\tstate ignored

ct: 131
"""


def test_guests_under_ha_block_by_name(pve: tuple[FakeHost, FakePct]) -> None:
    host, pct = pve
    host.put("/etc/pve/ha/resources.cfg", HA)
    assert blocks(host) == []  # all of other nodes
    pct.add(host, 101, running=False)
    pct.add(host, 102)
    host.put("/etc/pve/qemu-server/100.conf", "memory: 512\n")
    assert blocks(host) == [("workload.blocks", "ct:101"), ("workload.blocks", "vm:100")]


@pytest.mark.parametrize(
    ("members", "blocked"),
    [
        (CLUSTER, False),
        (STANDALONE, False),
        ({**CLUSTER, "cluster": {"name": "lab", "nodes": 2, "quorate": 0}}, True),
    ],
)
def test_a_node_without_quorum_blocks(tmp_path: Path, members: dict[str, object], blocked: bool) -> None:
    host, pct = proxmox_host(tmp_path, members)
    pct.add(host, 101)
    assert blocks(host) == ([("lxc.no_quorum", "/etc/pve")] if blocked else [])


def test_a_proxmox_whose_pmxcfs_is_down_blocks(host: FakeHost) -> None:
    make_proxmox(host)
    host.remove("/etc/pve/.members")
    assert blocks(host) == [("lxc.no_quorum", "/etc/pve")]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("lxc.mount.entry = /dev/nvidia0 dev/nvidia0 none bind 0 0\n", True),
        ("lxc.cgroup2.devices.allow = c 195:* rwm\n", True),
        ("lxc.hook.mount = /usr/share/lxc/hooks/nvidia\n", True),
        ("lxc.environment = NVIDIA_VISIBLE_DEVICES=all\n", True),
        ("lxc.uts.name = nvidia-docs\nlxc.cgroup2.devices.allow = c 10:200 rwm\n", False),
        ("# lxc.mount.entry = /dev/nvidia0 dev/nvidia0 none bind 0 0\n", False),
    ],
)
def test_whether_a_container_is_to_have_a_gpu(text: str, expected: bool) -> None:
    """Missed, it would be measured on the host, where everything works."""
    assert Container("web", "lxc", "/var/lib/lxc/web/config", "lxc", text.encode()).has_gpu is expected
