"""Reading an initramfs: every compression, every kind of damage, and the modprobe configuration inside."""

from __future__ import annotations

import bz2
import gzip
import lzma
import subprocess
from pathlib import Path

import pytest
from fake_initramfs import EARLY, FILE, FOLDER, LINK, archive, member
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuhost.initramfs import Image, modules, read
from gpuhost.modprobe_config import kept_away, modprobe_problems

RELEASE = "6.12.118+deb13-amd64"
TREE = f"usr/lib/modules/{RELEASE}"
EARLY_MODULES = archive((f"{TREE}/kernel/drivers/nvme/host/nvme.ko.xz", FILE, b"\xfd7zXZ module"), block=512)
MAIN = archive(
    (".", FOLDER, b""),
    ("init", FILE, b"#!/bin/sh\n"),
    ("bin", LINK, b"usr/bin"),
    ("etc/modprobe.d/gpuhost.conf", FILE, b"options nvidia NVreg_A=1\nblacklist nouveau\n"),
    (f"{TREE}/updates/dkms/nvidia.ko", FILE, b"\x7fELF" + bytes(3000)),
    (f"{TREE}/updates/dkms/nvidia-uvm.ko", FILE, b"\x7fELF" + bytes(range(256)) * 8),
)


def program(name: str, data: bytes, *arguments: str) -> bytes:
    result = subprocess.run([name, *arguments], input=data, capture_output=True, check=False)
    if result.returncode:
        raise ValueError(result.stderr.decode(errors="replace").strip())
    return result.stdout


def decompress(name: str, data: bytes) -> bytes:
    """What the host does."""
    return program(name, data, "-dc")


def no_program(name: str, data: bytes) -> bytes:
    raise AssertionError(name)


COMPRESSED = {
    "none": MAIN,
    "gzip": gzip.compress(MAIN, mtime=0),
    "bzip2": bz2.compress(MAIN),
    "xz": lzma.compress(MAIN, check=lzma.CHECK_CRC32),
    "lzma": lzma.compress(MAIN, format=lzma.FORMAT_ALONE),
    "zstd": program("zstd", MAIN, "-qc"),
    "lz4": program("lz4", MAIN, "-l", "-9", "-c"),
}


@pytest.mark.parametrize("name", COMPRESSED)
@pytest.mark.parametrize("early", [b"", EARLY, EARLY + EARLY_MODULES], ids=["alone", "microcode", "modules"])
@pytest.mark.parametrize("after", [0, 1, 512])
def test_each_compression(name: str, early: bytes, after: int) -> None:
    image = read(early + COMPRESSED[name] + bytes(after), decompress)
    assert image.files == {"etc/modprobe.d/gpuhost.conf": b"options nvidia NVreg_A=1\nblacklist nouveau\n"}
    assert {"init", "bin", f"{TREE}/updates/dkms/nvidia.ko"} <= image.names
    assert ("nvme" in modules(image)[RELEASE]) == (EARLY_MODULES in early)


@pytest.mark.parametrize("name", [name for name in COMPRESSED if name not in ("zstd", "lz4")])
def test_no_program_where_python_can_do_it(name: str) -> None:
    assert read(COMPRESSED[name], no_program).names


@pytest.mark.parametrize("options", [["-19"], ["--no-check"], ["--ultra", "-22", "--long"], ["-1", "-T2"]])
def test_each_shape_of_a_zstd_frame(options: list[str]) -> None:
    """One that is read from a pipe has no content size, one block or many, with a checksum or without."""
    main = archive(("init", FILE, b""), ("a", FILE, bytes(400_000)), ("b", FILE, bytes(range(256)) * 1500))
    assert read(program("zstd", main, "-qc", *options) + bytes(4), decompress).names == {"init", "a", "b"}


def test_a_zstd_frame_with_its_size(tmp_path: Path) -> None:
    file = tmp_path / "main"
    file.write_bytes(MAIN)
    assert "init" in read(program("zstd", b"", "-qc", str(file)), decompress).names


@pytest.mark.parametrize("name", [name for name in COMPRESSED if name not in ("zstd", "lz4")])
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_a_cut_is_found_at_any_byte(name: str, data: st.DataObject) -> None:
    whole = EARLY + COMPRESSED[name]
    whole = whole.rstrip(b"\0") if name == "none" else whole
    with pytest.raises(ValueError):
        read(whole[: data.draw(st.integers(0, len(whole) - 1))], no_program)


@pytest.mark.parametrize("name", ["zstd", "lz4"])
def test_a_cut_is_found_by_the_programs_too(name: str) -> None:
    whole = EARLY + COMPRESSED[name]
    for end in {*range(len(EARLY), len(whole), 97), len(EARLY) + 5, len(whole) - 5, len(whole) - 1}:
        with pytest.raises(ValueError):
            read(whole[:end], decompress)


@pytest.mark.parametrize("name", COMPRESSED)
@pytest.mark.parametrize("garbage", [b"x", b"\xff" * 100, b"0", b"070707" + b"0" * 200, b"\x04\x22\x4d\x18frame"])
def test_trailing_garbage(name: str, garbage: bytes) -> None:
    with pytest.raises(ValueError, match="at byte"):
        read(COMPRESSED[name] + garbage, decompress)


@pytest.mark.parametrize("name", [name for name in COMPRESSED if name not in ("none", "lzma", "lz4")])
def test_a_turned_byte_in_a_compressed_archive(name: str) -> None:
    """lzma and lz4 in their old formats have no checksum: there only a broken stream or archive shows it."""
    whole = bytearray(COMPRESSED[name])
    whole[len(whole) // 2] ^= 0xFF
    with pytest.raises(ValueError):
        read(bytes(whole), decompress)


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "no /init in the 0 files"),
        (bytes(4096), "no /init"),
        (EARLY, "no /init in the 1 files"),
        (archive(("init", FILE, b""), trailer=False), "without its TRAILER!!!"),
        (
            gzip.compress(archive(("init", FILE, b""), trailer=False), mtime=0),
            "gzip archive at byte 0: .*without its TRAILER!!!",
        ),
        (gzip.compress(b"", mtime=0), "gzip archive at byte 0: there is nothing in it"),
        (gzip.compress(MAIN + b"junk", mtime=0), "gzip archive at byte 0: no cpio header at byte"),
        (EARLY + b"\0" + MAIN, "does not begin on a multiple of 4"),
        (MAIN + gzip.compress(MAIN, mtime=0)[:40], f"gzip archive at byte {len(MAIN)}: it is cut off"),
        (b"\x28\xb5\x2f\xfd", "zstd archive at byte 0: it is cut off"),
        (b"\x04\x22\x4d\x18" + bytes(20), r"no archive that the kernel knows \(04 22 4d 18"),
        (MAIN.replace(b"init\0", b"initx"), "broken name in the cpio header"),
        (MAIN.replace(b"0707010000000", b"070701000 000", 1), "broken cpio header at byte 0"),
    ],
)
def test_what_is_broken_and_where(data: bytes, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        read(data, no_program)


def test_a_failing_program_is_named_with_its_place() -> None:
    def fails(name: str, data: bytes) -> bytes:
        raise ValueError(f"{name}: Decoding error (36)")

    with pytest.raises(ValueError, match=rf"the zstd archive at byte {len(EARLY)}: zstd: Decoding error"):
        read(EARLY + COMPRESSED["zstd"], fails)


def test_a_file_with_two_names_has_its_bytes_once() -> None:
    data = member("init") + member("etc/modprobe.d/a.conf", inode=7, links=2)
    data += member("usr/lib/x", body=b"options a b=1\n", inode=7, links=2) + member("TRAILER!!!")
    assert read(data, no_program).files == {"etc/modprobe.d/a.conf": b"options a b=1\n"}


def test_links_are_followed_inside_the_image() -> None:
    image = read(
        archive(
            ("init", LINK, b"usr/lib/systemd/systemd"),
            ("etc/modprobe.d/a.conf", LINK, b"../alternatives/a"),
            ("etc/alternatives/a", LINK, b"/lib/a.conf"),
            ("usr/lib/a.conf", FILE, b"options a b=1\n"),
            ("etc/modprobe.d/hidden.conf", LINK, b"/dev/null"),
            ("etc/modprobe.d/gone.conf", LINK, b"nowhere"),
            ("etc/modprobe.d/loop.conf", LINK, b"loop.conf"),
        ),
        no_program,
    )
    assert image.files == {"etc/modprobe.d/a.conf": b"options a b=1\n", "etc/modprobe.d/hidden.conf": b""}


def test_a_later_archive_replaces_a_file() -> None:
    later = archive(("etc/modprobe.d/gpuhost.conf", FILE, b"# later\n"))
    assert read(MAIN + gzip.compress(later, mtime=0), no_program).files == {"etc/modprobe.d/gpuhost.conf": b"# later\n"}


def test_modules_of_each_release() -> None:
    names = {
        f"{TREE}/kernel/fs/ext4/ext4.ko.zst",
        f"{TREE}/modules.dep",
        "lib/modules/6.1.0-57-amd64/kernel/net/8021q.ko",
        "lib/modules/6.1.0-57-amd64/kernel/fs/nls/nls_cp437.ko",
    }
    assert modules(Image(frozenset(names), {})) == {
        RELEASE: {"ext4": f"{TREE}/kernel/fs/ext4/ext4.ko.zst"},
        "6.1.0-57-amd64": {
            "8021q": "lib/modules/6.1.0-57-amd64/kernel/net/8021q.ko",
            "nls-cp437": "lib/modules/6.1.0-57-amd64/kernel/fs/nls/nls_cp437.ko",
        },
    }


# --- modprobe's configuration


def image_with(files: dict[str, str], *names: str) -> Image:
    held = names or (f"{TREE}/updates/dkms/nvidia.ko.xz",)
    return Image(frozenset({*files, *held}), {path: text.encode() for path, text in files.items()})


WANTED = {"nvidia": {"NVreg_A": "1"}}
UVM = {"nvidia_uvm": {"x": "2"}}
UVM_FILE = f"{TREE}/updates/dkms/nvidia-uvm.ko"


@pytest.mark.parametrize(
    ("files", "wanted", "names"),
    [
        ({"etc/modprobe.d/a.conf": "options nvidia NVreg_A=1\n"}, WANTED, ()),
        ({"etc/modprobe.d/a.conf": "options nvidia NVreg_B=0 \\\n NVreg_A=1\n"}, WANTED, ()),
        ({"etc/modprobe.d/a.conf": 'options\tnvidia NVreg_A="1"\n'}, WANTED, ()),
        ({"usr/lib/modprobe.d/a.conf": "options nvidia-uvm x=2\n"}, UVM, (UVM_FILE,)),
        ({"run/modprobe.d/a.conf": "options nvidia_uvm x=2\n"}, UVM, (UVM_FILE,)),
        # the last one of a key is in force, and files come in the order of their names, whatever the folder
        ({"etc/modprobe.d/a.conf": "options nvidia NVreg_A=0 NVreg_A=1\n"}, WANTED, ()),
        (
            {
                "etc/modprobe.d/a.conf": "options nvidia NVreg_A=0\n",
                "usr/lib/modprobe.d/b.conf": "options nvidia NVreg_A=1\n",
            },
            WANTED,
            (),
        ),
        # of two files of one name the one in /etc hides the other
        (
            {
                "etc/modprobe.d/b.conf": "options nvidia NVreg_A=1\n",
                "usr/lib/modprobe.d/b.conf": "options nvidia NVreg_A=0\n",
            },
            WANTED,
            (),
        ),
        # a module that is not in the image has nothing to prove there
        ({}, WANTED, (f"{TREE}/kernel/fs/ext4/ext4.ko.xz",)),
        ({"etc/modprobe.d/a.conf": "options nvidia NVreg_A=1\n"}, WANTED, (f"{TREE}/updates/dkms/nvidia-current.ko",)),
        ({"etc/modprobe.d/a.conf": "options nvidia-current NVreg_A=1\n"}, WANTED, (f"{TREE}/x/nvidia-current.ko",)),
    ],
)
def test_options_in_force(files: dict[str, str], wanted: dict[str, dict[str, str]], names: tuple[str, ...]) -> None:
    assert modprobe_problems(image_with(files, *names), wanted) == ()


ABSENT = f"{TREE}/updates/dkms/nvidia.ko.xz is in the image, its option NVreg_A=1 is not"


@pytest.mark.parametrize(
    ("files", "command_line", "problem"),
    [
        ({}, "", ABSENT),
        ({"etc/modprobe.d/a.conf": "# options nvidia NVreg_A=1\noptions nvidia-drm NVreg_A=1\n"}, "", ABSENT),
        ({"etc/modprobe.d/a.txt": "options nvidia NVreg_A=1\n"}, "", ABSENT),
        (
            {
                "etc/modprobe.d/a.conf": "options nvidia NVreg_A=1\n",
                "run/modprobe.d/z.conf": "options nvidia NVreg_A=0\n",
            },
            "",
            "run/modprobe.d/z.conf in the image sets NVreg_A=0 for nvidia, wanted is NVreg_A=1",
        ),
        (
            {"etc/modprobe.d/a.conf": "options nvidia NVreg_A=1\n"},
            "root=/dev/sda2 nvidia.NVreg_A=0",
            "the kernel command line in the image sets NVreg_A=0 for nvidia, wanted is NVreg_A=1",
        ),
        (
            {"etc/modprobe.d/a.conf": "", "usr/lib/modprobe.d/a.conf": "options nvidia NVreg_A=1\n"},
            "",
            ABSENT,
        ),
    ],
)
def test_options_not_in_force(files: dict[str, str], command_line: str, problem: str) -> None:
    assert modprobe_problems(image_with(files), WANTED, command_line) == (problem,)


NOUVEAU = "etc/modprobe.d/x.conf"


@pytest.mark.parametrize(
    ("module", "text", "command_line", "reason"),
    [
        ("nouveau", "blacklist nouveau\n", "", f"blacklist nouveau in {NOUVEAU}"),
        ("nova_core", "blacklist nova-core\n", "", f"blacklist nova_core in {NOUVEAU}"),
        ("nouveau", "install nouveau /bin/false\n", "", f"install nouveau /bin/false in {NOUVEAU}"),
        ("nouveau", "", "quiet modprobe.blacklist=x,nouveau", "modprobe.blacklist=x,nouveau"),
        ("nova_core", "", "module_blacklist=nova_core", "module_blacklist=nova_core"),
        ("nouveau", "", "rd.driver.blacklist=nouveau", "rd.driver.blacklist=nouveau"),
        ("nova_core", "", "blacklist=nova-core", "blacklist=nova-core"),
    ],
)
def test_kept_away(module: str, text: str, command_line: str, reason: str) -> None:
    files = {NOUVEAU: text.encode()}
    answer = kept_away(module, files, command_line, present=["nouveau", "nova-core"], initramfs=True)
    assert (answer.kept, answer.reason) == (True, reason)


@pytest.mark.parametrize(
    ("text", "command_line", "modules_file", "reason"),
    [
        ("", "", "", "nothing keeps"),
        ("#blacklist nouveau\nblacklist nvidiafb\n", "", "", "nothing keeps"),
        ("install nouveau /sbin/modprobe -i nouveau\n", "", "", "nothing keeps"),
        ("alias nouveau off\n", "", "", "does not keep udev"),
        # a parameter that nouveau does not know; kmod and the kernel know no such argument
        ("", "nouveau.blacklist=1", "", "nothing keeps"),
        ("", "module_blacklist=nouveau module_blacklist=other", "", "nothing keeps"),  # the last one counts
        ("blacklist nouveau\n", "", "# mine\nnouveau modeset=1\n", "in spite of any blacklist"),
    ],
)
def test_not_kept_away(text: str, command_line: str, modules_file: str, reason: str) -> None:
    files = {NOUVEAU: text.encode(), "conf/modules": modules_file.encode()}
    answer = kept_away("nouveau", files, command_line, present=["nouveau"], initramfs=True)
    assert not answer.kept
    assert reason in answer.reason


def test_lists_on_the_command_line_want_the_modules_own_name() -> None:
    for key in ("module_blacklist", "modprobe.blacklist"):
        assert not kept_away("nova_core", {}, f"{key}=nova-core", present=["nova_core"], initramfs=False).kept


def test_what_counts_only_in_the_initramfs() -> None:
    for argument in ("rd.driver.blacklist=nouveau", "blacklist=nouveau"):
        assert not kept_away("nouveau", {}, argument, present=["nouveau"], initramfs=False).kept


def test_the_hosts_own_files_and_no_module_at_all() -> None:
    files = {"/etc/modprobe.d/x.conf": b"blacklist nouveau\n"}
    assert kept_away("nouveau", files, present={"nouveau": ""}, initramfs=False).kept
    assert kept_away("nova_drm", {}, present=["nouveau"], initramfs=False).reason == "no module nova_drm"
