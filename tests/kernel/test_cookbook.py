"""Recipes of docs/cookbook.md on real cgroups: who is evicted, who stays, and in which way.

The configurations are as they are printed, but for amounts that fit a virtual node of 256 MiB, and for the
cgroups, which are below that node. What a Kubernetes node does in either role is tried in tests/kube.
"""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

from reactor.config.documents import load_document
from reactor.testbed.virtual_node import VirtualNode
from tests.support.daemon import RunningDaemon, after_housekeeping, after_passes
from tests.support.processes import MIB, PAUSE, hold
from tests.support.waiting import eventually

PAGE: Final = Path(__file__).resolve().parents[2] / "docs/cookbook.md"
APPLICATIONS: Final = "user.slice/user-1000.slice/user@1000.service/app.slice"


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """The machine of a recipe: who survives, holding so many MiB each, and who grows and is evicted.

    `smaller` are the amounts for it, by those that are printed; `main_process` is what the hog's is called.
    """

    smaller: Mapping[str, str]
    survivors: Mapping[str, int]
    hog: str
    main_process: str = "job"

    @property
    def victim(self) -> str:
        return self.hog.rpartition("/")[2]


RECIPES: Final = {
    "A database server": Machine(
        smaller={"500Mi": "48Mi"},
        survivors={
            "system.slice/system-postgresql.slice": 100,
            "system.slice/ssh.service": 20,
            "user.slice/user-0.slice": 20,
            "system.slice/small.service": 4,
        },
        hog="system.slice/report.service",
    ),
    "A CI runner": Machine(
        smaller={"512Mi": "48Mi", "/ci.slice": ""},
        survivors={"docker-1.scope": 70},
        hog="run-r1.scope",
    ),
    "A desktop": Machine(
        smaller={"400Mi": "48Mi", "800Mi": "64Mi"},
        survivors={
            f"{APPLICATIONS}/app-gnome-editor-1.scope": 80,
            f"{APPLICATIONS}/dconf.service": 20,
            f"{APPLICATIONS}/gpg-agent.service": 20,
            "user.slice/user-1000.slice/user@1000.service/session.slice": 20,
        },
        hog=f"{APPLICATIONS}/app-gnome-chromium-2.scope",
        main_process="chromium",
    ),
    "A container host": Machine(
        smaller={"500Mi": "48Mi", "1Gi": "64Mi"},
        survivors={
            "machine.slice/machine-db.slice": 100,
            "machine.slice/libpod-1.scope": 20,
            "machine.slice/libpod-conmon-1.scope": 4,
        },
        hog="machine.slice/libpod-2.scope",
    ),
    "Beside or instead of other daemons": Machine(
        smaller={"5%": "20%", "10%": "25%"},
        survivors={
            "system.slice/apt-daily.service": 100,
            "system.slice/NetworkManager.service": 20,
            f"{APPLICATIONS}/mail.service": 20,
        },
        hog=f"{APPLICATIONS}/browser.scope",
        main_process="java",
    ),
    "Restart=always": Machine(
        smaller={"500Mi": "48Mi"},
        survivors={"guarded.slice/other.service": 20},
        hog="guarded.slice/worker.service",
    ),
}


def put_in_force(
    name: str, smaller: Mapping[str, str], daemon: RunningDaemon, node: VirtualNode
) -> dict[str, Any]:
    """Start the daemon with a recipe, and return it as a document; `smaller` are amounts by those printed."""
    _, _, section = PAGE.read_text(encoding="utf-8").partition(f"\n## {name}")
    (text,) = re.findall(r"^```yaml\n(.*?)^```", section.partition("\n## ")[0], re.MULTILINE | re.DOTALL)
    for printed, own in smaller.items():
        text, count = re.subn(rf"(?<=[ {{]){re.escape(printed)}(?=[ ,}}\n])", own, text)
        assert count == 1, printed
    text = re.sub(r"/(?=(?:user|system|machine|guarded)\.slice)", f"{node.cgroup}/", text)
    document = load_document(text, "the recipe")
    section = {**document["reactor"], "nodeCgroup": node.cgroup, "housekeepingInterval": "100ms"}
    daemon.configure({key: value for key, value in document.items() if key != "reactor"}, section)
    daemon.start()
    return document


def add(node: VirtualNode, path: str) -> str:
    """Make a cgroup and those above it, and return it."""
    parts = path.split("/")
    for count in range(1, len(parts) + 1):
        cgroup = f"{node.cgroup}/{'/'.join(parts[:count])}"
        if not node.tree.path(cgroup).exists():
            node.add_pod("/".join(parts[:count]))
    return f"{node.cgroup}/{path}"


def program(directory: Path, name: str) -> str:
    """Return this interpreter under another name, by which its process is called."""
    path = directory / name
    if not path.exists():
        path.symlink_to(os.path.realpath(sys.executable))
    return str(path)


@pytest.mark.parametrize("name", RECIPES)
def test_who_grows_is_evicted_and_those_that_the_recipe_keeps_stay(
    name: str, node: VirtualNode, daemon: RunningDaemon, tmp_path: Path
) -> None:
    machine = RECIPES[name]
    others = [node.spawn(add(node, path), hold(mib)) for path, mib in machine.survivors.items()]
    eventually(lambda: node.usage_bytes() > sum(machine.survivors.values()) * MIB, "their memory")
    put_in_force(name, machine.smaller, daemon, node)

    pod = add(node, machine.hog)
    node.spawn(pod, [program(tmp_path, machine.main_process), *PAUSE[1:]])
    after_housekeeping(daemon, 2)  # which reads what it is called

    # It leaves some: the kernel has nothing to kill for, however late the daemon is.
    hog = node.spawn(pod, hold(256 - node.usage_bytes() // MIB - 24))

    assert -signal.SIGKILL == hog.wait(60)
    eventually(lambda: bool(daemon.evictions()), "a journal line of the eviction")
    after_passes(daemon, 3)
    assert [machine.victim] == daemon.evicted()
    assert {None} == {one.poll() for one in others}


def test_a_service_that_is_restarted_and_evicted_thrice_is_a_problem(
    node: VirtualNode, daemon: RunningDaemon
) -> None:
    put_in_force("Restart=always", RECIPES["Restart=always"].smaller, daemon, node)
    worker = add(node, "guarded.slice/worker.service")
    for _ in range(3):
        assert -signal.SIGKILL == node.spawn(worker, hold(220)).wait(60)
        eventually(lambda: not daemon.status()["in_flight"], "the memory is back")

    eventually(lambda: "restart loop cgroup/worker.service" in daemon.status()["problems"], "the problem")


ASKED_FIRST: Final = {"500Mi": "48Mi", "1Gi": "100Mi", "10s": "200ms"}


@pytest.fixture
def asks_first(daemon: RunningDaemon, node: VirtualNode) -> None:
    """Put the recipe that asks first in force, with amounts and a grace period for this node."""
    put_in_force("SIGTERM first", ASKED_FIRST, daemon, node)


@pytest.mark.usefixtures("asks_first")
def test_a_pod_that_is_asked_in_time_ends_by_itself(node: VirtualNode, daemon: RunningDaemon) -> None:
    polite = node.spawn(add(node, "guarded.slice/worker.service"), hold(160))

    assert -signal.SIGTERM == polite.wait(30)
    eventually(lambda: bool(daemon.evictions()), "a journal line of the eviction")
    [line] = daemon.evictions()
    assert "memory.available<100Mi" == line["threshold"]["threshold"]


@pytest.mark.usefixtures("asks_first")
def test_a_pod_that_goes_on_growing_is_killed_whatever_its_grace_period(
    node: VirtualNode, daemon: RunningDaemon
) -> None:
    deaf = node.spawn(add(node, "guarded.slice/deaf.service"), hold(160, stubborn=True))
    eventually(lambda: bool(daemon.evictions()), "it is asked to end")
    grows = node.spawn(add(node, "guarded.slice/grows.service"), hold(60))

    assert -signal.SIGKILL == deaf.wait(60)  # of a grace period of 30 s
    assert grows.poll() is None
    both = {"memory.available<100Mi", "memory.available<48Mi"}
    eventually(
        lambda: both == {line["threshold"]["threshold"] for line in daemon.evictions()}, "both decisions"
    )
