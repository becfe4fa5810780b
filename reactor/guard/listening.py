"""The daemon's Unix socket: made by the guard, so that two daemons can't have it, and served by the steward.

The guard accepts nothing on it. Clients that come while there is no steward wait in the kernel's backlog.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import stat
import struct
from pathlib import Path
from typing import Final

from reactor.errors import ReactorError

_BACKLOG: Final = 128
_CREDENTIALS: Final = struct.Struct("iII")  # pid, uid, gid: unix(7)


class AnotherDaemonError(ReactorError):
    """A daemon lives on the socket already: two of them would each evict for the same pressure."""


def listen(path: Path) -> socket.socket:
    """Return a socket that listens at `path`, for this user only; a dead daemon's socket is replaced.

    Raises AnotherDaemonError where a daemon answers, OSError (with the path) where none can listen.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    _remove_dead(path)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    # bind(2) makes the file with the umask's mode: a chmod afterwards would leave a gap to connect in.
    # The umask is the process's; nothing else makes files this early.
    umask = os.umask(0o177)
    try:
        listener.bind(str(path))
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        error.filename = str(path)
        raise
    finally:
        os.umask(umask)
    return listener


def remove(path: Path) -> None:
    """Remove the socket's file at the end; one that is gone already is no problem."""
    with contextlib.suppress(OSError):
        path.unlink()


def _remove_dead(path: Path) -> None:
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise OSError(errno.EEXIST, "there is something that is no socket", str(path))
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink(missing_ok=True)
            return
        except OSError as error:
            # A full backlog, a timeout: a daemon lives there.
            raise AnotherDaemonError(f"{path}: {error.strerror or error}") from error
        if not _lives(_listener_pid(probe)):  # its steward has not noticed yet, or is stopped
            path.unlink(missing_ok=True)
            return
    raise AnotherDaemonError(f"{path}: a daemon answers there; give this one another reactor.socket")


def _listener_pid(connection: socket.socket) -> int:
    """Return which process called listen(2) for this connection; 0 where it is in no namespace of ours."""
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid: int = _CREDENTIALS.unpack(raw)[0]
    return pid


def _lives(pid: int) -> bool:
    """Return whether a process may be alive: one that can't be looked at is taken for it."""
    if pid <= 0:
        return True
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return False
    except OSError:
        return True
    return text.rpartition(")")[2].split()[:1] not in (["Z"], ["X"])
