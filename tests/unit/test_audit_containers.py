"""The containers domain: who comes back after a boot, with which rules and nodes. Only looked at, never changed."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fake_host import FakeHost
from fake_snapshot import lay, snapshot

from gpuhost import audit_containers, devices_unit, majors_record
from gpuhost.audit_containers import Facts, Seen
from gpuhost.documents import Finding

CONFIG = "/etc/pve/lxc/101.conf"
RUNS = Seen("101", "pve", CONFIG, running=True, autostart=True, gpus=("/dev/nvidia0",))


@pytest.fixture
def host(tmp_path: Path) -> FakeHost:
    return lay(FakeHost(tmp_path), snapshot("pve-amd-8gpu"))


def of(facts: Facts, code: str) -> list[Finding]:
    return [item for item in audit_containers.findings(facts) if item.id == code]


def changed(host: FakeHost, old: str, new: str) -> Facts:
    text = host.read(CONFIG) or ""
    assert old in text
    host.put(CONFIG, text.replace(old, new))
    before = host.snapshot()
    facts = audit_containers.read(host)
    assert host.snapshot() == before
    return facts


def test_a_running_gpu_container_that_no_boot_starts(host: FakeHost) -> None:
    """The incident's."""
    (item,) = of(changed(host, "onboot: 1\n", ""), "containers.autostart")
    assert (item.severity, item.observed) == ("p0_runtime", "101 runs, and no boot starts it")
    assert item.fix == "pct set 101 --onboot 1"


def test_what_does_not_run_or_gets_no_gpu_needs_no_autostart(host: FakeHost) -> None:
    stopped = replace(RUNS, running=False, autostart=False)
    plain = replace(RUNS, name="102", autostart=False, gpus=())
    assert of(Facts((stopped, plain)), "containers.autostart") == []
    (item,) = of(Facts((plain,)), "containers.gpus")
    assert item.observed == "not applicable: no container gets a GPU (1 others)"


@pytest.mark.parametrize(
    ("engine", "fix"),
    [
        ("lxc", "lxc.start.auto = 1 in "),
        ("lxc@", "systemctl enable lxc@101.service"),
        ("docker", "docker update --restart unless-stopped 101"),
    ],
)
def test_the_way_out_is_the_engines_own(engine: str, fix: str) -> None:
    (item,) = of(Facts((replace(RUNS, engine=engine, autostart=False),)), "containers.autostart")
    assert item.fix.startswith(fix)


def test_a_plain_container_may_be_started_by_its_unit(tmp_path: Path) -> None:
    host = lay(FakeHost(tmp_path), snapshot("ubuntu-amd-8gpu"))
    path = "/var/lib/lxc/inference/config"
    host.put(path, (host.read(path) or "").replace("lxc.start.auto = 1\n", ""))
    (item,) = of(audit_containers.read(host), "containers.autostart")
    assert item.severity == "p0_runtime"
    host.put("/etc/systemd/system/multi-user.target.wants/lxc@inference.service")
    (item,) = of(audit_containers.read(host), "containers.autostart")
    assert item.severity == "good"


def test_a_stale_rule_is_said_and_left(host: FakeHost) -> None:
    majors_record.write(host, {"nvidia-uvm": (509,)})
    facts = changed(host, "c 504:* rwm", "c 509:* rwm")
    (item,) = (found for found in audit_containers.findings(facts) if found.id == "lxc.stale_major")
    assert item.severity == "p0_runtime"
    assert item.source.startswith("container 101, ")
    assert of(facts, "containers.device_rules") == []


def test_a_number_that_belongs_to_somebody_else_now_is_a_leak(host: FakeHost) -> None:
    host.put("/proc/devices", (host.read("/proc/devices") or "").replace("\n\nBlock", "\n509 aux\n\nBlock"))
    majors_record.write(host, {"nvidia-uvm": (509,)})
    found = audit_containers.findings(changed(host, "c 504:* rwm", "c 509:* rwm"))
    assert ("security", "lxc.leaked_major") in {(item.severity, item.id) for item in found}


def test_majors_that_are_not_known_judge_nothing(host: FakeHost) -> None:
    host.put("/proc/devices", "")
    (item,) = of(audit_containers.read(host), "containers.device_rules")
    assert item.severity == "unknown"


def test_a_record_that_can_not_be_read_hides_nothing_else(host: FakeHost) -> None:
    host.put(majors_record.RECORD, "{")
    facts = audit_containers.read(host)
    assert of(facts, "containers.device_rules")[0].severity == "unknown"
    assert of(facts, "containers.autostart")[0].severity == "good"


def test_missing_nodes(host: FakeHost) -> None:
    del host.nodes["/dev/nvidia-uvm"]
    host.nodes["/dev/nvidia-caps/nvidia-cap2"] = (237, 2)
    (item,) = of(audit_containers.read(host), "device.node_missing")
    assert item.severity == "p0_runtime"
    assert item.observed == "missing, or with an old number: /dev/nvidia-uvm, /dev/nvidia-caps/nvidia-cap2"


@pytest.mark.parametrize(("at_boot", "words"), [("reconcile", "nodes and rules"), ("nodes", "nodes at")])
def test_the_unit_at_boot(host: FakeHost, at_boot: Any, words: str) -> None:
    assert of(audit_containers.read(host), "containers.boot_unit")[0].severity == "info"
    host.put(devices_unit.UNIT_FILE, devices_unit.unit_text(at_boot))
    host.put(devices_unit.LINK)
    (item,) = of(audit_containers.read(host), "containers.boot_unit")
    assert (item.severity, words in item.observed) == ("good", True)


def docker(host: FakeHost, identity: str, restart: str, **more: Any) -> None:
    folder = f"{audit_containers.DOCKER}/{identity}"
    host.put(f"{folder}/hostconfig.json", json.dumps({"RestartPolicy": {"Name": restart}, **more}))
    host.put(f"{folder}/config.v2.json", json.dumps({"Name": f"/{identity[:4]}", "State": {"Running": True}}))


def test_dockers_containers(tmp_path: Path) -> None:
    host = FakeHost(tmp_path)
    gpus = {"DeviceRequests": [{"Driver": "", "Count": -1, "Capabilities": [["gpu"]]}]}
    docker(host, "aaaa" * 16, "no", **gpus)
    docker(host, "bbbb" * 16, "unless-stopped", Devices=[{"PathOnHost": "/dev/nvidia0"}])
    docker(host, "cccc" * 16, "", DeviceRequests=None)
    docker(host, "dddd" * 16, "always", Runtime="nvidia")
    host.put(f"{audit_containers.DOCKER}/eeee/hostconfig.json", "{")
    facts = audit_containers.read(host)
    seen = {item.name: (item.running, item.autostart) for item in facts.containers}
    assert seen == {"aaaa": (True, False), "bbbb": (True, True), "dddd": (True, True)}
    (item,) = of(facts, "containers.autostart")
    assert (item.severity, item.observed) == ("p0_runtime", "aaaa runs, and no boot starts it")


def test_without_root_nothing_is_known(host: FakeHost) -> None:
    host.root_user = False
    (item,) = audit_containers.findings(audit_containers.read(host))
    assert (item.severity, item.observed) == ("unknown", "unknown: needs root")


def test_a_host_without_containers(tmp_path: Path) -> None:
    found = audit_containers.findings(audit_containers.read(FakeHost(tmp_path)))
    assert [(item.severity, item.id) for item in found] == [
        ("info", "containers.gpus"), ("unknown", "containers.device_rules")
    ][: len(found)]  # fmt: skip
