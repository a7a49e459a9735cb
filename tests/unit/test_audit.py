"""The audit: what tune would set is what it expects, and a part that can't be read takes none of the others along."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from fake_host import FakeHost
from fake_roll import HOST_NAME, REPOSITORY, RUN_ID, debian_host, library, step
from fake_tree import OLD

from gpuhost import audit, audit_domains, concerns, tune_step, tuning
from gpuhost.documents import Finding, as_dict, json_schema
from gpuhost.errors import Stop, stop
from gpuhost.tuning import LIVE, Write

CONCERNS = {
    "sysctl": ("gpuhost_sysctl", "sysctl_tuning"),
    "cpu": ("gpuhost_cpu_tuning", "cpu_tuning"),
    "gpu_runtime": ("gpuhost_gpu_runtime", "gpu_runtime"),
    "pcie": ("gpuhost_pcie", "pcie_tuning"),
}
ROLES = REPOSITORY / "roles"
SWAPPINESS = "/proc/sys/vm/swappiness"


def tasks(role: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = yaml.safe_load((ROLES / role / "tasks/main.yml").read_text())
    return found


def defaults() -> dict[str, dict[str, Any]]:
    """The modules' parameters out of the roles' defaults."""
    found = {}
    for concern, (_, role) in CONCERNS.items():
        values = yaml.safe_load((ROLES / role / "defaults/main.yml").read_text())
        found[concern] = {name.removeprefix(f"{role}_"): value for name, value in values.items()}
    return found


def parts(**changes: Any) -> tuple[audit.Part, ...]:
    return audit.parts_of({**defaults(), **changes}, [])


def collect(host: FakeHost, *chosen: audit.Part) -> audit.Audit:
    return audit.collect(host, HOST_NAME, RUN_ID, chosen or parts())


def finding(observed: str, **more: str) -> Finding:
    words = {
        "id": "x.y",
        "domain": "pcie",
        "severity": "p0_runtime",
        "expected": "",
        "why": "",
        "fix": "",
        "source": "",
    }
    return Finding(**{**words, "observed": observed, **more})  # type: ignore[arg-type]


# --- what tune would set is what audit expects


def test_every_concern_of_tuning_is_audited() -> None:
    assert [item.name for item in concerns.ALL] == list(CONCERNS)
    assert [item.name for item in parts()][:4] == list(CONCERNS)
    playbook = yaml.safe_load((REPOSITORY / "playbooks/stages/tune.yml").read_text())
    assert [task["ansible.builtin.import_role"]["name"] for task in playbook] == [role for _, role in CONCERNS.values()]


@pytest.mark.parametrize("concern", CONCERNS)
def test_the_arguments_are_those_of_the_concerns_own_module(concern: str) -> None:
    _, own = library(CONCERNS[concern][0])
    _, ours = library("gpuhost_audit")
    assert ours[concern]["options"] == {
        name: facts for name, facts in own.items() if name not in (*tune_step.ARGUMENTS, "program")
    }


@pytest.mark.parametrize("concern", CONCERNS)
def test_the_same_variables_reach_tune_and_audit(concern: str) -> None:
    module, role = CONCERNS[concern]
    (tuned,) = [task[module] for task in tasks(role) if module in task]
    (audited,) = [task["gpuhost_audit"] for task in tasks("host_audit") if "gpuhost_audit" in task]
    assert audited[concern] == {name: value for name, value in tuned.items() if name not in tune_step.ARGUMENTS}


def test_the_tuning_roles_lend_their_settings_and_run_nothing() -> None:
    lent = [task for task in tasks("host_audit") if "ansible.builtin.import_role" in task]
    assert [task["ansible.builtin.import_role"]["name"] for task in lent] == [role for _, role in CONCERNS.values()]
    assert all(task["when"] is False and task["tags"] == ["never"] for task in lent)


def test_what_tune_has_set_the_audit_confirms(tmp_path: Path) -> None:
    host = FakeHost(tmp_path)
    host.put(SWAPPINESS, "60\n")
    host.put("/var/lib/gpuhost/lock")
    (part,) = [item for item in parts() if item.name == "sysctl"]
    before = [item for item in collect(host, part).findings if item.source == SWAPPINESS]
    assert [(item.severity, item.observed) for item in before] == [
        ("p0_runtime", "vm.swappiness reads 60; at a boot no file sets it")
    ]
    step(host, "gpuhost_sysctl")
    after = [item for item in collect(host, part).findings if item.source == SWAPPINESS]
    assert [item.severity for item in after] == ["good"]


def test_wrong_settings_are_said_and_no_finding() -> None:
    with pytest.raises(Stop) as caught:
        parts(pcie={**defaults()["pcie"], "devices": ["01:00.0"]})
    assert caught.value.blocker.cause == "input.invalid"
    with pytest.raises(Stop) as caught:
        parts(gpu_runtime={**defaults()["gpu_runtime"], "mig_layout": 3})
    assert caught.value.blocker.cause == "input.invalid"
    with pytest.raises(Stop) as caught:
        audit.parts_of(defaults(), [{"match": "x"}])
    assert caught.value.blocker.cause == "input.invalid"


# --- one part, and the others


def test_all_domains_are_looked_at(tmp_path: Path) -> None:
    found = collect(debian_host(tmp_path))
    assert [item.name for item in found.parts] == [*CONCERNS, *audit_domains.looks([])]
    assert all(item.complete for item in found.parts), [item for item in found.findings if item.id == audit.NOT_READ]
    assert {"firmware", "containers", "driver", "kernel_version", "interconnect", "serving"} <= {
        item.domain for item in found.findings
    }


def test_an_audit_changes_nothing(tmp_path: Path) -> None:
    host = debian_host(tmp_path)
    before = host.snapshot()
    collect(host)
    assert host.snapshot() == before


def test_a_host_of_which_nothing_is_known_is_audited_too(tmp_path: Path) -> None:
    found = collect(FakeHost(tmp_path))
    assert found.findings
    assert [item for item in found.findings if item.severity in audit.URGENT] == []


@pytest.mark.parametrize(
    ("error", "root", "observed", "fix"),
    [
        (KeyError("size"), True, "unknown: KeyError: 'size'", "it is a defect"),
        (stop("host.module_failed", "/proc/x", "Input/output error"), True, "unknown: /proc/x: Input/output", "Look"),
        (stop("host.module_failed", "/var/x", "Permission denied"), False, "unknown: needs root (/var/x", "as root"),
        (PermissionError(13, "Permission denied"), False, "unknown: needs root (PermissionError", "as root"),
        (ValueError("odd"), False, "unknown: ValueError: odd", "Look"),
    ],
)
def test_a_part_that_cannot_be_read_is_unknown_and_the_rest_goes_on(
    tmp_path: Path, error: Exception, root: bool, observed: str, fix: str
) -> None:
    host = FakeHost(tmp_path)
    host.root_user = root

    def broken(_: Any) -> list[Finding]:
        raise error

    good = finding("fine", severity="good")
    found = collect(host, audit.Part("broken", "driver", broken), audit.Part("other", "pcie", lambda _: [good]))
    first, second = found.findings
    assert (first.id, first.severity, first.domain, first.source) == ("audit.not_read", "unknown", "driver", "broken")
    assert first.observed.startswith(observed)
    assert fix in first.fix
    assert second == good
    assert [item.complete for item in found.parts] == [False, True]
    assert found.as_root is root


def test_the_document_fits_its_schema(tmp_path: Path) -> None:
    found = as_dict(collect(debian_host(tmp_path)))
    jsonschema.validate(found, json_schema(audit.Audit))
    assert (found["schema"], found["host"], found["kernel"]) == ("gpuhost.audit", HOST_NAME, OLD)


def test_without_root_nothing_fails_on_this_very_machine() -> None:
    """Really as another user, on whatever machine this is."""
    script = f"""
import json, os
from gpuhost import audit
from gpuhost.documents import as_dict
from gpuhost.host_io import Host
if os.geteuid() == 0:
    os.setgroups([]); os.setgid(65534); os.setuid(65534)
parts = audit.parts_of(json.loads({json.dumps(defaults())!r}), [])
found = audit.collect(Host(), "localhost", "x", parts)
assert not found.as_root
print(json.dumps(as_dict(found)))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert "defect" not in done.stdout


# --- many devices, one finding


def test_devices_of_which_the_same_is_said_are_one_finding() -> None:
    first, second, third = (
        finding(f"512 bytes: 0000:{bus}:00.0", source=f"0000:{bus}:00.0") for bus in ("01", "21", "41")
    )
    other = finding("256 bytes: 0000:61:00.0", source="0000:61:00.0")
    assert audit.merged([first, other, second, third]) == (
        replace(first, observed="512 bytes: 0000:01:00.0, 0000:21:00.0, 0000:41:00.0"),
        other,
    )


def test_nothing_else_is_merged() -> None:
    found = (
        finding("512 bytes: 0000:01:00.0"),
        finding("512 bytes: 0000:01:00.0", id="x.z"),
        finding("512 bytes: 0000:01:00.0", expected="4096 bytes"),
        finding("512 bytes: 0000:01:00.0", severity="info"),
        finding("vm.swappiness reads 60: 1"),
        finding("vm.swappiness reads 60: 2"),
        finding("0000:01:00.0"),
    )
    assert audit.merged(found) == found
    assert audit.merged([found[0], found[0]]) == (found[0],)


# --- taking it all back


@pytest.fixture
def tuned(tmp_path: Path) -> FakeHost:
    host = FakeHost(tmp_path)
    host.put(SWAPPINESS, "60\n")
    host.put("/var/lib/gpuhost/lock")
    host.programs[("systemctl",)] = (0, "", "")
    step(host, "gpuhost_sysctl")
    return host


def test_revert_puts_everything_back(tuned: FakeHost) -> None:
    answer = step(tuned, "gpuhost_tune_revert")
    assert answer["changed"]
    assert answer["lines"] == [f"{SWAPPINESS}: 10 -> 60", "/etc/sysctl.d/zzz-gpuhost.conf: removed"]
    assert tuned.read(SWAPPINESS) == "60\n"
    assert not tuned.exists("/etc/sysctl.d/zzz-gpuhost.conf")
    assert tuned.ran("systemctl") == []  # there was no unit of ours
    (document,) = answer["gpuhost_documents"]
    assert (document["schema"], document["concern"], document["findings"]) == ("gpuhost.tune", "revert", [])
    again = step(tuned, "gpuhost_tune_revert")
    assert not again["changed"]
    assert again["lines"] == ["nothing to put back: no tuning by gpuhost is on record here"]


def test_revert_in_check_mode_only_says_so(tuned: FakeHost) -> None:
    before = tuned.snapshot()
    shown = step(tuned, "gpuhost_tune_revert", check=True)
    assert tuned.snapshot() == before
    assert shown["lines"] == step(tuned, "gpuhost_tune_revert")["lines"]


def test_our_units_are_stopped_before_their_files_go(tuned: FakeHost) -> None:
    path = "/etc/systemd/system/gpuhost-cpu.service"
    tuning.apply(tuned, [Write(tuning.FILE, path, "[Unit]\n")], False)
    tuned.calls.clear()
    step(tuned, "gpuhost_tune_revert", check=True)
    assert tuned.ran("systemctl") == []
    step(tuned, "gpuhost_tune_revert")
    assert tuned.ran("systemctl") == [
        ["systemctl", "stop", "gpuhost-cpu.service"],
        ["systemctl", "daemon-reload"],
    ]
    assert not tuned.exists(path)


def test_a_unit_of_others_that_was_changed_is_not_stopped(tuned: FakeHost) -> None:
    path = "/etc/systemd/system/server.service"
    tuned.put(path, "[Unit]\n")
    tuning.apply(tuned, [Write(tuning.FILE, path, "[Unit]\n# more\n")], False)
    tuned.calls.clear()
    step(tuned, "gpuhost_tune_revert")
    assert tuned.ran("systemctl") == [["systemctl", "daemon-reload"]]


def test_what_is_refused_is_said_and_stays_on_record(tuned: FakeHost, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: str, value: str) -> None:
        raise stop("host.module_failed", path, f"{value.strip()!r} can't be written: Permission denied")

    monkeypatch.setattr(tuned, "write_live", refuse)
    answer = step(tuned, "gpuhost_tune_revert")
    refused = [line for line in answer["lines"] if line.startswith("not put back: ")]
    assert len(refused) == 1
    assert SWAPPINESS in refused[0]
    (document,) = answer["gpuhost_documents"]
    assert [item["id"] for item in document["findings"]] == ["tune.not_put_back"]
    assert [(item.kind, item.object) for item in tuning.load(tuned).writes()] == [(LIVE, SWAPPINESS)]


def test_a_record_of_a_newer_gpuhost_is_not_half_put_back(tuned: FakeHost) -> None:
    text = tuned.read(tuning.RECORD)
    assert text is not None
    tuned.put(tuning.RECORD, re.sub(r'"kind": "live"', '"kind": "hologram"', text))
    before = tuned.snapshot()
    with pytest.raises(Stop) as caught:
        step(tuned, "gpuhost_tune_revert")
    assert "hologram" in caught.value.blocker.observed
    assert tuned.snapshot() == before


def test_revert_knows_the_kinds_of_every_concern() -> None:
    """In a process that has imported nothing else, as on a host."""
    script = "from gpuhost import tune_revert, tuning; print(' '.join(sorted(tuning.KINDS)))"
    kinds = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()
    assert set(kinds) == set(tuning.KINDS)
    assert {"sysctl_rival", "pcie_mrrs", "gpu_power_limit", "unit_file", "container_memlock"} <= set(kinds)
