"""What deploy/ holds, on a real node: the image runs from the manifests, with the rights that they give."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from datetime import datetime
from itertools import pairwise
from typing import IO

import pytest
from cluster import Cluster, Pods, is_evicted
from deployed import NAMESPACE, Deployment
from machine import wait_until

# The machine's own limits: a pod's cpu cgroup (v1) has no real-time runtime; CAP_SYS_RESOURCE may be missing.
BEYOND_THE_MANIFESTS = {"SCHED_FIFO 50", "oom_score_adj -999"}
ENDING = "SIGTERM: ending"
ENDED = "ended after"
ARMED = "source memcg-eventfd: armed"
STATUS = ["/usr/bin/python3", "-I", "-m", "reactor", "status", "--output", "json"]


@pytest.fixture
def deployment(cluster: Cluster) -> Iterator[Deployment]:
    """Return the manifests, applied, for the virtual node."""
    made = Deployment(
        cluster,
        {
            "evictionHard": {"memory.available": "128Mi"},
            "evictionPressureTransitionPeriod": "2s",
            "reactor": {"nodeCgroup": cluster.node.cgroup},
        },
    )
    made.apply()
    yield made
    made.remove()


def said_at(log: str, text: str) -> float:
    """Return when a line with `text` was first written, in seconds."""
    line = next(line for line in log.splitlines() if text in line)
    stamp = re.sub(r"(\.\d{6})\d*Z", r"\1+00:00", line.split()[0])
    return datetime.fromisoformat(stamp).timestamp()


def test_the_server_takes_the_daemon_set(deployment: Deployment) -> None:
    spec = deployment.validate_daemon_set()["spec"]["template"]["spec"]
    assert spec["priority"] == 2000001000 if "priority" in spec else spec["priorityClassName"]


def test_a_pod_of_the_template_guards_the_node_with_what_it_is_granted(
    cluster: Cluster, deployment: Deployment, pods: Pods
) -> None:
    deployment.create_pod("reactor-a")
    deployment.wait_ready("reactor-a")
    status = json.loads(deployment.exec("reactor-a", *STATUS).stdout)
    assert set(status["problems"]) <= BEYOND_THE_MANIFESTS
    assert {each["signal"] for each in status["signals"] if each["available"] is None} == set()
    assert "forbidden" not in deployment.log("reactor-a")

    pods.create("hog", ["grow", "700", "200"])
    pods.wait("hog", is_evicted, "is evicted")
    assert deployment.is_ready("reactor-a")


def test_the_image_has_no_shell_and_its_root_can_not_be_written(deployment: Deployment) -> None:
    deployment.create_pod("reactor-a")
    deployment.wait_ready("reactor-a")
    assert deployment.exec("reactor-a", "/bin/sh", "-c", "true").returncode != 0
    writes = ["/usr/bin/python3", "-I", "-c", "open('/opt/reactor/x', 'w')"]
    assert "Read-only file system" in deployment.exec("reactor-a", *writes).stderr


def test_a_rolling_update_leaves_the_node_alone_for_less_than_a_pods_start(
    deployment: Deployment, pods: Pods
) -> None:
    deployment.create_pod("reactor-a")
    deployment.wait_ready("reactor-a")
    deployment.create_pod("reactor-b")
    wait_until(lambda: "standing by" in deployment.log("reactor-b"), "the new pod stands by")
    deployment.wait_ready("reactor-b")
    assert ARMED not in deployment.log("reactor-b")
    surge_seconds = unwatched_seconds(deployment, "reactor-a", "reactor-b")

    with open_log(deployment, "reactor-b") as old:
        deployment.delete_pod("reactor-b")
        deployment.wait_gone("reactor-b")
        removed_at = time.time()
        deployment.create_pod("reactor-c")
        wait_until(lambda: deployment.log_paths("reactor-c"), "the third pod's container is started")
        started_at = time.time()
        wait_until(lambda: ARMED in deployment.log("reactor-c"), "the third pod guards the node")
        said = old.read()
        ends = [said_at(said, ENDING), said_at(said, ENDED), removed_at, started_at]
        ends.append(said_at(deployment.log("reactor-c"), ARMED))
    anew_seconds = ends[-1] - ends[0]
    end, removal, start, arming = (later - earlier for earlier, later in pairwise(ends))
    print(f"nobody watched for {surge_seconds:.2f} s with maxSurge, {anew_seconds:.2f} s without: the daemon")
    print(
        f"ended in {end:.2f} s, its pod was removed {removal:.2f} s later, the next one's container started"
    )
    print(f"{start:.2f} s later, and was armed {arming:.2f} s later")
    assert surge_seconds < anew_seconds

    pods.create("hog", ["grow", "700", "200"])
    pods.wait("hog", is_evicted, "is ended")


@pytest.mark.parametrize("change", [("128Mi", "128Xi"), ("evictionHard:", "evictionHard: [")])
def test_a_new_pod_whose_configuration_is_refused_is_never_ready_and_the_old_one_goes_on(
    deployment: Deployment, pods: Pods, change: tuple[str, str]
) -> None:
    deployment.create_pod("reactor-a")
    deployment.wait_ready("reactor-a")
    deployment.write_configuration(lambda text: text.replace(*change))
    try:
        deployment.create_pod("reactor-b")
        wait_until(lambda: "standing by" in deployment.log("reactor-b"), "the new pod stands by")
        wait_until(lambda: refused_probes(deployment, "reactor-b") >= 3, "its probe has failed thrice")
        assert not deployment.is_ready("reactor-b")
        assert 1 == len(deployment.log_paths("reactor-b"))  # it was not restarted for that
        assert deployment.is_ready("reactor-a")
    finally:
        deployment.write_configuration()
    deployment.delete_pod("reactor-a")
    wait_until(lambda: ARMED in deployment.log("reactor-b"), "the new pod guards the node")
    pods.create("hog", ["grow", "700", "200"])
    pods.wait("hog", is_evicted, "is ended")
    assert not deployment.is_ready("reactor-b")


def refused_probes(deployment: Deployment, name: str) -> int:
    """Return how often the kubelet reports that the pod is not ready for its configuration."""
    events = deployment.cluster.api.get(f"/api/v1/namespaces/{NAMESPACE}/events")["items"]
    return sum(
        one.get("count", 1)
        for one in events
        if one["involvedObject"].get("name") == name
        and one["reason"] == "Unhealthy"
        and "the file is refused" in one["message"]
    )


def unwatched_seconds(deployment: Deployment, old: str, new: str) -> float:
    """Delete the old pod; return how long it took the new one to stand in for it."""
    with open_log(deployment, old) as log:
        deployment.delete_pod(old)
        wait_until(lambda: ARMED in deployment.log(new), "the new pod guards the node")
        return said_at(deployment.log(new), ARMED) - said_at(log.read(), ENDING)


def open_log(deployment: Deployment, name: str) -> IO[str]:
    """Return a pod's log, open: the kubelet removes its file with the pod."""
    return deployment.log_paths(name)[-1].open()
