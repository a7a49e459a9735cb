"""QEMU: accelerator, command line, start, and the monitor."""

import contextlib
import fcntl
import json
import os
import select
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from .command import run, say, tail
from .errors import LabError
from .image_disk import OVMF_CODE, ovmf
from .machine import Machine
from .paths import state_root

QEMU = "qemu-system-x86_64"
# KVM_CREATE_VM of <linux/kvm.h>: _IO(0xAE, 0x01).
KVM_CREATE_VM = 0xAE01
# With real KVM the firmware speaks within 2 s; where KVM is nested and broken it never does.
KVM_PROBE_S = 15.0
FIRMWARE_SPEAKS = b"BdsDxe"
# 6.12 once panicked under `-cpu max` right after cmpxchg16b; this model booted always.
EMULATED_CPU = "Nehalem,-cx16"
MONITOR_LIMIT_S = 10.0
# A killed process is gone at once; the rest is for a loaded machine.
EXIT_LIMIT_S = 20.0


def accelerator() -> list[str]:
    """KVM where a guest really runs in it, else software emulation."""
    if _kvm_works():
        return ["-accel", "kvm", "-cpu", "host"]
    return ["-accel", "tcg,thread=multi", "-cpu", EMULATED_CPU]


def _kvm_works() -> bool:
    """Ask once per boot of the building machine: a /dev/kvm that cannot run a guest exists."""
    boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    answer = state_root() / f"kvm-{boot_id}"
    if not answer.exists():
        answer.parent.mkdir(parents=True, exist_ok=True)
        works = _kvm_creates() and _kvm_runs_firmware()
        say(f"KVM works: {'yes' if works else 'no, software emulation it is'}")
        answer.write_text("yes" if works else "no")
    return answer.read_text() == "yes"


def _kvm_creates() -> bool:
    try:
        device = os.open("/dev/kvm", os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        os.close(fcntl.ioctl(device, KVM_CREATE_VM, 0))
    except OSError:
        return False
    finally:
        os.close(device)
    return True


def _kvm_runs_firmware() -> bool:
    argv = [
        *(QEMU, "-accel", "kvm", "-cpu", "host", "-machine", "q35", "-m", "256"),
        *("-display", "none", "-vga", "none", "-nic", "none", "-serial", "stdio", "-monitor", "none"),
        *("-drive", f"if=pflash,format=raw,unit=0,readonly=on,file={ovmf(OVMF_CODE)}"),
    ]
    child = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    with child:
        assert child.stdout is not None
        seen, deadline = b"", time.monotonic() + KVM_PROBE_S
        while FIRMWARE_SPEAKS not in seen and time.monotonic() < deadline:
            ready, _, _ = select.select([child.stdout], [], [], 0.5)
            piece = os.read(child.stdout.fileno(), 4096) if ready else b""
            if ready and not piece:
                break
            seen += piece
        child.kill()
    return FIRMWARE_SPEAKS in seen


def command_line(machine: Machine) -> list[str]:
    """The machine's whole QEMU command line."""
    settings = machine.settings
    return [
        *(QEMU, "-name", f"gpuhost-lab-{machine.name}", *accelerator()),
        *("-machine", "q35", "-smp", "2", "-m", str(settings.memory_mib)),
        *("-display", "none", "-vga", "none", "-nodefaults", "-rtc", "base=utc"),
        *("-drive", f"if=pflash,format=raw,unit=0,readonly=on,file={ovmf(OVMF_CODE)}"),
        *("-drive", f"if=pflash,format=qcow2,unit=1,file={machine.variables}"),
        # the overlay is thrown away: host crashes do not matter, guest crashes are kept
        *("-drive", f"if=none,id=root,format=qcow2,cache=unsafe,file={machine.disk}"),
        *("-device", "virtio-blk-pci,drive=root,bootindex=1"),
        *("-nic", f"user,model=virtio-net-pci,hostfwd=tcp:127.0.0.1:{settings.ssh_port}-:22"),
        *("-device", "virtio-rng-pci"),
        *("-chardev", f"file,id=serial,append=on,path={machine.serial_log}", "-serial", "chardev:serial"),
        # relative, because a socket's path has 107 bytes at most
        *("-qmp", "unix:qmp.sock,server=on,wait=off", "-pidfile", "qemu.pid"),
    ]


def start(machine: Machine) -> None:
    """Start QEMU as a process of its own that outlives this one."""
    if machine.pid() is not None:
        raise LabError(f"{machine.name} runs already (process {machine.pid()})")
    machine.pid_file.unlink(missing_ok=True)
    errors = machine.folder / "qemu.log"
    with errors.open("ab") as out:
        child = subprocess.Popen(
            command_line(machine),
            cwd=machine.folder,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    deadline = time.monotonic() + MONITOR_LIMIT_S
    while machine.pid() is None:
        if child.poll() is not None or time.monotonic() > deadline:
            raise LabError(f"{machine.name}: QEMU did not start\n{tail(errors)}")
        time.sleep(0.1)


def wait_for_exit(machine: Machine, limit_s: float, number: int | None = None) -> bool:
    """True when QEMU has ended within the limit; ``number``: a signal to send it first.

    Ended is the whole process, with its locks on the disks: it has no name and no memory any more some time before.
    """
    pid = machine.pid()
    if pid is None:
        return True
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        if number is not None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(process, number)
        ended = bool(select.select([process], [], [], limit_s)[0])
    finally:
        os.close(process)
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)
    return ended


def cut_power(machine: Machine) -> None:
    """SIGKILL: nothing of the guest's memory reaches the disk any more."""
    if not wait_for_exit(machine, EXIT_LIMIT_S, signal.SIGKILL):
        raise LabError(f"{machine.name}: process {machine.pid()} is still there {EXIT_LIMIT_S:.0f} s after SIGKILL")
    machine.pid_file.unlink(missing_ok=True)


def monitor(machine: Machine, execute: str) -> object:
    """Send one QMP command and give back its answer."""
    folder = os.open(machine.folder, os.O_PATH | os.O_DIRECTORY)
    try:
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(MONITOR_LIMIT_S)
            client.connect(f"/proc/self/fd/{folder}/qmp.sock")
            with client.makefile("rw", encoding="utf-8") as stream:
                stream.readline()
                answer: object = None
                for name in ("qmp_capabilities", execute):
                    stream.write(json.dumps({"execute": name}) + "\n")
                    stream.flush()
                    answer = _answer(stream.readline, execute)
                return answer
    except OSError as error:
        raise LabError(f"{machine.name}: monitor does not answer: {error}") from error
    finally:
        os.close(folder)


def _answer(readline: Callable[[], str], execute: str) -> object:
    """Skip events until the command's own answer."""
    while line := readline():
        message = json.loads(line)
        if "error" in message:
            raise LabError(f"monitor refused {execute}: {message['error']}")
        if "return" in message:
            return message["return"]
    raise LabError(f"monitor closed before it answered {execute}")


def create_overlay(base: Path, overlay: Path) -> None:
    """Create an empty qcow2 over another one."""
    run(["qemu-img", "create", "-q", "-f", "qcow2", "-F", "qcow2", "-b", str(base), str(overlay)], timeout_s=30)
