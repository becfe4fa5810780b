"""The whole daemon on a virtual node of this machine's kernel: who is evicted, and what is said of it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from reactor.shadow import Verdict, node_of
from reactor.testbed.virtual_node import VirtualNode
from tests.support.daemon import RunningDaemon, after_housekeeping
from tests.support.processes import MIB, PAUSE, hog, hold
from tests.support.waiting import eventually

# Slowly enough to be seen on the way, and no more than the virtual node's limit.
FORKS = """
import os, signal, time
for _ in range(280):
    try:
        if os.fork() == 0:
            signal.pause()
    except OSError:
        pass
    time.sleep(0.002)
signal.pause()
"""
HARD = {"evictionHard": {"memory.available": "64Mi"}}


def test_hog_is_evicted_the_others_live_and_every_word_of_it_is_kept(
    node: VirtualNode, daemon: RunningDaemon
) -> None:
    guaranteed = node.add_pod("guaranteed", request_bytes=48 * MIB, limit_bytes=48 * MIB)
    burstable = node.add_pod("burstable", request_bytes=16 * MIB)
    hog = node.add_pod("hog")
    survivors = [node.spawn(guaranteed, hold(24)), node.spawn(burstable, hold(40))]
    daemon.configure(HARD)
    daemon.start()
    descriptors = _at_rest(daemon)

    victim = node.spawn(hog, hold(140))  # the node has room for it: the kernel has nothing to kill for
    eventually(lambda: bool(daemon.evictions()), "a journal line of the eviction")

    assert -signal.SIGKILL == victim.wait(60)
    assert [None, None] == [survivor.poll() for survivor in survivors]
    (line,) = daemon.evictions()
    assert ["cgroup/hog"] == [eviction["pod"] for eviction in line["evictions"]]
    _assert_complete(line)
    _assert_status(daemon)
    assert daemon.rss_mib() < 36
    # Of all that an eviction opens nothing stays open; the journal is the steward's, the pods as before.
    eventually(lambda: daemon.descriptors() == descriptors, f"no other descriptors than {descriptors}")
    assert daemon.stop() == 0
    assert not daemon.socket_path.exists()


def test_where_the_kernel_can_not_kill_the_daemon_says_so_and_does(
    node: VirtualNode, daemon: RunningDaemon
) -> None:
    """On cgroup v1, and where eBPF is refused: one line, and user space goes on as ever."""
    hog = node.add_pod("hog")
    daemon.configure(HARD, {"kernelKill": "hard"})
    daemon.start()
    status = daemon.status()
    assert status["kernel_kill"]["mode"] == "hard"
    if status["kernel_kill"]["state"] == "armed":
        pytest.skip("the kernel can kill here: tests/vm/guest/test_warrants.py")
    assert status["problems"]["kernelKill"]
    assert "\n" not in status["problems"]["kernelKill"]
    victim = node.spawn(hog, hold(220))
    eventually(lambda: bool(daemon.evictions()), "a journal line of the eviction")
    assert -signal.SIGKILL == victim.wait(60)
    (line,) = daemon.evictions()
    assert line["evictions"][0]["warrant"] is None
    assert status["kernel_kill"]["counted"] == {}


def test_status_says_who_holds_memory_now_and_not_at_the_last_pass(
    node: VirtualNode, daemon: RunningDaemon
) -> None:
    daemon.configure(HARD, {"housekeepingInterval": "10m"})
    with hog(node.tree.path(node.add_pod("pod"))) as process:
        daemon.start()
        process.hold_mib(64)
        held = daemon.status()
    ended = daemon.status()

    assert 64 * MIB <= held["memory"]["pods_bytes"] <= held["memory"]["used_bytes"]
    assert ended["memory"]["outside_bytes"] < 32 * MIB
    for status in (held, ended):
        (memory,) = (one for one in status["signals"] if one["signal"] == "memory.available")
        assert memory["capacity"] - memory["available"] == status["memory"]["used_bytes"]


def _at_rest(daemon: RunningDaemon) -> list[str]:
    """Return what the daemon holds open when nothing is being looked at just then.

    What a pod asks for is held open until the pod is a second old and was read once more.
    """
    seen: list[list[str]] = []

    def unchanged() -> bool:
        seen.append(daemon.descriptors())
        if any(path.endswith(("memory.soft_limit_in_bytes", "memory.low")) for path in seen[-1]):
            return False
        return len(seen) >= 5 and all(listed == seen[-1] for listed in seen[-5:])

    eventually(unchanged, "descriptors that stay the same")
    return seen[-1]


def _assert_complete(line: dict) -> None:
    assert line["threshold"]["threshold"] == "memory.available<64Mi"
    assert line["threshold"]["value"] == 64 * MIB
    assert 0 <= line["threshold"]["available"] < 64 * MIB
    assert line["threshold"]["capacity"] == 256 * MIB
    assert line["observations"]["memory.available"]["available"] == line["threshold"]["available"]
    assert line["conditions"] == ["MemoryPressure"]
    assert {wake["kind"] for wake in line["wakes"]} == {"memory"}
    ranking = line["ranking"]
    assert [place["pod"] for place in ranking] == ["cgroup/hog", "cgroup/burstable", "cgroup/guaranteed"]
    assert [place["qos_class"] for place in ranking] == ["BestEffort", "Burstable", "Guaranteed"]
    assert [place["exceeds_request"] for place in ranking] == [True, True, False]
    assert all(place["usage"] > 0 and place["because"] for place in ranking)
    timing = line["timing"]
    stages = ("woke_ns", "started_ns", "observed_ns", "decided_ns", "killed_ns", "freed_ns")
    assert [timing[stage] for stage in stages] == sorted(timing[stage] for stage in stages)
    assert line["evictions"][0]["outcome"] == "killed"
    assert line["evictions"][0]["processes"] == 1


def _assert_status(daemon: RunningDaemon) -> None:
    document = daemon.status()
    memory = next(one for one in document["signals"] if one["signal"] == "memory.available")
    assert memory["capacity"] == 256 * MIB
    assert memory["source"]["health"] == "armed"
    pressure = next(one for one in document["conditions"] if one["condition"] == "MemoryPressure")
    assert pressure["in_force"]
    assert pressure["since"] is not None
    assert ["cgroup/hog"] == [
        one["pod"] for decision in document["decisions"] for one in decision["evictions"]
    ]
    table = daemon.ask("status").stdout
    in_order = "next for memory.available: cgroup/burstable (uses "
    for expected in ("memory.available", "hard 64Mi", "MemoryPressure", "cgroup/hog", "armed", in_order):
        assert expected in table
    explained = daemon.ask("explain", "hog")
    assert explained.returncode == 0
    assert "The node was low on resource: memory." in explained.stdout
    # The hog, of which an empty cgroup is left, is not the next to go.
    for name, places in {"burstable": [1], "hog": [], "guaranteed": [2]}.items():
        found = json.loads(daemon.ask("explain", name, "--output", "json").stdout)["ranking"]
        assert [(f"cgroup/{name}", place) for place in places] == [
            (one["pod"], one["place"]) for one in found
        ]
    unknown = daemon.ask("explain", "nobody")
    assert unknown.returncode == 1


def test_no_pod_is_evicted_while_memory_stays_above_the_threshold(
    node: VirtualNode, daemon: RunningDaemon
) -> None:
    pod = node.add_pod("pod")
    daemon.configure(HARD, {"housekeepingInterval": "100ms"})
    daemon.start()
    process = node.spawn(pod, hold(150))

    eventually(lambda: daemon.status()["passes"] > 20, "twenty passes")

    assert process.poll() is None
    assert daemon.evictions() == []


def test_dry_run_names_the_pod_that_would_be_evicted_and_touches_none(
    node: VirtualNode, daemon: RunningDaemon
) -> None:
    hog = node.add_pod("hog")
    daemon.configure(HARD, {"housekeepingInterval": "500ms"})
    daemon.start("--dry-run")

    process = node.spawn(hog, hold(210))
    eventually(lambda: bool(daemon.evictions()), "a journal line of the eviction")

    (line,) = daemon.evictions()[:1]
    assert line["dry_run"]
    assert line["evictions"][0]["outcome"] == "dry-run"
    assert process.poll() is None
    assert daemon.status()["dry_run"]
    assert "dry run" in daemon.ask("status").stdout
    # What is only thought of is freed by nothing: the pod stays in the order, and is reported once.
    after_housekeeping(daemon, 2)
    assert 1 == len(daemon.evictions())
    assert [] == daemon.status()["in_flight"]
    assert "still to be freed" not in daemon.journal_path.read_text()
    (place,) = json.loads(daemon.ask("explain", "hog", "--output", "json").stdout)["ranking"]
    assert ("cgroup/hog", 1) == (place["pod"], place["place"])
    # No kubelet and no OOM killer has done it instead.
    with daemon.journal_path.open("rb") as journal:
        compared = node_of(journal, "this node")
    assert [(Verdict.ALONE, "cgroup/hog", 0)] == [
        (pair.verdict, pair.pod, compared.unread) for pair in compared.pairs
    ]


def test_a_shortage_in_which_no_pod_can_be_evicted_is_said_once_and_a_newcomer_is_evicted(
    node: VirtualNode, daemon: RunningDaemon, tmp_path: Path
) -> None:
    database = node.spawn(node.add_pod("database.service"), hold(200))
    told = tmp_path / "told"
    daemon.configure(
        HARD,
        {
            "pods": {"parents": [node.cgroup], "never": ["database.service"]},
            "onNoVictim": [["/bin/sh", "-c", f"cat >> {told}"]],
            "housekeepingInterval": "1s",
        },
    )
    daemon.start()
    eventually(lambda: "no evictable pod" in daemon.status()["problems"], "a problem")
    problem = daemon.status()["problems"]["no evictable pod"]
    assert "memory.available<64Mi is met" in problem
    assert "by cgroup/database.service (pods.never: unit database.service)" in problem
    after_housekeeping(daemon, 2)
    (line,) = [one for one in daemon.lines() if one["kind"] == "no-victim"]
    assert ("memory.available", 256 * MIB) == (line["signal"], line["capacity"])
    assert 1 == daemon.log().count("no pod can be evicted;")
    eventually(told.exists, "the command for it has run")
    assert "no-victim" == json.loads(told.read_text())["event"]

    newcomer = node.spawn(node.add_pod("newcomer"), hold(8))
    assert -signal.SIGKILL == newcomer.wait(60)
    assert None is database.poll()


def test_soft_eviction_asks_first_and_kills_when_the_grace_period_is_over(
    node: VirtualNode, daemon: RunningDaemon
) -> None:
    stubborn = node.add_pod("stubborn")
    daemon.configure(
        {
            "evictionSoft": {"memory.available": "64Mi"},
            "evictionSoftGracePeriod": {"memory.available": "200ms"},
            "evictionMaxPodGracePeriod": 1,
            "evictionHard": {},
        },
        {"housekeepingInterval": "5m"},  # no tick comes to help,
    )
    daemon.start()

    process = node.spawn(stubborn, hold(210, stubborn=True))
    eventually(lambda: bool(daemon.evictions()), "a journal line of the eviction")

    assert -signal.SIGKILL == process.wait(60)
    (line,) = daemon.evictions()
    (eviction,) = line["evictions"]
    assert (eviction["grace_period_seconds"], eviction["outcome"]) == (1, "killed")
    assert eviction["killed_ns"] - line["timing"]["decided_ns"] >= 1_000_000_000


def test_soft_eviction_of_a_pod_that_obeys_never_kills(node: VirtualNode, daemon: RunningDaemon) -> None:
    mild = node.add_pod("mild")
    daemon.configure(
        {
            "evictionSoft": {"memory.available": "64Mi"},
            "evictionSoftGracePeriod": {"memory.available": "200ms"},
            "evictionMaxPodGracePeriod": 20,
            "evictionHard": {},
        },
        {"housekeepingInterval": "100ms"},
    )
    daemon.start()

    process = node.spawn(mild, hold(210))
    eventually(lambda: bool(daemon.evictions()), "a journal line of the eviction")

    assert -signal.SIGTERM == process.wait(60)
    assert daemon.evictions()[0]["evictions"][0]["outcome"] == "terminated"


def test_pod_that_starts_after_the_daemon_is_ranked_at_once(node: VirtualNode, daemon: RunningDaemon) -> None:
    old = node.spawn(node.add_pod("old", request_bytes=64 * MIB), PAUSE)
    daemon.configure(HARD, {"housekeepingInterval": "10m"})
    daemon.start()

    hog = node.spawn(node.add_pod("newcomer"), hold(220))

    assert -signal.SIGKILL == hog.wait(60)
    assert old.poll() is None


def test_two_pods_are_evicted_one_after_the_other_and_never_one_too_many(
    node: VirtualNode, daemon: RunningDaemon
) -> None:
    calm = node.spawn(node.add_pod("calm", request_bytes=64 * MIB), hold(32))
    first, second = node.add_pod("first"), node.add_pod("second")
    daemon.configure(HARD)
    daemon.start()

    victims: list[subprocess.Popen[bytes]] = []
    for pod in (first, second):
        victims.append(node.spawn(pod, hold(190)))
        eventually(lambda: victims[-1].poll() is not None, "the hog's end")
    eventually(lambda: len(daemon.evictions()) == 2, "two journal lines")

    assert ["cgroup/first", "cgroup/second"] == [line["evictions"][0]["pod"] for line in daemon.evictions()]
    assert calm.poll() is None


def test_nothing_of_the_start_up_exercise_is_left(node: VirtualNode, daemon: RunningDaemon) -> None:
    daemon.configure(HARD)
    daemon.start()

    roots = {node.tree.memory_root, node.tree.freezer_root, node.tree.cpu_root} - {None}
    names = [f"reactor-exercise-{pid}" for pid in daemon.processes()]  # another daemon may be starting
    assert [] == [name for root in roots for name in names if (Path(str(root)) / name).exists()]
    assert "kill path" not in daemon.status()["problems"]


def test_fork_bomb_is_evicted_for_its_processes_between_two_ticks(
    node: VirtualNode, daemon: RunningDaemon
) -> None:
    if node.tree.pids_root is None:
        pytest.skip("no pids controller; mount one")
    calm = node.spawn(node.add_pod("calm"), PAUSE)
    bomb = node.add_pod("bomb")
    (node.tree.path(node.cgroup, "pids") / "pids.max").write_text("300")
    daemon.configure({"evictionHard": {"pid.available": "100"}}, {"housekeepingInterval": "10m"})
    daemon.start()
    _wait_for_first_housekeeping(daemon)

    forking = node.spawn(bomb, [sys.executable, "-S", "-c", FORKS])
    eventually(lambda: bool(daemon.evictions()), "a journal line of the eviction")

    assert -signal.SIGKILL == forking.wait(60)
    assert calm.poll() is None
    (line,) = daemon.evictions()
    assert ["cgroup/bomb"] == [eviction["pod"] for eviction in line["evictions"]]
    assert "processes" in {wake["source"] for wake in line["wakes"]}
    assert line["conditions"] == ["PIDPressure"]
    assert line["ranking"][0]["usage"] > 100


def _wait_for_first_housekeeping(daemon: RunningDaemon) -> None:
    """Wait until the pass of the start's housekeeping is made: the next comes after a whole interval.

    That pass is made in the turn in which the filesystems have been observed, before a further answer.
    """

    def are_filesystems_observed() -> bool:
        sources = daemon.status()["sources"]
        return any(one["name"] == "filesystems" and one["health"] == "armed" for one in sources)

    eventually(are_filesystems_observed, "the start's housekeeping")
    daemon.status()
