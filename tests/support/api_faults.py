"""An HTTP server on loopback that answers as a test tells it to, with faults that a real one won't have."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, urlsplit

import trio

from reactor.backoff import Backoff
from reactor.kube.client import ApiClient
from reactor.kube.credentials import Session


@dataclass(frozen=True, kw_only=True)
class Asked:
    """A request as it arrived."""

    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: Any


@dataclass(kw_only=True)
class Reply:
    """An answer: JSON, or bytes as they are; `after` goes on writing to the open connection."""

    status: int = 200
    body: Any = None
    headers: Mapping[str, str] = field(default_factory=dict)
    after: Callable[[trio.SocketStream], Awaitable[None]] | None = None


TOKEN = "secret"  # noqa: S105 - nobody's
Script = Callable[[Asked], Reply | None]


class FaultServer:
    """Serves `script`; None from it cuts the connection. `asked` holds the requests that came.

    `connections` is how many have been opened.
    """

    def __init__(self, script: Script) -> None:
        self.script = script
        self.asked: list[Asked] = []
        self.connections = 0
        self.url = ""

    async def serve(self, *, task_status: trio.TaskStatus[list[trio.SocketListener]]) -> None:
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        self.url = f"http://127.0.0.1:{listeners[0].socket.getsockname()[1]}"
        await trio.serve_listeners(self._connection, listeners, task_status=task_status)

    async def _connection(self, stream: trio.SocketStream) -> None:
        received = b""
        self.connections += 1
        try:
            async with stream:
                while True:
                    while b"\r\n\r\n" not in received:
                        more = await stream.receive_some(65536)
                        if not more:
                            return
                        received += more
                    head, _, received = received.partition(b"\r\n\r\n")
                    lines = head.decode().split("\r\n")
                    method, target, _ = lines[0].split(" ")
                    headers = {
                        name.lower(): value for name, value in (line.split(": ", 1) for line in lines[1:])
                    }
                    length = int(headers.get("content-length", "0"))
                    while len(received) < length:
                        received += await stream.receive_some(65536)
                    body, received = received[:length], received[length:]
                    address = urlsplit(target)
                    asked = Asked(
                        method=method,
                        path=address.path,
                        query={name: values[0] for name, values in parse_qs(address.query).items()},
                        headers=headers,
                        body=json.loads(body) if body else None,
                    )
                    self.asked.append(asked)
                    reply = self.script(asked)
                    if reply is None:
                        return
                    await _send(stream, reply)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass


async def _send(stream: trio.SocketStream, reply: Reply) -> None:
    body = reply.body if isinstance(reply.body, bytes) else json.dumps(reply.body).encode()
    headers = {"Content-Type": "application/json", **reply.headers}
    if reply.after is None:
        headers["Content-Length"] = str(len(body))
    else:
        headers["Transfer-Encoding"] = "chunked"
        body = b""
    head = f"HTTP/1.1 {reply.status} Told\r\n" + "".join(f"{k}: {v}\r\n" for k, v in headers.items())
    await stream.send_all(head.encode() + b"\r\n" + body)
    if reply.after is not None:
        await reply.after(stream)


def chunk(piece: bytes) -> bytes:
    """Return a piece of a chunked body."""
    return f"{len(piece):x}\r\n".encode() + piece + b"\r\n"


def line(kind: str, document: Any) -> bytes:
    """Return a watch event."""
    return json.dumps({"type": kind, "object": document}).encode() + b"\n"


def refusal(status: int, message: str, *, cause: str = "", **headers: str) -> Reply:
    """Return an answer with a v1.Status."""
    body: dict[str, Any] = {"kind": "Status", "apiVersion": "v1", "code": status, "message": message}
    if cause:
        body["details"] = {"causes": [{"reason": cause, "message": message}]}
    return Reply(
        status=status, body=body, headers={key.replace("_", "-"): value for key, value in headers.items()}
    )


class GivenSessions:
    """A session of plain values; counts how often it was distrusted."""

    def __init__(self, session: Session) -> None:
        self.given = session
        self.distrusted = 0

    async def session(self) -> Session:
        return self.given

    def distrust(self) -> None:
        self.distrusted += 1


def quick_backoff() -> Backoff:
    return Backoff(0.001, 0.002)


@asynccontextmanager
async def served(script: Script) -> AsyncIterator[tuple[FaultServer, ApiClient]]:
    """Give a server and a client of it."""
    server = FaultServer(script)
    async with trio.open_nursery() as nursery:
        await nursery.start(server.serve)
        client = ApiClient(
            GivenSessions(Session(server=server.url, tls=None, token=TOKEN)), backoff=quick_backoff
        )
        try:
            yield server, client
        finally:
            client.close()
            nursery.cancel_scope.cancel()


def mirror_document(hash_: str, static_pod: str = "etcd", **changes: Any) -> dict[str, Any]:
    """Return a mirror pod of the node `node-a`, whose uid is `uid-node-a`, as a kubelet creates it."""
    owner = {
        "apiVersion": "v1",
        "kind": "Node",
        "name": "node-a",
        "uid": "uid-node-a",
        "controller": True,
    }
    sources = {"config.source": "file", "config.hash": hash_, "config.mirror": hash_}
    metadata = {
        "annotations": {f"kubernetes.io/{key}": value for key, value in sources.items()},
        "ownerReferences": [owner],
        **changes,
    }
    return pod_document(f"{static_pod}-node-a", metadata=metadata)


def pod_document(name: str = "web", **changes: Any) -> dict[str, Any]:
    """Return a v1.Pod as an API server has it."""
    document: dict[str, Any] = {
        "metadata": {"name": name, "namespace": "default", "uid": f"uid-{name}", "resourceVersion": "7"},
        "spec": {"containers": [{"name": "main", "resources": {"requests": {"memory": "64Mi"}}}]},
        "status": {"phase": "Running"},
    }
    for key, value in changes.items():
        document[key] = {**document[key], **value}
    return document
