from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from reactor.kernel import _libc_build, libc


def test_generated_declarations_are_those_that_are_declared(tmp_path: Path) -> None:
    """`python -m reactor.kernel._libc_build` brings the generated module up to date."""
    _libc_build.generate(tmp_path / "generated.py")
    assert (tmp_path / "generated.py").read_text() == _libc_build.GENERATED.read_text()


def test_refused_call_raises_an_oserror_with_its_errno_and_name() -> None:
    with pytest.raises(OSError, match="process_mrelease") as caught:
        libc.process_mrelease(-1)
    assert errno.EBADF == caught.value.errno


def test_process_that_was_not_killed_is_not_released() -> None:
    pidfd = os.pidfd_open(os.getpid())
    try:
        with pytest.raises(OSError, match="process_mrelease") as caught:
            libc.process_mrelease(pidfd)
    finally:
        os.close(pidfd)
    assert caught.value.errno in {errno.EINVAL, errno.ENOSYS}


def test_unknown_bpf_command_is_refused() -> None:
    with pytest.raises(OSError, match=r"bpf\(command 9999\)"):
        libc.bpf(9999, b"\0" * 32)


def test_locking_with_unknown_flags_is_refused() -> None:
    with pytest.raises(OSError, match="mlockall") as caught:
        libc.mlockall(1 << 20)
    assert errno.EINVAL == caught.value.errno
    libc.munlockall()


_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY


def test_a_path_through_a_symlink_is_refused_with_the_path_and_one_without_is_opened(tmp_path: Path) -> None:
    (tmp_path / "real/inner").mkdir(parents=True)
    (tmp_path / "link").symlink_to("real")
    fd = libc.openat2(f"{tmp_path}/real/inner", _DIRECTORY, libc.RESOLVE_NO_SYMLINKS)
    try:
        assert os.path.samestat(os.fstat(fd), os.stat(tmp_path / "real/inner"))
        assert not os.get_inheritable(fd)
    finally:
        os.close(fd)
    with pytest.raises(OSError, match="link/inner") as caught:
        libc.openat2(f"{tmp_path}/link/inner", _DIRECTORY, libc.RESOLVE_NO_SYMLINKS)
    assert errno.ELOOP == caught.value.errno


def test_a_path_that_leaves_its_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    at = os.open(tmp_path / "a", _DIRECTORY)
    try:
        with pytest.raises(OSError, match=r"\.\.") as caught:
            libc.openat2("..", _DIRECTORY, libc.RESOLVE_BENEATH, dir_fd=at)
    finally:
        os.close(at)
    assert errno.EXDEV == caught.value.errno


def test_a_path_with_a_nul_or_of_odd_bytes_is_taken_for_what_it_is(tmp_path: Path) -> None:
    odd = os.fsencode(tmp_path) + b"/\xff\xfe"
    os.mkdir(odd)
    os.close(libc.openat2(odd, _DIRECTORY, libc.RESOLVE_NO_SYMLINKS))
    with pytest.raises(OSError, match="NUL") as caught:
        libc.openat2(f"{tmp_path}\0x", _DIRECTORY, 0)
    assert errno.EINVAL == caught.value.errno
