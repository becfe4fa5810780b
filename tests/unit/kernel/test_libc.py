from __future__ import annotations

import ast
import errno
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from reactor.kernel import _libc_build, libc
from reactor.kernel.filesystem import read_mounts


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


def test_tmpfs_lies_in_memory_and_a_disk_does_not(tmp_path: Path) -> None:
    mounts = {mount.mount_point: mount.kind for mount in read_mounts()}
    tmpfs = [point for point, kind in mounts.items() if kind == "tmpfs" and os.access(point, os.X_OK)]
    others = [point for point, kind in mounts.items() if kind in {"proc", "sysfs", "ext4", "xfs"}]
    assert all(libc.lies_in_memory(point) for point in tmpfs)
    assert not any(libc.lies_in_memory(point) for point in others)
    with pytest.raises(FileNotFoundError, match="nowhere"):
        libc.lies_in_memory(tmp_path / "nowhere")


def spawned(command: list[str], **options: Any) -> bytes:
    """Return what a child that is started this way writes to its standard input, which is a pipe."""
    read_fd, write_fd = os.pipe()
    pid = libc.spawn(command, {"X": "1 2"}, **{"stdin_fd": write_fd, "inherited_fds": (), **options})
    os.close(write_fd)
    with os.fdopen(read_fd, "rb") as file:
        said = file.read()
    assert 0 == os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return said


def test_child_has_the_arguments_the_environment_and_the_descriptors_that_it_is_given() -> None:
    kept, other = os.pipe()
    script = """
import os, sys
opened = [os.readlink(f"/proc/self/fd/{fd}") if os.path.exists(f"/proc/self/fd/{fd}") else ""
          for fd in (1, *sys.argv[2:])]
os.write(0, repr((sys.argv[1], os.environ["X"], *opened)).encode())
"""
    try:
        pipe = os.readlink(f"/proc/self/fd/{kept}")
        command = [sys.executable, "-S", "-c", script, "o ne", str(kept), str(other)]
        said = spawned(command, inherited_fds=(kept,))
    finally:
        os.close(kept)
        os.close(other)
    assert ("o ne", "1 2", "/dev/null", pipe, "") == ast.literal_eval(said.decode())


def test_program_that_is_not_there_is_an_error_with_its_path() -> None:
    with pytest.raises(FileNotFoundError, match="/nonexistent/program"):
        spawned(["/nonexistent/program"])
