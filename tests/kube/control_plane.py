"""The cluster's control plane: etcd and kube-apiserver, on loopback with ports of their own.

RBAC and the node authorizer are on, as on any cluster; tokens are static. There are no controllers and there
is no scheduler: pods name their node themselves, and nothing but the kubelet and the reactor changes them.
"""

from __future__ import annotations

import secrets
import socket
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from api import Api, ApiError, Object
from machine import LostError, Machine, Program

from tests.support.json_lines import json_lines

_ADMIN: Final = "reactor-test-admin"
# Every request but the nodes' own, at its answer; of a watch, which has none for long, when it begins.
_AUDIT: Final = """apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- {level: None, userGroups: ["system:nodes", "system:masters"]}
- {level: None, userGroups: ["system:unauthenticated"]}
- {level: Metadata}
"""


# Of everybody but the server itself, its controllers and the administrator.
AUDIT_OF_NODES: Final = """apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- {level: None, userGroups: ["system:masters", "system:unauthenticated"]}
- {level: Metadata}
"""


class ControlPlane:
    """etcd and kube-apiserver in `machine`; the API server can be stopped and started again.

    `users` are further (name, groups) who get a token. Raises LostError where something doesn't come up.
    """

    def __init__(
        self,
        machine: Machine,
        programs: Path,
        users: Sequence[tuple[str, Sequence[str]]],
        *,
        audit: str = _AUDIT,
    ) -> None:
        self._machine = machine
        self._programs = programs
        self.directory = machine.state / "control-plane"
        self.directory.mkdir()
        self.authority = self.directory / "ca.crt"
        self._tokens = {name: secrets.token_hex(16) for name, _ in [(_ADMIN, ()), *users]}
        self._write_keys()
        (self.directory / "audit.yaml").write_text(audit)
        rows = [(_ADMIN, ("system:masters",)), *users]
        (self.directory / "tokens.csv").write_text(
            "".join(f'{self._tokens[name]},{name},{name},"{",".join(groups)}"\n' for name, groups in rows)
        )
        etcd_client, etcd_peer, self._port = free_ports(3)
        self._etcd_url = f"http://127.0.0.1:{etcd_client}"
        self._etcd_peer_url = f"http://127.0.0.1:{etcd_peer}"
        self.url = f"https://127.0.0.1:{self._port}"
        self.api = self.client(_ADMIN)
        # Whether pods get tokens of their accounts, as on any cluster: that takes controllers.
        self.gives_tokens = False
        self.etcd: Program | None = None
        self.server: Program | None = None

    def start(self) -> None:
        """Start both and wait until the server is ready."""
        self.etcd = self._machine.start(
            "etcd",
            [
                "etcd",
                f"--data-dir={self.directory}/etcd",
                f"--listen-client-urls={self._etcd_url}",
                f"--advertise-client-urls={self._etcd_url}",
                f"--listen-peer-urls={self._etcd_peer_url}",
                f"--initial-advertise-peer-urls={self._etcd_peer_url}",
                f"--initial-cluster=default={self._etcd_peer_url}",
                "--log-level=warn",
            ],
        )
        self.start_server()

    def start_server(self) -> None:
        """Start the API server and wait until it is ready."""
        directory = self.directory
        self.server = self._machine.start(
            "kube-apiserver",
            [
                self._programs / "kube-apiserver",
                f"--etcd-servers={self._etcd_url}",
                "--bind-address=127.0.0.1",
                "--advertise-address=127.0.0.1",
                f"--secure-port={self._port}",
                f"--tls-cert-file={directory}/server.crt",
                f"--tls-private-key-file={directory}/server.key",
                f"--token-auth-file={directory}/tokens.csv",
                "--authorization-mode=Node,RBAC",
                f"--disable-admission-plugins={','.join(self._admission_without())}",
                "--service-account-issuer=https://reactor.test",
                f"--service-account-key-file={directory}/accounts.pub",
                f"--service-account-signing-key-file={directory}/accounts.key",
                "--service-cluster-ip-range=10.96.0.0/24",
                "--endpoint-reconciler-type=none",
                "--allow-privileged=true",
                f"--cert-dir={directory}",
                f"--audit-policy-file={directory}/audit.yaml",
                f"--audit-log-path={self.audit_log()}",
            ],
        )
        self.server.wait_ready(self._is_ready, seconds=120)

    def _admission_without(self) -> list[str]:
        """Return the plugins that wait for what a controller makes: tokens, a new node without taints."""
        return ["TaintNodesByCondition", *(() if self.gives_tokens else ("ServiceAccount",))]

    @property
    def has_controllers(self) -> bool:
        """Tell whether kube-controller-manager is among the programs; those of one's own may lack it."""
        return (self._programs / "kube-controller-manager").exists()

    def start_controllers(self, *names: str) -> Program:
        """Start these of kube-controller-manager's controllers and wait until they run."""
        (port,) = free_ports(1)
        program = self._machine.start(
            "kube-controller-manager",
            [
                self._programs / "kube-controller-manager",
                f"--kubeconfig={self.kubeconfig(_ADMIN)}",
                f"--controllers={','.join(names)}",
                "--leader-elect=false",
                "--bind-address=127.0.0.1",
                f"--secure-port={port}",
                "--port=0",
                f"--root-ca-file={self.authority}",
                f"--service-account-private-key-file={self.directory}/accounts.key",
                f"--cert-dir={self.directory}",
            ],
        )

        def listens() -> bool:
            with socket.socket() as probe:
                return probe.connect_ex(("127.0.0.1", port)) == 0

        program.wait_ready(listens, seconds=120)
        return program

    def stop_server(self) -> None:
        """Stop the API server; its store stays."""
        assert self.server is not None
        self.server.stop()

    def restart_server(self) -> None:
        """Stop and start the API server."""
        self.stop_server()
        self.start_server()

    def audited(self, user: str) -> list[Object]:
        """Return the requests that this user has made, in the order in which they were answered."""
        lines = json_lines(self.audit_log())
        # Whoever came with a wrong token has no name.
        return [line for line in lines if line["user"].get("username") == user]

    def client(self, user: str) -> Api:
        """Return requests as this user."""
        return Api(self.url, self._tokens[user], str(self.authority))

    def kubeconfig(self, user: str) -> Path:
        """Return a kubeconfig of this user."""
        path = self.directory / f"{user.replace(':', '-')}.kubeconfig"
        path.write_text(
            f"""apiVersion: v1
kind: Config
current-context: test
contexts:
- {{name: test, context: {{cluster: test, user: test}}}}
clusters:
- {{name: test, cluster: {{server: "{self.url}", certificate-authority: "{self.authority}"}}}}
users:
- {{name: test, user: {{token: "{self._tokens[user]}"}}}}
"""
        )
        return path

    def audit_log(self) -> Path:
        """Return the file of the requests."""
        return self.directory / "audit.jsonl"

    def _is_ready(self) -> bool:
        try:
            self.api.request("GET", "/readyz")
            # What the server makes at its start and pods are admitted by.
            return (
                self.api.find("/apis/scheduling.k8s.io/v1/priorityclasses/system-node-critical") is not None
            )
        except (OSError, ApiError):
            return False

    def _write_keys(self) -> None:
        extensions = "subjectAltName=IP:127.0.0.1,DNS:localhost"
        # Self-signed: it is its own authority.
        _openssl(
            self.directory,
            "req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=reactor-test",
            f"-addext {extensions} -keyout server.key -out server.crt",
        )
        self.authority.write_bytes((self.directory / "server.crt").read_bytes())
        _openssl(self.directory, "genrsa -out accounts.key 2048")
        _openssl(self.directory, "rsa -in accounts.key -pubout -out accounts.pub")


def free_ports(count: int) -> list[int]:
    """Return ports of the loopback interface that nobody listens on now."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()


def _openssl(directory: Path, *words: str) -> None:
    command = ["openssl", *" ".join(words).split()]
    try:
        subprocess.run(command, cwd=directory, check=True, capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.CalledProcessError) as error:
        raise LostError(f"{' '.join(command)}: {getattr(error, 'stderr', error)}") from error
