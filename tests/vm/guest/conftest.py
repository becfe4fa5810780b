"""A guarded slice and the service, fresh for each test; cgroups and probes for those of eBPF."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import guarded
import packaged
import probing
import pytest

from reactor.kernel.bpf.bcc_probes import BccMemoryProbe, BccOomProbe, BccTasksProbe
from reactor.kernel.bpf.probes import MemoryProbe, OomProbe, OomRecords, TasksProbe
from tests.support.failures import pytest_runtest_makereport  # noqa: F401 - a hook


@pytest.fixture
def service() -> Iterator[guarded.Service]:
    if not guarded.is_clear():  # what an interrupted run has left
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


LOADERS = ["libbpf", "kprobe", "bcc"]  # BCC compiles once in a run; what was pinned serves the other tests


@pytest.fixture(scope="module", params=LOADERS)
def memory(request: pytest.FixtureRequest) -> Iterator[MemoryProbe | BccMemoryProbe]:
    kprobes = request.param == "kprobe"
    with BccMemoryProbe() if request.param == "bcc" else MemoryProbe(kprobes=kprobes) as probe:
        yield probe


@pytest.fixture(params=LOADERS)
def tasks(request: pytest.FixtureRequest) -> Iterator[TasksProbe | BccTasksProbe]:
    kprobes = request.param == "kprobe"
    with BccTasksProbe() if request.param == "bcc" else TasksProbe(kprobes=kprobes) as probe:
        yield probe


@pytest.fixture(params=LOADERS)
def oom(request: pytest.FixtureRequest) -> Iterator[OomRecords]:
    kprobes = request.param == "kprobe"
    with BccOomProbe() if request.param == "bcc" else OomProbe(kprobes=kprobes) as probe:
        yield probe


DEBIAN = guarded.HERE.parent / "debian"  # packages of the machine's own suite, and what they need


@pytest.fixture(scope="module")
def debian() -> None:
    """Give apt Debian's packages, without a network, and have it install documents as it does elsewhere."""
    if not DEBIAN.is_dir():
        pytest.skip("no packages of Debian's in this machine: make vm-test-package")
    Path("/etc/apt/sources.list").write_text(f"deb [trusted=yes] file:{DEBIAN} ./\n")
    for path in Path("/etc/dpkg/dpkg.cfg.d").iterdir():
        lines = path.read_text().splitlines(keepends=True)
        path.write_text("".join(line for line in lines if not line.startswith("path-exclude")))
    guarded.run("apt-get", "-qq", "update")


@pytest.fixture
def package_directory(tmp_path: Path) -> Iterator[Path]:
    """Yield an empty directory to install from, on a machine that has no package of reactor."""
    guarded.run("systemctl", "stop", packaged.SERVICE, check=False)
    for unit in (packaged.SERVICE, guarded.SLICE):  # of tests of the wheel
        Path("/run/systemd/system", unit).unlink(missing_ok=True)
    shutil.rmtree(guarded.CONFIG.parent, ignore_errors=True)
    guarded.run("systemctl", "daemon-reload")
    try:
        yield tmp_path
    finally:
        environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        guarded.run("systemctl", "stop", "hog.service", "prometheus", check=False)
        for name in ("reactor", "prometheus"):  # configured by the page, once
            subprocess.run(["dpkg", "--purge", name], env=environment, capture_output=True, check=False)
        shutil.rmtree("/etc/prometheus", ignore_errors=True)
        guarded.run("systemctl", "reset-failed", check=False)
