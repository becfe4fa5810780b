"""Tenants who write into their pods whatever the API server lets pass: a hog of theirs is the one evicted.

The daemon runs on a virtual node with pods as a kubelet lays them out, and a server that answers as an API
server would: it lists these pods, and keeps its watches open.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from reactor.testbed.virtual_node import VirtualNode
from tests.support.daemon import RunningDaemon
from tests.support.kubelet_tree import HOG, OTHER, kubeconfig, pods_of_a_kubelet
from tests.support.processes import hold
from tests.support.trials import Trial
from tests.support.waiting import PATIENCE, eventually

pytestmark = pytest.mark.suite("hostile objects")

NODE = "node-a"
HASH, MIRROR, SOURCE = (f"kubernetes.io/config.{key}" for key in ("hash", "mirror", "source"))


def document(
    name: str, uid: str, *, annotations: dict[str, str] | None = None, **spec: Any
) -> dict[str, Any]:
    return {
        "metadata": {
            "name": name,
            "namespace": "shop",
            "uid": uid,
            "resourceVersion": "5",
            "annotations": annotations or {},
        },
        "spec": {"nodeName": NODE, "containers": [{"name": "main"}], **spec},
        "status": {"phase": "Running"},
    }


@contextmanager
def api_server(
    pods: list[dict[str, Any]],
    turned: threading.Event | None = None,
    on_write: Callable[[tuple[str, Any]], None] = lambda _: None,
) -> Iterator[str]:
    """Serve the pods and their node, and yield the URL; once it has `turned` all answers are garbage.

    `on_write` is given what is created or patched, with its path.
    """
    node = {"metadata": {"name": NODE, "uid": "uid-node", "resourceVersion": "5"}, "spec": {}, "status": {}}
    over = threading.Event()
    has_turned = turned or threading.Event()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            address = urlsplit(self.path)
            items = pods if address.path.endswith("/pods") else [node]
            if has_turned.is_set():
                self.spoil()
            elif "watch" in parse_qs(address.query):
                self.send_response(200)
                self.send_header("Transfer-Encoding", "chunked")
                self.end_headers()
                while not over.wait(0.1) and not has_turned.is_set():
                    pass
                self.spoil()
            else:
                self.answer({"metadata": {"resourceVersion": "5"}, "items": items})

        def do_PATCH(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            on_write((urlsplit(self.path).path, body))
            self.answer({})

        def do_POST(self) -> None:
            self.do_PATCH()

        def spoil(self) -> None:
            self.close_connection = True
            with suppress(OSError):
                self.wfile.write(os.urandom(1 << 16))

        def answer(self, body: object) -> None:
            raw = json.dumps(body).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(raw)))
            self.end_headers()
            self.wfile.write(raw)

        def log_message(self, format: str, *_: object) -> None:  # noqa: A002 - the library's name
            del format

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        over.set()
        server.shutdown()
        server.server_close()


def start(daemon: RunningDaemon, node: VirtualNode, kubeconfig_path: str) -> None:
    daemon.configure(
        {"evictionHard": {"memory.available": "96Mi"}},
        {
            "kubernetes": {"nodeName": NODE, "kubeconfig": kubeconfig_path, "role": "sole"},
            "pods": {"parents": [f"{node.cgroup}/kubepods"]},
        },
    )
    daemon.start()
    eventually(lambda: daemon.status()["kubernetes"]["watches"]["pods"], "the pods are listed")


_FORGED = document("forged", "0e4a3c0a-3333-4222-8333-0123456789ab", annotations={MIRROR: HOG})
_FULLY_FORGED = document(
    f"forged-{NODE}", "0e4a3c0a-4444-4222-8333-0123456789ab", annotations={MIRROR: HOG, HASH: HOG}
)
_FULLY_FORGED["metadata"]["ownerReferences"] = [
    {"apiVersion": "v1", "kind": "Node", "name": NODE, "uid": "uid-node", "controller": True}
]


@pytest.mark.parametrize(
    ("hog", "others"),
    [
        pytest.param(document("hog", HOG), [], id="nothing"),
        pytest.param(document("hog", HOG, annotations={HASH: OTHER}), [], id="anothers-hash"),
        pytest.param(document("hog", HOG, annotations={SOURCE: "file"}), [], id="source"),
        pytest.param(document("hog", HOG, annotations={MIRROR: OTHER}), [], id="anothers-mirror"),
        pytest.param(document("hog", HOG), [_FORGED], id="a-second-pod"),
        pytest.param(document("hog", HOG), [_FULLY_FORGED], id="a-second-pod-that-looks-real"),
        pytest.param(document("hog", HOG, terminationGracePeriodSeconds=-1), [], id="grace-period"),
        pytest.param(document("hog", HOG, priority="high", containers={"odd": []}), [], id="unreadable"),
    ],
)
def test_the_hog_is_evicted_and_the_critical_pod_lives_whatever_the_hogs_tenant_writes(
    node: VirtualNode,
    daemon: RunningDaemon,
    trial: Trial,
    tmp_path: Path,
    hog: dict[str, Any],
    others: list[dict[str, Any]],
) -> None:
    """The critical pod is the larger one, so that it would be first if it were not critical."""
    inside = pods_of_a_kubelet(node)
    critical = node.spawn(inside[OTHER], hold(260))
    trial.right.add("hog")
    trial.must_live([critical])
    pods = [hog, document("critical", OTHER, priority=2_000_001_000), *others]
    with api_server(pods) as url:
        start(daemon, node, kubeconfig(tmp_path, url))
        victim = node.spawn(inside[HOG], hold(170))
        eventually(lambda: bool(daemon.evictions()), "a journal line of the eviction")
        assert -signal.SIGKILL == victim.wait(10 * PATIENCE)
        assert critical.poll() is None
        evicted = {one["pod"] for line in daemon.evictions() for one in line["evictions"]}
        assert {"shop/hog"} == evicted
        assert 0 == daemon.stop()


def test_what_was_known_of_the_pods_stands_when_their_server_answers_garbage(
    node: VirtualNode, daemon: RunningDaemon, trial: Trial, tmp_path: Path
) -> None:
    inside = pods_of_a_kubelet(node)
    critical = node.spawn(inside[OTHER], hold(260))
    trial.right.add("hog")
    trial.must_live([critical])
    turned = threading.Event()
    pods = [document("hog", HOG), document("critical", OTHER, priority=2_000_001_000)]
    with api_server(pods, turned) as url:
        start(daemon, node, kubeconfig(tmp_path, url))
        turned.set()
        eventually(lambda: not daemon.status()["kubernetes"]["watches"]["pods"], "the watch is lost", 60)
        victim = node.spawn(inside[HOG], hold(170))
        assert -signal.SIGKILL == victim.wait(20 * PATIENCE)
        eventually(lambda: ["hog"] == daemon.evicted(), "the eviction in the journal")
        assert critical.poll() is None
        assert 0 == daemon.stop()


_PAUSES = 'open("/proc/self/comm", "w").write("pause"); import signal; signal.pause()'
# By the name and size of a pause container, until SIGUSR1 makes it a hog.
_POSES = """
import mmap, signal
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
open("/proc/self/comm", "w").write("pause")
signal.sigwait({signal.SIGUSR1})
memory = mmap.mmap(-1, 470 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
for offset in range(0, len(memory), 4096):
    memory[offset] = 1
signal.pause()
"""


def test_a_hog_that_poses_as_the_pause_container_is_evicted_and_the_sandbox_spared(
    node: VirtualNode, daemon: RunningDaemon, trial: Trial, tmp_path: Path
) -> None:
    """Without a runtime that tells the sandbox, nor one that may give it the score of sandboxes."""
    sandbox = node.spawn(pods_of_a_kubelet(node)[HOG], [sys.executable, "-S", "-c", _PAUSES])
    container = node.add_pod(f"kubepods/besteffort/pod{HOG}/{'b' * 64}")
    trial.right.add("hog")
    trial.must_live([sandbox])
    posing = node.spawn(container, [sys.executable, "-S", "-c", _POSES])
    names = [Path(f"/proc/{process.pid}/comm") for process in (sandbox, posing)]
    eventually(lambda: all(name.read_text() == "pause\n" for name in names), "both are called so")
    with api_server([document("hog", HOG)]) as url:
        start(daemon, node, kubeconfig(tmp_path, url))
        posing.send_signal(signal.SIGUSR1)
        assert -signal.SIGKILL == posing.wait(20 * PATIENCE)
        eventually(lambda: bool(daemon.evictions()), "a journal line of the eviction")
        assert sandbox.poll() is None
        assert 0 == daemon.stop()
