"""The ioctls by number and layout, and every kind of answer to them, good, bad and none."""

import errno

import pytest

from gpu_checks import nvidia_ioctl as nv


def answering(reply):
    def ioctl(_file, _request, buffer):
        buffer[:] = reply

    return ioctl


def refusing(number):
    def ioctl(_file, _request, _buffer):
        raise OSError(number, "refused")

    return ioctl


def test_requests_are_those_of_nvidias_headers():
    # Each number as strace shows it for a CUDA program on x86-64.
    assert (nv.CHECK_VERSION_STR, nv.WAIT_OPEN_COMPLETE, nv.UVM_INITIALIZE) == (0xC04846D2, 0xC00846DA, 0x30000001)
    assert (nv.VERSION_LAYOUT.size, nv.OPEN_LAYOUT.size, nv.UVM_LAYOUT.size) == (72, 8, 16)


def test_version_is_asked_with_the_query_command():
    sent = []

    def ioctl(file, request, buffer):
        sent.append((file, request, nv.VERSION_LAYOUT.unpack(buffer)[:2]))
        buffer[:] = nv.VERSION_LAYOUT.pack(0, 1, b"580.159.04")

    query = nv.ask_version(7, ioctl)
    assert sent == [(7, 0xC04846D2, (0x32, 0))]
    assert (query.good, query.driver_version) == (True, "580.159.04")


def test_old_driver_recognizes_without_a_version():
    query = nv.ask_version(7, answering(nv.VERSION_LAYOUT.pack(0x32, 1, b"")))
    assert (query.good, query.driver_version) == (True, None)


def test_version_not_recognized_is_bad():
    assert nv.ask_version(7, answering(nv.VERSION_LAYOUT.pack(0x32, 0, b"580"))).good is False


@pytest.mark.parametrize("ask", [nv.ask_version, nv.ask_uvm])
@pytest.mark.parametrize("number", [errno.ENOTTY, errno.EINVAL, errno.EIO])
def test_a_refused_question_is_bad_and_names_its_errno(ask, number):
    query = ask(7, refusing(number))
    assert (query.good, query.errno_name) == (False, errno.errorcode[number])


@pytest.mark.parametrize(("code", "adapter", "good"), [(0, 0, True), (-5, 0, False), (0, 0x25, False), (-1, 0, False)])
def test_gpu_answer(code, adapter, good):
    assert nv.ask_gpu(7, answering(nv.OPEN_LAYOUT.pack(code, adapter))).good is good


def test_a_gpu_driver_that_does_not_write_its_answer_is_not_good():
    assert nv.ask_gpu(7, lambda *_: None).good is False


@pytest.mark.parametrize(
    ("number", "good"), [(errno.EINVAL, None), (errno.ENOTTY, None), (errno.EIO, False), (errno.ENODEV, False)]
)
def test_gpu_question_that_an_old_driver_does_not_know_proves_nothing(number, good):
    assert nv.ask_gpu(7, refusing(number)).good is good


@pytest.mark.parametrize(("status", "good"), [(0, True), (0x56, False)])
def test_uvm_answer(status, good):
    query = nv.ask_uvm(7, answering(nv.UVM_LAYOUT.pack(0, status)))
    assert (query.good, query.answer) == (good, f"rmStatus {status:#x}")


def test_uvm_that_does_not_write_its_status_is_not_good():
    assert nv.ask_uvm(7, lambda *_: None).good is False


def test_the_real_ioctl_reports_what_the_kernel_says():
    with open("/dev/null", "rb") as null:
        assert nv.ask_version(null.fileno()).errno_name == "ENOTTY"
