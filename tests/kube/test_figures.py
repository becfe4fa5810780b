"""The reactor's figures are the kubelet's: its Summary API says the same of a node, within one percent."""

from __future__ import annotations

from collections.abc import Callable

from api import Object
from cluster import Cluster, Pods
from machine import wait_until
from node import MIB, PODS_BYTES
from reactor_daemon import Reactor

TOLERANCE = 0.01


def available(reactor: Reactor, signal: str) -> int:
    """Return what the reactor says is left of a signal."""
    found = {each["signal"]: each["available"] for each in reactor.status()["signals"]}
    return int(found[signal])


def agree(ours: Callable[[], int], theirs: Callable[[], int], capacity: int, what: str) -> None:
    """Wait until both say the same, give or take 1 % of the capacity: the kubelet's are seconds old."""

    def close() -> bool:
        return abs(ours() - theirs()) <= TOLERANCE * capacity

    try:
        wait_until(close, what, 45, pause=1.0)
    except TimeoutError as error:
        raise TimeoutError(f"{error}: ours {ours()}, the kubelet's {theirs()}") from None


def system_container(summary: Object, name: str) -> Object:
    (found,) = [each for each in summary["node"]["systemContainers"] if each["name"] == name]
    return dict(found)


def test_what_the_pods_use_is_what_the_kubelet_says(cluster: Cluster, pods: Pods, reactor: Reactor) -> None:
    reactor.configure({"evictionHard": {"memory.available": "64Mi"}})
    reactor.start()
    pods.run("holder", ["hold", "200"])

    def kubelets() -> int:
        return PODS_BYTES - int(system_container(cluster.node.summary(), "pods")["memory"]["workingSetBytes"])

    agree(
        lambda: available(reactor, "allocatableMemory.available"),
        kubelets,
        PODS_BYTES,
        "both say the same of the pods' memory",
    )
    assert available(reactor, "allocatableMemory.available") < PODS_BYTES - 199 * MIB


def test_what_the_machine_has_is_what_the_kubelet_says(cluster: Cluster, reactor: Reactor) -> None:
    """The machine as it is, not the virtual node: looked at, by a daemon that only thinks."""
    zero = {
        "memory.available": "1Mi",
        "nodefs.available": "1Mi",
        "nodefs.inodesFree": "1",
        "pid.available": "1",
    }
    reactor.configure({"evictionHard": zero}, {"nodeCgroup": "/", "dryRun": True})
    reactor.start()
    figures: dict[str, tuple[Callable[[Object], int], Callable[[Object], int]]] = {
        "memory.available": (
            lambda node: int(node["memory"]["availableBytes"]),
            lambda node: int(node["memory"]["availableBytes"] + node["memory"]["workingSetBytes"]),
        ),
        "nodefs.available": (
            lambda node: int(node["fs"]["availableBytes"]),
            lambda node: int(node["fs"]["capacityBytes"]),
        ),
        "nodefs.inodesFree": (
            lambda node: int(node["fs"]["inodesFree"]),
            lambda node: int(node["fs"]["inodes"]),
        ),
        "pid.available": (
            lambda node: int(node["rlimit"]["maxpid"]) - int(node["rlimit"]["curproc"]),
            lambda node: int(node["rlimit"]["maxpid"]),
        ),
    }
    for signal, (theirs, capacity) in figures.items():
        agree(
            lambda signal=signal: available(reactor, signal),  # type: ignore[misc]
            lambda theirs=theirs: theirs(cluster.node.summary()["node"]),  # type: ignore[misc]
            capacity(cluster.node.summary()["node"]),
            f"both say the same of {signal}",
        )


def test_what_a_pod_uses_is_what_the_kubelet_says(cluster: Cluster, pods: Pods, reactor: Reactor) -> None:
    reactor.configure({"evictionHard": {"memory.available": "64Mi"}})
    reactor.start()
    pods.run("holder", ["hold", "200"])

    def ours() -> int:
        (place,) = reactor.explain(f"{pods.namespace}/holder")["ranking"]
        return int(place["usage"])

    def kubelets() -> int:
        for each in cluster.node.summary()["pods"]:
            if each["podRef"]["namespace"] == pods.namespace:
                return int(each.get("memory", {}).get("workingSetBytes", 0))
        return 0

    agree(ours, kubelets, 200 * MIB, "both say the same of the pod's memory")
