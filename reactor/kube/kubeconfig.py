"""A kubeconfig's current context to the way in: an address, authorities, and whose credentials.

Source: k8s.io/client-go/tools/clientcmd/api/v1; relative paths are relative to the file.
"""

from __future__ import annotations

import base64
import binascii
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol, TypeVar

from reactor.config.decode import decode
from reactor.config.documents import load_document
from reactor.config.exposure import ONLY_OURS, exposed_because
from reactor.errors import ConfigError, Problem

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
        with path.open("rb") as file:
            found, text = os.fstat(file.fileno()), file.read(_LARGEST_BYTES).decode()
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
    document = decode(load_document(text, str(path)), _Document)
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
    document = decode(load_document(text, str(path)) or {}, _Document, root=str(path))
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
    scheme, separator, rest = cluster.server.partition("://")
    if not separator or scheme not in {"https", "http"} or not rest or any(one.isspace() for one in rest):
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
