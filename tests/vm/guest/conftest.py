"""A guarded slice and the service, fresh for each test; cgroups and probes for those of eBPF."""

from __future__ import annotations

import os
from collections.abc import Iterator

import guarded
import probing
import pytest

from reactor.kernel.bpf_probes import MemoryProbe


@pytest.fixture
def service() -> Iterator[guarded.Service]:
    guarded.clear()
    guarded.start_slice()
    try:
        yield guarded.Service()
    finally:
        guarded.clear()


@pytest.fixture
def cgroup() -> Iterator[probing.Cgroup]:
    (probing.ROOT / "cgroup.subtree_control").write_text("+memory +pids")
    made: list[probing.Cgroup] = []
    try:
        yield probing.Cgroup(probing.ROOT / f"reactor-bpf-{os.getpid()}", made)
    finally:
        for one in made:
            one.end()
        for one in reversed(made):
            one.remove()


@pytest.fixture(scope="module")
def memory() -> Iterator[MemoryProbe]:
    with MemoryProbe() as probe:
        yield probe
