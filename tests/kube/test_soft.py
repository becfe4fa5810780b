"""A soft eviction as a watcher of the pod sees it: a Job's controller judges by each state, not the last."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

import pytest
from api import Object
from cluster import Pods, is_evicted, is_running
from machine import wait_until
from reactor_daemon import Reactor

_ENDS_AT_ONCE: Final = "trap 'exit 1' TERM; while :; do sleep 0.05; done"
_HOLDS_MEMORY: Final[Mapping[str, Any]] = {"command": ["sh", "-c", f"/load hold 300 & {_ENDS_AT_ONCE}"]}
_HOLDS_FILES: Final[Mapping[str, Any]] = {
    "command": ["sh", "-c", f"dd if=/dev/zero of=/cache/files bs=1M count=64; sync; {_ENDS_AT_ONCE}"],
    "volumeMounts": [{"name": "cache", "mountPath": "/cache"}],
}
_SHORT_OF: Final = {
    "memory": ({"memory.available": "600Mi"}, {"memory.available": "1s"}, _HOLDS_MEMORY),
    "files": ({"nodefs.available": "99%"}, {"nodefs.available": "1s"}, _HOLDS_FILES),
}


def states(pods: Pods, since: Object) -> list[Object]:
    """Return every state that a watcher of the pod has seen since this one."""
    metadata = since["metadata"]
    query = f"watch=1&timeoutSeconds=1&resourceVersion={metadata['resourceVersion']}"
    selector = f"fieldSelector=metadata.name={metadata['name']}"
    text = pods.cluster.api.request("GET", f"{pods.path}?{query}&{selector}")
    return [json.loads(line)["object"] for line in text.splitlines()]


def is_disruption_target(pod: Object) -> bool:
    """Tell whether a pod's status says that the node ends it."""
    return any(
        (one["type"], one["status"], one.get("reason"))
        == ("DisruptionTarget", "True", "TerminationByKubelet")
        for one in pod["status"].get("conditions", [])
    )


@pytest.mark.parametrize("short_of", _SHORT_OF)
def test_a_failed_pod_of_a_job_is_a_disruption_target_in_every_state_that_is_seen(
    pods: Pods, reactor: Reactor, short_of: str
) -> None:
    thresholds, grace_periods, container = _SHORT_OF[short_of]
    reactor.configure(
        {
            "evictionHard": {"memory.available": "32Mi"},
            "evictionSoft": thresholds,
            "evictionSoftGracePeriod": grace_periods,
            "evictionMaxPodGracePeriod": 20,
            "imageMinimumGCAge": "24h",
        }
    )
    spec = {"terminationGracePeriodSeconds": 20, "volumes": [{"name": "cache", "emptyDir": {}}]}
    worker = pods.run("worker", [], container=container, spec=spec)
    reactor.start()
    pods.wait("worker", is_evicted, "is evicted")
    wait_until(lambda: pods.events("Evicted"), "there is an event")
    seen = states(pods, worker)
    failed = [one for one in seen if one["status"]["phase"] == "Failed"]
    assert failed
    assert all(map(is_disruption_target, failed)), failed
    # It says why before its phase changes, and no owner replaces it while it runs.
    ordered = [one for one in seen if one["status"]["phase"] == "Running" and is_disruption_target(one)]
    assert ordered
    assert ordered[0]["status"]["reason"] == "Evicted"
    assert is_running(ordered[0])
    assert len(pods.events("Evicted")) == 1
