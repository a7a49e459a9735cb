"""The reader of /proc/devices: character part only, exact names, repeated names and numbers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuhost.proc_devices import (
    CharacterMajors,
    ProcDevicesError,
    is_dynamic,
    is_unassigned,
    names_by_major,
    nvidia_majors,
    nvidia_node,
    parse_character_majors,
)

TEXT = """Character devices:
  1 mem
  5 /dev/tty
  5 /dev/console
195 nvidia
195 nvidiactl
195 nvidia-modeset
237 nvidia-fs
239 nvidia-caps
240 nvidia-caps-imex-channels
254 gpiochip
508 nvidia-uvm

Block devices:
  7 loop
253 device-mapper
254 mdp
"""


def test_names_and_majors_may_repeat() -> None:
    majors = parse_character_majors(TEXT)
    assert majors.names_of(195) == ("nvidia", "nvidiactl", "nvidia-modeset")
    assert majors.names_of(5) == ("/dev/tty", "/dev/console")
    assert majors.major_of("nvidia-uvm") == 508
    assert majors.major_of("nvidia-uv") is None


def test_block_table_is_not_read() -> None:
    majors = parse_character_majors(TEXT)
    assert majors.names_of(254) == ("gpiochip",)
    assert majors.names_of(7) == ()


def test_block_table_first_is_not_read_either() -> None:
    assert parse_character_majors("Block devices:\n  7 loop\nCharacter devices:\n  7 vcs\n").names_of(7) == ("vcs",)


def test_nvidia_names_are_exact() -> None:
    assert nvidia_majors(parse_character_majors(TEXT)) == {
        "nvidia": 195,
        "nvidiactl": 195,
        "nvidia-modeset": 195,
        "nvidia-caps": 239,
        "nvidia-caps-imex-channels": 240,
        "nvidia-uvm": 508,
    }


def test_owner_lookups() -> None:
    majors = parse_character_majors(TEXT)
    assert majors.nvidia_name_of(508) == "nvidia-uvm"
    assert majors.nvidia_name_of(237) is None
    assert majors.foreign_name_of(237) == "nvidia-fs"
    assert majors.foreign_name_of(508) is None
    assert majors.foreign_name_of(300) is None


def test_front_names_have_the_assigned_number_without_a_module() -> None:
    assert CharacterMajors(((1, "mem"),)).driver_major("nvidiactl") == 195
    assert CharacterMajors(((195, "nvidia-frontend"),)).driver_major("nvidia") == 195
    assert CharacterMajors(((1, "mem"),)).driver_major("nvidia-uvm") is None


def test_empty_table_is_refused_where_rules_are_judged() -> None:
    majors = parse_character_majors("")
    assert majors.entries == ()
    with pytest.raises(ProcDevicesError, match="no character devices found"):
        majors.require_known()


def test_record_is_inverted_for_nvidia_names_only() -> None:
    assert names_by_major({"nvidia": 195, "nvidiactl": 195, "gpiochip": 254}) == {195: ("nvidia", "nvidiactl")}


@pytest.mark.parametrize(
    ("major", "dynamic", "unassigned"),
    [
        (60, False, True),
        (226, False, False),
        (233, False, False),
        (234, True, True),
        (254, True, True),
        (255, False, True),
        (256, False, False),
        (383, False, False),
        (384, True, True),
        (511, True, True),
        (512, False, False),
    ],
)
def test_ranges(major: int, dynamic: bool, unassigned: bool) -> None:
    assert (is_dynamic(major), is_unassigned(major)) == (dynamic, unassigned)


@pytest.mark.parametrize(
    ("path", "driver", "minor"),
    [
        ("/dev/nvidia0", "nvidia", 0),
        ("/dev//nvidia12", "nvidia", 12),
        ("/dev/nvidiactl", "nvidiactl", 255),
        ("/dev/nvidia-modeset", "nvidia-modeset", 254),
        ("/dev/nvidia-uvm", "nvidia-uvm", 0),
        ("/dev/nvidia-uvm-tools", "nvidia-uvm", 1),
        ("/dev/nvidia-caps/", "nvidia-caps", None),
        ("/dev/nvidia-caps/nvidia-cap2", "nvidia-caps", 2),
        ("/dev/nvidia-caps-imex-channels/channel3", "nvidia-caps-imex-channels", 3),
        ("/dev/nvidia-nvswitch1", "nvidia-nvswitch", 1),
        ("/dev/nvidia-nvswitchctl", "nvidia-nvswitch", 255),
        ("/dev/nvidia-nvlink", "nvidia-nvlink", None),
    ],
)
def test_nodes(path: str, driver: str, minor: int | None) -> None:
    node = nvidia_node(path)
    assert node is not None
    assert (node.driver, node.minor) == (driver, minor)


@pytest.mark.parametrize("path", ["/dev/nvidia-fs0", "/dev/nvram", "/dev", "dev/nvidia0", "/srv/nvidia0", ""])
def test_other_paths_are_no_nvidia_nodes(path: str) -> None:
    assert nvidia_node(path) is None


@given(st.text())
def test_reader_never_raises(text: str) -> None:
    parse_character_majors(text)
    parse_character_majors("Character devices:\n" + text)
    nvidia_node(text)
    nvidia_node("/dev/" + text)
