"""A recipe of docs/cookbook.md on real cgroups: SIGTERM at the upper threshold, SIGKILL at the lower one."""

from __future__ import annotations

import re
import signal
from pathlib import Path
from typing import Any, Final

import pytest

from reactor.config.documents import load_document
from reactor.lab.virtual_node import VirtualNode
from tests.support.daemon import RunningDaemon
from tests.support.processes import hold
from tests.support.waiting import eventually

PAGE: Final = Path(__file__).resolve().parents[2] / "docs/cookbook.md"


@pytest.fixture
def recipe(daemon: RunningDaemon, node: VirtualNode) -> dict[str, Any]:
    """Put the recipe in force on a virtual node of 256 MiB, with amounts and a grace period for that."""
    _, _, section = PAGE.read_text(encoding="utf-8").partition("\n## SIGTERM first")
    (text,) = re.findall(r"^```yaml\n(.*?)^```", section.partition("\n## ")[0], re.MULTILINE | re.DOTALL)
    for printed, smaller in (
        ("500Mi", "48Mi"),
        ("1Gi", "100Mi"),
        ("10s", "200ms"),
        ("/guarded.slice", node.cgroup),
    ):
        assert text.count(printed) == 1
        text = text.replace(printed, smaller)
    document = load_document(text, "the recipe")
    daemon.configure(
        {key: value for key, value in document.items() if key != "reactor"},
        {**document["reactor"], "housekeepingInterval": "100ms"},
    )
    daemon.start()
    return document


@pytest.mark.usefixtures("recipe")
def test_a_pod_that_is_asked_in_time_ends_by_itself(node: VirtualNode, daemon: RunningDaemon) -> None:
    polite = node.spawn(node.add_pod("worker.service"), hold(160))

    assert -signal.SIGTERM == polite.wait(30)
    eventually(lambda: bool(daemon.evictions()), "a journal line of the eviction")
    [line] = daemon.evictions()
    assert "memory.available<100Mi" == line["threshold"]["threshold"]


@pytest.mark.usefixtures("recipe")
def test_a_pod_that_goes_on_growing_is_killed_whatever_its_grace_period(
    node: VirtualNode, daemon: RunningDaemon
) -> None:
    deaf = node.spawn(node.add_pod("deaf.service"), hold(160, stubborn=True))
    eventually(lambda: bool(daemon.evictions()), "it is asked to end")
    grows = node.spawn(node.add_pod("grows.service"), hold(60))

    assert -signal.SIGKILL == deaf.wait(20)  # of a grace period of 30 s
    assert grows.poll() is None
    assert {"memory.available<100Mi", "memory.available<48Mi"} == {
        line["threshold"]["threshold"] for line in daemon.evictions()
    }
