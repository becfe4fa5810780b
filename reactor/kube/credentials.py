"""Credentials that stay good: what a file holds is read again, since tokens and certificates are renewed.

A pod's token lives for about an hour and is replaced in its file at 80 % of that; client-go reads it once a
minute, and so does this. Everything here that reads runs in a worker thread.
"""

from __future__ import annotations

import json
import os
import ssl
import subprocess
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import Any, Final, Protocol
from urllib.parse import urlsplit

import trio

from reactor.config.decode import decode
from reactor.config.scalars import Timestamp
from reactor.errors import ConfigError, Problem
from reactor.kube.errors import UnauthorizedError
from reactor.kube.kubeconfig import Access, Exec, read_access
from reactor.threads import in_thread

_READ_AGAIN_SECONDS: Final = 60.0
_READING_SECONDS: Final = 30.0
_EXEC_SECONDS: Final = 25.0
_EXEC_EARLY_SECONDS: Final = 60.0  # renewed this long before it ends
_LARGEST_TOKEN_BYTES: Final = 1 << 16

InThread = Callable[[Callable[[], "Session"]], Awaitable["Session"]]
_Looks = tuple[tuple[str, int, int, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """What a request needs. `tls` is the same object for as long as nothing in it changed."""

    server: str
    tls: ssl.SSLContext | None
    server_name: str | None = None
    token: str | None = field(default=None, repr=False)


class Sessions(Protocol):
    """Gives the session to use now."""

    async def session(self) -> Session:
        """Return it; raise UnauthorizedError where there is none to be had."""

    def distrust(self) -> None:
        """Have everything read again before the next request: the server did not take what it was shown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _ExecStatus:
    token: str | None = None
    expiration_timestamp: Timestamp | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _ExecCredential:
    status: _ExecStatus = field(default_factory=_ExecStatus)


async def _in_thread(read: Callable[[], Session]) -> Session:
    return await in_thread(read, abandon_on_cancel=True)


class Credentials:
    """The session that a way in gives now; `read_way_in` is asked again when its own file has changed.

    A reading that fails leaves what was read before in force; `problem` says why.
    """

    def __init__(
        self,
        read_way_in: Callable[[], Access],
        *,
        watched: str | None = None,
        in_thread: InThread = _in_thread,
        clock_seconds: Callable[[], float] = time.monotonic,
    ) -> None:
        self._read_way_in = read_way_in
        self._watched = watched
        self._in_thread = in_thread
        self._clock_seconds = clock_seconds
        self._turn = trio.Lock()
        self._session: Session | None = None
        self._read_at_seconds = 0.0
        self._distrusted = False
        self._access: Access | None = None
        self._access_looks: _Looks = ()
        self._tls: ssl.SSLContext | None = None
        self._tls_looks: _Looks | None = None
        self._exec_token: tuple[str, float | None] | None = None
        self.problem: str | None = None

    def distrust(self) -> None:
        """Have everything read again before the next request."""
        self._distrusted = True

    async def session(self) -> Session:
        """Return the session to use now. Raises UnauthorizedError where there is none to be had."""
        async with self._turn:
            age_seconds = self._clock_seconds() - self._read_at_seconds
            if self._session is not None and not self._distrusted and age_seconds < _READ_AGAIN_SECONDS:
                return self._session
            try:
                with trio.fail_after(_READING_SECONDS):
                    self._session = await self._in_thread(self._read)
            except (OSError, ValueError, ConfigError, trio.TooSlowError) as error:
                self.problem = _line(error)
                if self._session is None:
                    raise UnauthorizedError("credentials", self.problem) from error
            else:
                self.problem = None
            self._distrusted = False
            self._read_at_seconds = self._clock_seconds()
            return self._session

    def _read(self) -> Session:
        looks = _looks([self._watched] if self._watched else [])
        access = self._access
        if access is None or looks != self._access_looks:
            access = self._access = self._read_way_in()
            self._access_looks = looks
            self._tls_looks = None
        self._renew_tls(access)
        token = self._token(access)
        if token is not None and self._tls is None and not _is_this_machine(access.server):
            accepted = "https, or this machine: a token is sent to no other in clear"
            raise ConfigError([Problem(path="server", got=repr(access.server), accepted=accepted)])
        return Session(server=access.server, tls=self._tls, server_name=access.server_name, token=token)

    def _renew_tls(self, access: Access) -> None:
        looks = _looks(access.paths)
        if looks != self._tls_looks:
            self._tls = tls_context(access)
            self._tls_looks = looks

    def _token(self, access: Access) -> str | None:
        if access.exec is not None:
            return self._token_of_command(access.exec)
        if access.token_path is None:
            return access.token
        with open(access.token_path, "rb") as file:
            token = file.read(_LARGEST_TOKEN_BYTES).decode("ascii").strip()
        if not token:
            raise ConfigError([Problem(path=access.token_path, got="an empty file", accepted="a token")])
        return token

    def _token_of_command(self, command: Exec) -> str:
        kept = self._exec_token
        if kept is not None and not self._distrusted:
            token, until = kept
            if until is not None and time.time() < until - _EXEC_EARLY_SECONDS:
                return token
        self._exec_token = run_exec(command)
        return self._exec_token[0]


def credentials_of(
    kubeconfig_path: str | None,
    *,
    environment: Mapping[str, str] | None = None,
    in_thread: InThread = _in_thread,
) -> Credentials:
    """Return the credentials of a kubeconfig, or of the pod that we run in."""
    return Credentials(
        lambda: read_access(kubeconfig_path, environment), watched=kubeconfig_path, in_thread=in_thread
    )


def tls_context(access: Access) -> ssl.SSLContext | None:
    """Return what checks the server and shows our certificate; None for plain HTTP.

    Raises OSError (ssl.SSLError among them) naming the file that is wrong.
    """
    if not access.server.startswith("https://"):
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.set_alpn_protocols(["http/1.1"])
    if not access.verified:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    elif access.authority_pem is None and access.authority_path is None:
        context.load_default_certs()
    else:
        _named(access.authority_path, lambda: _load_authority(context, access))
    certificate = access.certificate_pem or access.certificate_path
    if certificate is not None:
        _named(access.certificate_path, lambda: _load_certificate(context, access))
    return context


def _load_authority(context: ssl.SSLContext, access: Access) -> None:
    pem = None if access.authority_pem is None else access.authority_pem.decode("ascii")
    context.load_verify_locations(cafile=None if pem else access.authority_path, cadata=pem)


def _load_certificate(context: ssl.SSLContext, access: Access) -> None:
    """Show the server a certificate. OpenSSL reads files only: text goes through one in memory."""
    opened: list[int] = []
    try:
        names = [
            name if pem is None else _memory_file(pem, opened)
            for name, pem in (
                (access.certificate_path, access.certificate_pem),
                (access.key_path, access.key_pem),
            )
        ]
        context.load_cert_chain(names[0] or "", names[1])
    finally:
        for fd in opened:
            os.close(fd)


def _memory_file(pem: bytes, opened: list[int]) -> str:
    fd = os.memfd_create("reactor-tls", os.MFD_CLOEXEC)
    opened.append(fd)
    os.write(fd, pem)
    return f"/proc/self/fd/{fd}"


def _named(path: str | None, call: Callable[[], None]) -> None:
    try:
        call()
    except OSError as error:
        error.filename = error.filename or path or "the kubeconfig's own certificates"
        raise


def run_exec(command: Exec) -> tuple[str, float | None]:
    """Return the token that the command prints, and until when it is good (seconds since 1970).

    Raises ConfigError, OSError, subprocess errors as OSError. Source: client.authentication.k8s.io.
    """
    asked = {"apiVersion": command.api_version, "kind": "ExecCredential", "spec": {"interactive": False}}
    # In a child of ours it leads to our modules, and a command in Python would load them as its own.
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment = {**inherited, **command.env, "KUBERNETES_EXEC_INFO": json.dumps(asked)}
    try:
        ended = subprocess.run(
            [command.command, *command.args],
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=True,
            timeout=_EXEC_SECONDS,
        )
        credential = decode(json.loads(ended.stdout), _ExecCredential, root=command.command)
    except (subprocess.SubprocessError, ValueError) as error:
        got = getattr(error, "stderr", None) or str(error)
        text = got.decode(errors="replace") if isinstance(got, bytes) else got
        raise ConfigError(
            [
                Problem(
                    path=command.command, got=text.strip()[:200], accepted="an ExecCredential on its output"
                )
            ]
        ) from error
    if not credential.status.token:
        raise ConfigError(
            [
                Problem(
                    path=f"{command.command}: status.token",
                    got="nothing",
                    accepted="a token; certificates from a command are not taken",
                )
            ]
        )
    return credential.status.token, credential.status.expiration_timestamp


def _is_this_machine(server: str) -> bool:
    try:
        host = urlsplit(server).hostname or ""
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def _looks(paths: Iterable[str]) -> _Looks:
    """Return what changes when a file does: links are followed, since renewals replace what they lead to."""
    found = []
    for path in paths:
        stat = os.stat(path)
        found.append((path, stat.st_ino, stat.st_mtime_ns, stat.st_size))
    return tuple(found)


def _line(error: Any) -> str:
    if isinstance(error, trio.TooSlowError):
        return f"not read within {_READING_SECONDS:g} s"
    if isinstance(error, OSError) and error.filename:
        return f"{error.filename}: {error.strerror or error}"
    return " ".join(str(error).split())
