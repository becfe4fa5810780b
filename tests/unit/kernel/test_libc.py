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
