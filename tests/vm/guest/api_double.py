"""A double of the API server, for one node: it keeps what is written to the node's object, and may be away.

systemd and the daemon are real here. How a real server takes the same requests: tests/kube/test_leaving.py.
"""

from __future__ import annotations

import json
import socket
import threading
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import parse_qs, urlsplit

NODE = "node-a"
_PATH = f"/api/v1/nodes/{NODE}"
_OWN = "reactor/"


def kubeconfig(path: Path, port: int) -> str:
    """Write a kubeconfig for a double at this port of the loopback; return the path."""
    document = {
        "current-context": "here",
        "contexts": [{"name": "here", "context": {"cluster": "here", "user": "me"}}],
        "clusters": [{"name": "here", "cluster": {"server": f"http://127.0.0.1:{port}"}}],
        "users": [{"name": "me", "user": {"token": "t"}}],
    }
    path.write_text(json.dumps(document))
    return str(path)


def left_on(node: dict[str, Any]) -> list[str]:
    """Return what is the reactor's on a node: taints, annotations, conditions with their status."""
    taints = [f"{one['key']}:{one['effect']}" for one in node["spec"].get("taints", ())]
    annotations = [name for name in node["metadata"]["annotations"] if name.startswith(_OWN)]
    conditions = [f"{one['type']}={one['status']}" for one in _own_conditions(node)]
    return sorted([*taints, *annotations, *conditions])


def since_when(node: dict[str, Any]) -> dict[str, str]:
    """Return since when a node has each taint, and each condition of the reactor's its status."""
    taints = {f"{one['key']}:{one['effect']}": one["timeAdded"] for one in node["spec"].get("taints", ())}
    return taints | {one["type"]: one["lastTransitionTime"] for one in _own_conditions(node)}


def _own_conditions(node: dict[str, Any]) -> list[dict[str, str]]:
    return [one for one in node["status"]["conditions"] if one["type"].startswith(_OWN)]


class ApiDouble:
    """Serves the node NODE, without pods, at one port of the loopback; may be stopped and started again.

    What is created is accepted and forgotten.
    """

    def __init__(self) -> None:
        self._lock = threading.Condition()
        self._version = 1
        self._node: dict[str, Any] = {
            "metadata": {"name": NODE, "uid": "uid-node", "annotations": {}},
            "spec": {},
            "status": {"conditions": [{"type": "Ready", "status": "True"}]},
        }
        self._port = 0
        self._server: _Server | None = None

    def kubeconfig(self, path: Path) -> str:
        """Write a kubeconfig for it; return the path."""
        return kubeconfig(path, self._port)

    def start(self) -> None:
        """Listen, at the port of the first time."""
        handler = type("Handler", (_Handler,), {"double": self})
        self._server = _Server(("127.0.0.1", self._port), handler)
        self._port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def stop(self) -> None:
        """Cut all connections, and refuse further ones."""
        server, self._server = self._server, None
        if server is not None:
            server.shutdown()
            server.server_close()
            server.cut()
            with self._lock:
                self._lock.notify_all()

    def left(self) -> list[str]:
        """Return what is the reactor's on the node."""
        return left_on(self.document())

    def document(self) -> dict[str, Any]:
        """Return the object as it is now."""
        with self._lock:
            metadata = {**self._node["metadata"], "resourceVersion": str(self._version)}
            return {
                "kind": "Node",
                "apiVersion": "v1",
                **json.loads(json.dumps(self._node)),
                "metadata": metadata,
            }

    def changed_since(self, version: int, server: _Server) -> dict[str, Any] | None:
        """Wait until the object is of a later version, and return it; None where `server` was stopped."""
        with self._lock:
            self._lock.wait_for(lambda: self._version > version or self._server is not server)
            return None if self._server is not server else self.document()

    def patch(self, path: str, patch: dict[str, Any]) -> int:
        """Merge a patch as an API server does; return the HTTP status."""
        with self._lock:
            if path == f"{_PATH}/status":
                self._merge_conditions(patch["status"]["conditions"])
            elif path == _PATH:
                metadata = patch["metadata"]
                if metadata.get("resourceVersion") != str(self._version):
                    return 409
                _merge(self._node["metadata"]["annotations"], metadata["annotations"])
                _merge(self._node["spec"], patch["spec"])
            else:
                return 200
            self._version += 1
            self._lock.notify_all()
            return 200

    def _merge_conditions(self, patches: list[dict[str, Any]]) -> None:
        conditions = {one["type"]: one for one in self._node["status"]["conditions"]}
        for one in patches:
            if one.get("$patch") == "delete":
                conditions.pop(one["type"], None)
            else:
                conditions[one["type"]] = {**conditions.get(one["type"], {}), **one}
        self._node["status"]["conditions"] = list(conditions.values())


class _Server(ThreadingHTTPServer):
    """Knows its connections, so that they can be cut."""

    daemon_threads = True

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        self._connections: list[socket.socket] = []
        super().__init__(address, handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        self._connections.append(request)
        super().process_request(request, client_address)

    def cut(self) -> None:
        for connection in self._connections:
            with suppress(OSError):  # it has been closed
                connection.shutdown(socket.SHUT_RDWR)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    double: ClassVar[ApiDouble]
    server: _Server

    def do_GET(self) -> None:
        address = urlsplit(self.path)
        query = parse_qs(address.query)
        if "watch" in query:
            with suppress(OSError):
                self._watch(address.path, int(query["resourceVersion"][0]))
            self.close_connection = True
        elif address.path == _PATH:
            self._answer(200, self.double.document())
        else:
            document = self.double.document()
            items = [document] if address.path == "/api/v1/nodes" else []
            version = document["metadata"]["resourceVersion"]
            self._answer(200, {"metadata": {"resourceVersion": version}, "items": items})

    def do_PATCH(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self._answer(self.double.patch(urlsplit(self.path).path, body), self.double.document())

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self._answer(201, {})

    def _watch(self, path: str, version: int) -> None:
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        while (document := self.double.changed_since(version, self.server)) is not None:
            version = int(document["metadata"]["resourceVersion"])
            if path == "/api/v1/nodes":
                event = json.dumps({"type": "MODIFIED", "object": document}).encode() + b"\n"
                self.wfile.write(f"{len(event):x}\r\n".encode() + event + b"\r\n")

    def _answer(self, status: int, body: object) -> None:
        raw = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)

    def log_message(self, format: str, *_: object) -> None:  # noqa: A002 - the library's name
        del format


def _merge(target: dict[str, Any], patch: dict[str, Any]) -> None:
    """Merge as RFC 7386 says, one level deep: what is null is removed, what is a list replaced."""
    for key, value in patch.items():
        if value is None:
            target.pop(key, None)
        else:
            target[key] = value
