"""Credentials that stay good: what a file holds is read again, since tokens and certificates are renewed.

A pod's token lives for about an hour and is replaced in its file at 80 % of that; client-go reads it once a
minute, and so does this. Everything here that reads runs in a worker thread.
"""

from __future__ import annotations

import base64
import binascii
import json
import os
import ssl
import subprocess
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar
from urllib.parse import urlsplit

import trio

from reactor.config.decode import decode
from reactor.config.documents import LARGEST_OF_PEOPLE, ONLY_OURS, exposed_because, load_document
from reactor.config.scalars import Timestamp
from reactor.errors import ConfigError, Problem
from reactor.kube.errors import UnauthorizedError
from reactor.plain import read_with_status
from reactor.threads import in_thread

SERVICE_ACCOUNT_DIRECTORY: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_LARGEST_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Exec:
    """A command that prints an ExecCredential; `env` is added to the environment."""

    command: str
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    api_version: str = "client.authentication.k8s.io/v1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """Where an API server is and how to be let in.

    Keys and certificates are PEM, given (`*_pem`) or in a file (`*_path`); files change when what is in
    them is renewed, and are read again. `authority` None is the system's.
    """

    server: str
    verified: bool = True
    server_name: str | None = None
    authority_pem: bytes | None = None
    authority_path: str | None = None
    certificate_pem: bytes | None = None
    certificate_path: str | None = None
    key_pem: bytes | None = None
    key_path: str | None = None
    token: str | None = None
    token_path: str | None = None
    exec: Exec | None = None

    @property
    def paths(self) -> tuple[str, ...]:
        """Return the files that TLS is made from."""
        paths = (self.authority_path, self.certificate_path, self.key_path)
        return tuple(path for path in paths if path is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cluster:
    server: str
    tls_server_name: str | None = field(default=None, metadata={"key": "tls-server-name"})
    insecure: bool = field(default=False, metadata={"key": "insecure-skip-tls-verify"})
    authority: str | None = field(default=None, metadata={"key": "certificate-authority"})
    authority_data: str | None = field(default=None, metadata={"key": "certificate-authority-data"})
    proxy_url: str | None = field(default=None, metadata={"key": "proxy-url"})


@dataclass(frozen=True, slots=True, kw_only=True)
class _Variable:
    name: str
    value: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Exec:
    command: str
    api_version: str = "client.authentication.k8s.io/v1"
    args: tuple[str, ...] = ()
    env: tuple[_Variable, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _User:
    certificate: str | None = field(default=None, metadata={"key": "client-certificate"})
    certificate_data: str | None = field(default=None, metadata={"key": "client-certificate-data"})
    key: str | None = field(default=None, metadata={"key": "client-key"})
    key_data: str | None = field(default=None, metadata={"key": "client-key-data"})
    token: str | None = None
    token_file: str | None = None
    exec: _Exec | None = None
    username: str | None = None
    auth_provider: Mapping[str, str] | None = field(default=None, metadata={"key": "auth-provider"})


@dataclass(frozen=True, slots=True, kw_only=True)
class _Context:
    cluster: str
    user: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class _NamedCluster:
    name: str
    cluster: _Cluster


@dataclass(frozen=True, slots=True, kw_only=True)
class _NamedUser:
    name: str
    user: _User = field(default_factory=_User)


@dataclass(frozen=True, slots=True, kw_only=True)
class _NamedContext:
    name: str
    context: _Context


@dataclass(frozen=True, slots=True, kw_only=True)
class _Document:
    current_context: str = field(default="", metadata={"key": "current-context"})
    clusters: tuple[_NamedCluster, ...] = ()
    users: tuple[_NamedUser, ...] = ()
    contexts: tuple[_NamedContext, ...] = ()


class _Named(Protocol):
    @property
    def name(self) -> str:
        """What others refer to it by."""


_Found = TypeVar("_Found", bound=_Named)


def read_access(kubeconfig_path: str | None, environment: Mapping[str, str] | None = None) -> Access:
    """Return the way in that a kubeconfig's file, or without one the pod that we run in, gives.

    Raises ConfigError. Reads files: for a worker thread.
    """
    if kubeconfig_path is None:
        return in_cluster_access(os.environ if environment is None else environment)
    path = Path(kubeconfig_path)
    try:
        content, found = read_with_status(path, _LARGEST_BYTES)
        text = content.decode()
    except (OSError, UnicodeDecodeError) as error:
        got = error.strerror if isinstance(error, OSError) else "no UTF-8"
        raise ConfigError(
            [Problem(path=kubeconfig_path, got=str(got), accepted="a readable kubeconfig")]
        ) from error
    access = access_from_kubeconfig(text, path)
    if access.exec is not None:
        _check_exposure(path, found, text)
    return access


def _check_exposure(path: Path, found: os.stat_result, text: str) -> None:
    """Raise ConfigError where others could change the command that a kubeconfig has run."""
    try:
        exposed = exposed_because(path, found)
    except OSError as error:
        exposed = f"{error.filename}: {error.strerror}"
    if exposed is None:
        return
    document = decode(load_document(text, str(path), most_bytes=LARGEST_OF_PEOPLE), _Document)
    user = _one(document.contexts, document.current_context, "").context.user
    raise ConfigError([Problem(path=f"{path}.users[{user}].user.exec", got=exposed, accepted=ONLY_OURS)])


def in_cluster_access(environment: Mapping[str, str], directory: Path = SERVICE_ACCOUNT_DIRECTORY) -> Access:
    """Return the way in that a pod is given. Raises ConfigError where we run in none."""
    host, port = environment.get("KUBERNETES_SERVICE_HOST"), environment.get("KUBERNETES_SERVICE_PORT")
    token_path = directory / "token"
    if not host or not port or not token_path.exists():
        missing = f"{token_path}" if host and port else "KUBERNETES_SERVICE_HOST and _PORT"
        raise ConfigError(
            [
                Problem(
                    path="reactor.kubernetes.kubeconfig",
                    got=f"none, and no credentials of a pod either ({missing} missing)",
                    accepted="a kubeconfig's path, or a pod with a service account",
                )
            ]
        )
    bracketed = f"[{host}]" if ":" in host else host
    return Access(
        server=f"https://{bracketed}:{port}",
        authority_path=str(directory / "ca.crt"),
        token_path=str(token_path),
    )


def access_from_kubeconfig(text: str, path: Path) -> Access:
    """Return the way in that the current context names. Raises ConfigError with paths below `path`."""
    loaded = load_document(text, str(path), most_bytes=LARGEST_OF_PEOPLE)
    document = decode(loaded or {}, _Document, root=str(path))
    context = _one(document.contexts, document.current_context, f"{path}.current-context").context
    cluster = _one(document.clusters, context.cluster, f"{path}.contexts[].context.cluster").cluster
    user = (
        _one(document.users, context.user, f"{path}.contexts[].context.user").user
        if context.user
        else _User()
    )
    problems = [*_cluster_problems(cluster, context.cluster, path), *_user_problems(user, context.user, path)]
    if problems:
        raise ConfigError(problems)
    where = f"{path}.users[{context.user}].user"
    return Access(
        server=cluster.server.rstrip("/"),
        verified=not cluster.insecure,
        server_name=cluster.tls_server_name,
        authority_pem=_decoded(
            cluster.authority_data, f"{path}.clusters[{context.cluster}].cluster.certificate-authority-data"
        ),
        authority_path=_beside(path, cluster.authority),
        certificate_pem=_decoded(user.certificate_data, f"{where}.client-certificate-data"),
        certificate_path=_beside(path, user.certificate),
        key_pem=_decoded(user.key_data, f"{where}.client-key-data"),
        key_path=_beside(path, user.key),
        token=user.token,
        token_path=_beside(path, user.token_file),
        exec=None
        if user.exec is None
        else Exec(
            command=user.exec.command,
            args=user.exec.args,
            env={variable.name: variable.value for variable in user.exec.env},
            api_version=user.exec.api_version,
        ),
    )


def _cluster_problems(cluster: _Cluster, name: str, path: Path) -> Iterable[Problem]:
    where = f"{path}.clusters[{name}].cluster"
    scheme, separator, tail = cluster.server.partition("://")
    if not separator or scheme not in {"https", "http"} or not tail or any(one.isspace() for one in tail):
        yield Problem(
            path=f"{where}.server",
            got=repr(cluster.server),
            accepted="an address such as https://10.0.0.1:6443",
        )
    if cluster.proxy_url:
        yield Problem(
            path=f"{where}.proxy-url",
            got=repr(cluster.proxy_url),
            accepted="no proxy: a direct way to the server",
        )


def _user_problems(user: _User, name: str, path: Path) -> Iterable[Problem]:
    accepted = "a token, tokenFile, client certificate or exec"
    if user.username is not None:
        yield Problem(path=f"{path}.users[{name}].user.username", got="a password", accepted=accepted)
    if user.auth_provider is not None:
        yield Problem(
            path=f"{path}.users[{name}].user.auth-provider", got="an auth provider", accepted=accepted
        )


def _one(named: Iterable[_Found], name: str, where: str) -> _Found:
    present = {one.name: one for one in named}
    if name not in present:
        known = ", ".join(present) or "none is there"
        raise ConfigError([Problem(path=where, got=repr(name), accepted=f"one of those listed: {known}")])
    return present[name]


def _beside(path: Path, name: str | None) -> str | None:
    return None if not name else str(path.absolute().parent / name)


def _decoded(text: str | None, where: str) -> bytes | None:
    if not text:
        return None
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise ConfigError([Problem(path=where, got=str(error), accepted="base64")]) from error


_READ_AGAIN_SECONDS: Final = 60.0
_READING_SECONDS: Final = 30.0
_EXEC_SECONDS: Final = 25.0
_EXEC_EARLY_SECONDS: Final = 60.0  # renewed this long before it ends
_LARGEST_TOKEN_BYTES: Final = 1 << 16

InThread = Callable[[Callable[[], "Session"]], Awaitable["Session"]]
_FileStates = tuple[tuple[str, int, int, int], ...]


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
        self._access_states: _FileStates = ()
        self._tls: ssl.SSLContext | None = None
        self._tls_states: _FileStates | None = None
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
        states = _states_of([self._watched] if self._watched else [])
        access = self._access
        if access is None or states != self._access_states:
            access = self._access = self._read_way_in()
            self._access_states = states
            self._tls_states = None
        self._renew_tls(access)
        token = self._token(access)
        if token is not None and self._tls is None and not _is_this_machine(access.server):
            accepted = "https, or this machine: a token is sent to no other in clear"
            raise ConfigError([Problem(path="server", got=repr(access.server), accepted=accepted)])
        return Session(server=access.server, tls=self._tls, server_name=access.server_name, token=token)

    def _renew_tls(self, access: Access) -> None:
        states = _states_of(access.paths)
        if states != self._tls_states:
            self._tls = tls_context(access)
            self._tls_states = states

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


def _states_of(paths: Iterable[str]) -> _FileStates:
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
