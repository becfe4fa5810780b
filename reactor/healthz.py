"""`python3 -I -m reactor.healthz [--ready] [SOCKET]`: whether the daemon is alive, as an exit status.

    0   passes go on, or the daemon stands by until another one that guards the node has ended
    1   neither: one line on standard error says why
    2   the arguments are wrong

With --ready it is also 1 if the daemon was started with a configuration that is refused: it guards with the
last good one, and an update of the DaemonSet goes no further.

SOCKET is /run/reactor/reactor.sock without an argument. Kubernetes asks this every few seconds as an exec
probe: a TCP port can be taken by any process of the host's network, this socket by none.

It costs the start of an interpreter and little more, so it imports nothing that is not there already, and not
`socket`, which takes as long as all else.
"""

import _socket
import fcntl
import os
import sys

_SOCKET = "/run/reactor/reactor.sock"
_SECONDS = 4.0  # less than the probes' timeoutSeconds
_MOST_BYTES = 4096


def stand_by_path(socket_path: str) -> str:
    """Return the file that a daemon which stands by holds a lock of, beside the socket that it will have."""
    return f"{socket_path}.stand-by"


def problem(socket_path: str, *, or_not_ready: bool = False) -> str | None:
    """Return why the daemon is not alive, or not ready; None where it is."""
    try:
        answer = _asked(socket_path)
    except OSError as error:
        if isinstance(error, (FileNotFoundError, ConnectionRefusedError)):
            refused = refused_standing_by(socket_path)
            if refused is not None:
                return f"{socket_path}: {refused:.1000}" if or_not_ready and refused else None
        return f"{socket_path}: {error.strerror or error}"
    if b'"alive": true' not in answer:
        return f"{socket_path}: answered {answer!r:.200}"
    if or_not_ready and b'"not_ready_because": null' not in answer:
        return f"{socket_path}: {answer.decode(errors='backslashreplace').strip():.1000}"
    return None


def _asked(socket_path: str) -> bytes:
    answer = b""
    connection = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    try:
        connection.settimeout(_SECONDS)
        connection.connect(socket_path)
        connection.sendall(b'{"command": "healthz"}\n')
        while len(answer) < _MOST_BYTES and (more := connection.recv(_MOST_BYTES)):
            answer += more
    finally:
        connection.close()
    return answer


def refused_standing_by(socket_path: str) -> str | None:
    """Return why the daemon that stands by is not ready, "" if it is; None: no daemon stands by."""
    try:
        fd = os.open(stand_by_path(socket_path), os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return os.read(fd, _MOST_BYTES).decode(errors="backslashreplace")
    except OSError:
        return None
    finally:
        os.close(fd)
    return None


def main(arguments: list[str]) -> int:
    """Return the exit status."""
    if arguments in (["--help"], ["-h"]):
        print(__doc__.strip())
        return 0
    or_not_ready = arguments[:1] == ["--ready"]
    sockets = arguments[1:] if or_not_ready else arguments
    if len(sockets) > 1 or any(one.startswith("-") for one in sockets):
        print("usage: python3 -I -m reactor.healthz [--ready] [SOCKET]", file=sys.stderr)
        return 2
    found = problem(*sockets or [_SOCKET], or_not_ready=or_not_ready)
    if found is not None:
        print(f"reactor: {found}", file=sys.stderr)
    return 0 if found is None else 1


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
