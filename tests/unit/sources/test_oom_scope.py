"""Whose limit an OOM kill was at, as seen from the guarded node."""

from __future__ import annotations

import pytest

from reactor.model.oom import OomScope
from reactor.sources.oom_scope import GuardedNode

MACHINE = GuardedNode("/", ["/kubepods", "/machine.slice/vms"])
VIRTUAL = GuardedNode("/lab/node", ["/lab/node/pods"])


def test_guarded_are_the_node_and_whatever_holds_parents_of_pods_in_it() -> None:
    assert MACHINE.cgroups == ("/kubepods", "/machine.slice", "/machine.slice/vms")
    assert VIRTUAL.cgroups == ("/lab/node", "/lab/node/pods")
    assert GuardedNode("/lab/node", ["/lab/node"]).cgroups == ("/lab/node",)
    assert GuardedNode("/", []).cgroups == ()


@pytest.mark.parametrize(
    ("node", "at_a_limit", "limit", "victim", "expected"),
    [
        (MACHINE, False, None, "/kubepods/a", OomScope.NODE),
        (MACHINE, False, None, None, OomScope.NODE),
        (MACHINE, True, "/kubepods", "/kubepods/a", OomScope.NODE),
        (MACHINE, True, "/machine.slice", "/machine.slice/vms/a", OomScope.NODE),
        (MACHINE, True, "/kubepods/a", "/kubepods/a/app", OomScope.OWN_LIMIT),
        (MACHINE, True, "/system.slice/cron.service", "/system.slice/cron.service", OomScope.OWN_LIMIT),
        (MACHINE, True, None, None, OomScope.OWN_LIMIT),
        (VIRTUAL, True, "/lab/node", "/lab/node/pods/a", OomScope.NODE),
        (VIRTUAL, True, "/lab/node/pods", "/lab/node/pods/a", OomScope.NODE),
        (VIRTUAL, True, "/lab/node/pods/a", "/lab/node/pods/a", OomScope.OWN_LIMIT),
        (VIRTUAL, True, "/lab", "/lab/node/pods/a", OomScope.ABOVE_NODE),
        (VIRTUAL, False, None, "/lab/node/pods/a", OomScope.ABOVE_NODE),
        (VIRTUAL, True, "/lab", "/lab/other", None),
        (VIRTUAL, False, None, "/lab/other", None),
        (VIRTUAL, False, None, None, None),
        (VIRTUAL, True, "/lab/nodes", "/lab/nodes", None),
    ],
)
def test_scope_of_a_kill(
    node: GuardedNode, *, at_a_limit: bool, limit: str | None, victim: str | None, expected: OomScope | None
) -> None:
    assert expected == node.scope(at_a_limit=at_a_limit, limit=limit, victim=victim)
