"""The cluster, once a session, and a namespace for each test; a runtime alone, once a module.

A cluster that is lost (a program that ended by itself, or never came up) ends the run with exit status 3:
nothing is known about the code then. See README.md.
"""

from __future__ import annotations

import os
import re
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from cluster import Cluster, Pods, namespaced
from machine import LostError
from own_pod import OwnPod
from reactor_daemon import HARD, Reactor, grant_rights
from sandboxes import Runtime

LOST = 3
_CLUSTER = pytest.StashKey[Cluster]()


@pytest.fixture(scope="session")
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """Return the running cluster."""
    if os.geteuid() != 0:
        pytest.skip("needs root; run as root")
    made = Cluster()
    try:
        made.__enter__()
    except LostError as error:
        pytest.exit(f"LOST: {error}", returncode=LOST)
    request.config.stash[_CLUSTER] = made
    try:
        yield made
    finally:
        made.machine.close()


@pytest.fixture
def pods(cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[Pods]:
    """Return the pods of a namespace of the test's own; they are gone after it."""
    words = re.sub(r"[^a-z0-9]+", "-", request.node.name.lower())[:40].strip("-")
    made = namespaced(cluster, f"{words}-{os.urandom(3).hex()}")
    yield made
    made.remove()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """End the run where a test failed because the cluster is gone."""
    report = yield
    made = item.config.stash.get(_CLUSTER, None)
    if report.failed and call.when in {"setup", "call"} and made is not None and (lost := made.lost()):
        pytest.exit(f"LOST during {item.nodeid}: {lost}", returncode=LOST)
    return report


@pytest.fixture
def reactor(cluster: Cluster, tmp_path: Path) -> Iterator[Reactor]:
    """Return a daemon for the node, not yet started, with all the rights that deploy/ gives it.

    After the test it has ended, and the node is as it was.
    """
    grant_rights(cluster)
    made = Reactor(cluster, tmp_path)
    yield made
    made.stop()
    made.keep_log()
    cluster.come_back()
    cluster.node.calm()


@pytest.fixture
def own_pod(cluster: Cluster) -> Iterator[OwnPod]:
    """Return the daemon's own pod, to be told to it by its environment."""
    made = OwnPod(cluster)
    yield made
    made.remove()


@pytest.fixture
def guarded(reactor: Reactor) -> Reactor:
    """Return the daemon, started, with the hard threshold HARD."""
    reactor.configure({"evictionHard": HARD})
    reactor.start()
    return reactor


@pytest.fixture(scope="module")
def runtime_type() -> type[Runtime]:
    """Return what `started` is made of; a module may have one of its own."""
    return Runtime


@pytest.fixture(scope="module")
def started(runtime_type: type[Runtime]) -> Iterator[Runtime]:
    """Return a machine in which containerd runs, and nothing else."""
    made = runtime_type()
    try:
        made.__enter__()
    except LostError as error:
        pytest.exit(f"LOST: {error}", returncode=LOST)
    yield made
    made.__exit__()


@pytest.fixture
async def runtime(started: Runtime) -> AsyncIterator[Runtime]:
    """Return the runtime; after the test it has no pods, no shims, and the tests' images."""
    yield started
    await started.clear()
