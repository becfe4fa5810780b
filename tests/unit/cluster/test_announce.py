"""Announcements against an API server that keeps a pod's status, and fails as it is told to."""

from __future__ import annotations

import copy
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import trio

from reactor.cluster.announce import Announcement, AnnouncementFile, Announcer, soft_resources
from reactor.kube.pods import PodStore
from reactor.model.signals import Resource
from tests.support.api_faults import Asked, Reply, pod_document, refusal, served
from tests.support.waiting import until

_MESSAGE = "The node was low on resource: memory."

_SOFT = """
evictionHard: {memory.available: 100Mi}
evictionSoft: {nodefs.available: 15%, nodefs.inodesFree: 10%}
evictionSoftGracePeriod: {nodefs.available: 1m, nodefs.inodesFree: 1m}
"""


def announcement(pod: str = "web", **changes: Any) -> Announcement:
    return Announcement(
        **{
            "uid": f"uid-{pod}",
            "name": pod,
            "namespace": "default",
            "message": _MESSAGE,
            "annotations": {"starved_resource": "memory"},
            "at_unix_seconds": 60.0,
            **changes,
        }
    )


def _merged(status: Any, patch: Any) -> dict[str, Any]:
    """Return a status after a strategic merge patch: null removes, conditions are merged by their type."""
    conditions = {one["type"]: one for one in status.get("conditions", ())}
    for one in patch.get("conditions", ()):
        if one.get("$patch") == "delete":
            conditions.pop(one["type"], None)
        else:
            conditions[one["type"]] = {**conditions.get(one["type"], {}), **one}
    merged = {**status, **patch, "conditions": list(conditions.values())}
    return {key: value for key, value in merged.items() if value is not None}


class _Server:
    """Keeps pods and events; `faults` answer first, one each."""

    def __init__(self, *names: str) -> None:
        self.pods = {name: pod_document(name) for name in names}
        self.events: dict[str, Any] = {}
        self.faults: list[Callable[[Asked], Reply | None]] = []
        self.patches = 0
        self.on_patch: Callable[[], None] = lambda: None

    def __call__(self, asked: Asked) -> Reply | None:
        if self.faults:
            return self.faults.pop(0)(asked)
        if asked.path.endswith("/events"):
            name = asked.body["metadata"]["name"]
            if name in self.events:
                return refusal(409, "exists")
            self.events[name] = asked.body
            return Reply(status=201, body=asked.body)
        name = asked.path.split("/")[-2]
        pod = self.pods.get(name)
        if pod is None:
            return refusal(404, "not found")
        if asked.body["metadata"]["uid"] != pod["metadata"]["uid"]:
            return refusal(409, "uid mismatch")
        self.patches += 1
        pod["status"] = _merged(pod["status"], asked.body["status"])
        self.on_patch()
        return Reply(body=pod)


class _Node:
    """Has something left until `let_go`; notes in which order it was asked."""

    def __init__(self) -> None:
        self.let_go = trio.Event()
        self.done: list[str] = []
        self.told: list[bool] = []

    async def wait_gone(self, announcement: Announcement) -> None:
        self.done.append(f"wait {announcement.uid}")
        await self.let_go.wait()

    async def take_down(self, announcement: Announcement) -> None:
        self.told.append(announcement.status_written)
        self.done.append(f"take down {announcement.uid}")


class _Run:
    def __init__(self, server: _Server, store: PodStore, node: _Node, announcer: Announcer) -> None:
        self.server, self.store, self.node, self.announcer = server, store, node, announcer

    def told_by_watch(self) -> None:
        """Have the store see the pods as the server has them, as a list would."""
        self.store.listing()
        for pod in self.server.pods.values():
            self.store.take(copy.deepcopy(pod))
        self.store.listed()

    def overwritten(self, name: str, **status: Any) -> None:
        """Have a kubelet send its own status over ours."""
        self.server.pods[name]["status"] = status
        self.told_by_watch()

    def status(self, name: str = "web") -> Any:
        return self.server.pods[name]["status"]

    def disrupted(self) -> Any:
        """Return the condition that says why the pod ends, None where it has none."""
        found = (one for one in self.status().get("conditions", ()) if one["type"] == "DisruptionTarget")
        return next(found, None)


@asynccontextmanager
async def running(
    path: Path,
    server: _Server,
    *,
    settled_seconds: float = 30.0,
    listed: bool = True,
    kubelets_soft: frozenset[str] = frozenset(),
) -> AsyncIterator[_Run]:
    store, node = PodStore(), _Node()
    async with served(server) as (_, client), trio.open_nursery() as nursery:
        file = AnnouncementFile(path)
        announcer = Announcer(
            client,
            store,
            "one",
            file,
            node,
            kubelets_soft=lambda: kubelets_soft,
            settled_seconds=settled_seconds,
        )
        run = _Run(server, store, node, announcer)
        if listed:
            run.told_by_watch()
        server.on_patch = run.told_by_watch
        nursery.start_soon(announcer.run)
        yield run
        nursery.cancel_scope.cancel()
    file.flush()


async def test_an_eviction_becomes_a_status_one_event_and_then_the_end_of_its_sandbox(tmp_path: Path) -> None:
    async with running(tmp_path / "a.json", _Server("web")) as run:
        run.announcer.announce(announcement())
        # What the server has is no longer pending once its answer has come, too.
        await until(lambda: len(run.node.done) == 2 and not run.announcer.pending)
        assert ("Failed", "Evicted", _MESSAGE) == tuple(
            run.status()[k] for k in ("phase", "reason", "message")
        )
        [event] = run.server.events.values()
        assert {"starved_resource": "memory"} == event["metadata"]["annotations"]
        assert ("Evicted", "Warning", "uid-web") == (
            event["reason"],
            event["type"],
            event["involvedObject"]["uid"],
        )
        assert ["wait uid-web", "take down uid-web"] == run.node.done
        assert [True] == run.node.told
        assert [] == list(run.announcer.pending)
        assert {} == run.announcer.problems


async def test_a_pod_that_is_evicted_again_before_its_withdrawal_has_ended_is_announced(
    tmp_path: Path,
) -> None:
    async with running(tmp_path / "a.json", _Server("web")) as run:
        run.announcer.announce(announcement())
        await until(lambda: bool(run.node.done))
        patches = run.server.patches
        run.server.pods["web"]["status"] = {"phase": "Running"}
        run.told_by_watch()
        run.announcer.withdraw("uid-web")
        run.announcer.announce(announcement())
        await until(lambda: run.status().get("reason") == "Evicted" and run.server.patches > patches)


async def test_the_same_pod_is_announced_once(tmp_path: Path) -> None:
    async with running(tmp_path / "a.json", _Server("web")) as run:
        run.announcer.announce(announcement())
        run.announcer.announce(announcement(message="again"))
        await until(lambda: bool(run.server.events) and run.status()["phase"] == "Failed")
        assert _MESSAGE == run.status()["message"]
        assert 1 == len(run.server.events)


async def test_a_pod_in_its_grace_period_has_an_event_but_no_status_until_it_is_over(
    tmp_path: Path,
) -> None:
    async with running(tmp_path / "a.json", _Server("web")) as run:
        soft = announcement(is_over=False, grace_period_seconds=1e12)
        run.announcer.announce(soft)
        await until(lambda: bool(run.server.events))
        assert "Running" == run.status()["phase"]
        assert [] == run.node.done
        run.announcer.over(soft.uid)
        await until(lambda: run.status()["phase"] == "Failed")


SOFT = announcement(is_over=False, grace_period_seconds=1e12)


async def test_why_a_pod_is_evicted_is_in_its_status_when_that_is_ordered_and_its_phase_stays(
    tmp_path: Path,
) -> None:
    """A phase of Failed would have its owner replace it, and its room scheduled, while it still runs."""
    async with running(tmp_path / "a.json", _Server("web")) as run:
        run.announcer.announce(SOFT)
        await until(lambda: run.disrupted() is not None)
        status = run.status()
        assert ("Running", "Evicted", _MESSAGE) == tuple(status[k] for k in ("phase", "reason", "message"))
        assert ["DisruptionTarget"] == [one["type"] for one in status["conditions"]]
        assert ("True", "TerminationByKubelet") == (run.disrupted()["status"], run.disrupted()["reason"])
        assert 1 == len(run.announcer.pending)


async def test_why_a_pod_is_evicted_is_written_again_where_the_kubelet_overwrites_it_in_the_grace_period(
    tmp_path: Path,
) -> None:
    async with running(tmp_path / "a.json", _Server("web")) as run:
        run.announcer.announce(SOFT)
        for _ in range(3):
            await until(lambda: run.status().get("reason") == "Evicted" and run.disrupted() is not None)
            run.overwritten("web", phase="Running", conditions=[{"type": "Ready", "status": "True"}])
        await until(lambda: run.status().get("reason") == "Evicted" and run.disrupted() is not None)
        assert "Running" == run.status()["phase"]


async def test_a_pod_that_the_kubelet_reports_as_failed_first_is_a_disruption_target_all_the_while(
    tmp_path: Path,
) -> None:
    """The kubelet keeps conditions that are not its own, and drops the reason."""
    seen: list[tuple[str, str | None, bool]] = []
    async with running(tmp_path / "a.json", _Server("web")) as run:

        def observed() -> None:
            run.told_by_watch()
            status = run.status()
            seen.append((status["phase"], status.get("reason"), run.disrupted() is not None))

        run.server.on_patch = observed
        run.announcer.announce(SOFT)
        await until(lambda: len(seen) == 1)
        run.overwritten("web", phase="Failed", conditions=[run.disrupted()])
        await until(lambda: len(seen) == 2)
        assert [] == run.node.done  # it may have a while left: a kubelet before 1.22 says so when it begins
        run.announcer.over(SOFT.uid)
        await until(lambda: len(run.node.done) == 2)
    assert [("Running", "Evicted", True), ("Failed", "Evicted", True)] == seen


async def test_a_pod_that_the_kubelet_has_evicted_already_has_the_kubelets_event_and_no_other(
    tmp_path: Path,
) -> None:
    """Both hold a pod to its own limits, and in the same words."""
    server = _Server("web", "other")
    server.pods["web"]["status"] = {"phase": "Failed", "reason": "Evicted", "message": _MESSAGE}
    async with running(tmp_path / "a.json", server) as run:
        run.announcer.announce(announcement(disrupted=False))
        run.announcer.announce(announcement("other"))
        await until(lambda: run.status("other")["phase"] == "Failed" and not run.announcer.pending)
        assert ["uid-other"] == [one["involvedObject"]["uid"] for one in server.events.values()]
        assert 1 == server.patches


async def test_a_pod_that_the_kubelet_evicts_meanwhile_is_a_disruption_target_too(tmp_path: Path) -> None:
    """One before 1.26 has no such condition."""
    async with running(tmp_path / "a.json", _Server("web")) as run:
        run.announcer.announce(SOFT)
        await until(lambda: run.disrupted() is not None)
        run.overwritten("web", phase="Failed", reason="Evicted", message="The kubelet's.")
        await until(lambda: run.disrupted() is not None)


async def test_a_soft_eviction_that_the_kubelet_may_report_has_an_event_if_it_has_not_when_the_pod_ended(
    tmp_path: Path,
) -> None:
    server, soft = _Server("web", "other"), frozenset({"memory"})
    async with running(tmp_path / "a.json", server, settled_seconds=0.1, kubelets_soft=soft) as run:
        run.announcer.announce(SOFT)
        run.announcer.announce(replace(SOFT, uid="uid-other", name="other"))
        await until(lambda: run.disrupted() is not None)
        run.overwritten("web", phase="Failed", reason="Evicted", message="The kubelet's.")
        assert {} == run.server.events
        run.announcer.over(SOFT.uid)
        run.announcer.over("uid-other")
        await until(lambda: not run.announcer.pending)
        assert ["uid-other"] == [one["involvedObject"]["uid"] for one in run.server.events.values()]


async def test_an_eviction_for_which_the_kubelet_has_no_soft_threshold_has_its_event_at_once(
    tmp_path: Path,
) -> None:
    server = _Server("web", "other")
    async with running(tmp_path / "a.json", server, kubelets_soft=frozenset({"inodes"})) as run:
        run.announcer.announce(SOFT)
        await until(lambda: len(server.events) == 1)
    async with running(tmp_path / "b.json", server, kubelets_soft=frozenset({"memory"})) as run:
        run.announcer.announce(announcement("other"))  # a hard one
        await until(lambda: len(server.events) == 2)


async def test_a_pod_that_broke_its_own_limit_is_no_disruption_target_in_its_grace_period(
    tmp_path: Path,
) -> None:
    async with running(tmp_path / "a.json", _Server("web")) as run:
        run.announcer.announce(replace(SOFT, disrupted=False))
        await until(lambda: run.status().get("reason") == "Evicted")
        assert run.disrupted() is None


async def test_an_eviction_that_is_called_off_is_taken_out_of_the_status(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    async with running(path, _Server("web")) as run:
        run.announcer.announce(SOFT)
        await until(lambda: run.disrupted() is not None)
        run.announcer.withdraw(SOFT.uid)
        assert not run.announcer.is_announced(SOFT.uid)
        assert [] == list(run.announcer.pending)
        await until(lambda: run.status() == {"phase": "Running", "conditions": []})
        await until(lambda: AnnouncementFile(path).load() == ())


async def test_an_eviction_that_is_called_off_while_the_server_is_away_is_taken_out_by_the_next_run(
    tmp_path: Path,
) -> None:
    path, server = tmp_path / "a.json", _Server("web")
    async with running(path, server) as run:
        run.announcer.announce(SOFT)
        await until(lambda: run.disrupted() is not None)
        server.faults = [lambda _: None] * 1000
        run.announcer.withdraw(SOFT.uid)
        await until(lambda: bool(run.announcer.problems))
    server.faults = []
    async with running(path, server) as run:
        await until(lambda: run.status() == {"phase": "Running", "conditions": []})
        await until(lambda: not run.announcer.problems)


async def test_a_pod_that_is_evicted_after_all_is_announced_anew(tmp_path: Path) -> None:
    async with running(tmp_path / "a.json", _Server("web")) as run:
        run.announcer.announce(SOFT)
        await until(lambda: run.disrupted() is not None)
        run.announcer.withdraw(SOFT.uid)
        run.announcer.announce(announcement())
        assert run.announcer.is_announced(SOFT.uid)
        await until(lambda: run.status()["phase"] == "Failed" and len(run.node.done) == 2)
        assert ("Evicted", "True") == (run.status()["reason"], run.disrupted()["status"])


async def test_nothing_is_taken_out_of_the_status_of_a_pod_that_has_ended_by_itself(tmp_path: Path) -> None:
    server = _Server("web")
    async with running(tmp_path / "a.json", server) as run:
        run.announcer.announce(SOFT)
        await until(lambda: run.disrupted() is not None)
        server.pods["web"]["status"]["phase"] = "Succeeded"
        patches = server.patches
        run.announcer.withdraw(SOFT.uid)
        run.told_by_watch()
        await until(lambda: not run.announcer._announcements)
        assert patches == server.patches


async def test_a_status_that_the_kubelet_overwrites_is_written_again(tmp_path: Path) -> None:
    async with running(tmp_path / "a.json", _Server("web")) as run:
        run.announcer.announce(announcement())
        await until(lambda: run.status()["phase"] == "Failed")
        run.overwritten("web", phase="Running")
        await until(lambda: run.status().get("reason") == "Evicted")
        run.overwritten("web", phase="Failed")  # as a kubelet before 1.22: without a reason
        await until(lambda: run.status().get("reason") == "Evicted")
        assert 1 == len(run.server.events)


async def test_a_status_that_stands_is_not_written_again(tmp_path: Path) -> None:
    async with running(tmp_path / "a.json", _Server("web")) as run:
        run.announcer.announce(announcement())
        await until(lambda: run.status()["phase"] == "Failed")
        for _ in range(5):
            run.told_by_watch()
            await trio.sleep(0.05)
        assert 1 == run.server.patches


async def test_it_is_settled_once_the_kubelet_let_go_and_the_status_stayed(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    async with running(path, _Server("web"), settled_seconds=0.05) as run:
        run.announcer.announce(announcement())
        await until(lambda: len(run.node.done) == 2)
        await trio.sleep(0.2)
        assert run.announcer.is_announced("uid-web")
        run.node.let_go.set()
        await until(lambda: not run.announcer.is_announced("uid-web"))
    assert () == AnnouncementFile(path).load()


async def test_a_server_that_is_away_is_reported_once_it_is_back(tmp_path: Path) -> None:
    server = _Server("web")
    server.faults = [lambda _: None] * 12 + [lambda _: refusal(503, "starting")] * 3
    async with running(tmp_path / "a.json", server) as run:
        run.announcer.announce(announcement())
        await until(lambda: "eviction of web" in run.announcer.problems)
        assert 1 == len(run.announcer.pending)
        await until(lambda: run.status()["phase"] == "Failed" and bool(run.server.events))
        await until(lambda: not run.announcer.problems)


async def test_what_is_untold_at_the_end_is_reported_by_the_next_run_and_the_event_is_not_doubled(
    tmp_path: Path,
) -> None:
    path, server = tmp_path / "a.json", _Server("web")

    def answer_lost(asked: Asked) -> None:
        if not asked.path.endswith("/events"):
            server.faults.insert(0, answer_lost)
            return
        left, server.faults = server.faults, []
        server(asked)
        server.faults = left

    server.faults = [answer_lost, *([lambda _: None] * 1000)]
    async with running(path, server) as run:
        run.announcer.announce(announcement())
        await until(lambda: bool(run.announcer.problems))
    server.faults = []
    assert [announcement()] == list(AnnouncementFile(path).load())
    async with running(path, server, listed=False) as run:
        await until(lambda: len(server.events) == 1)
        await trio.sleep(0.05)
        assert "Running" == run.status()["phase"]  # nobody knows yet whether there is such a pod
        run.told_by_watch()
        await until(lambda: run.status()["phase"] == "Failed" and not run.announcer.pending)
    assert 1 == len(server.events)


async def test_a_pod_that_is_gone_has_no_status_to_write(tmp_path: Path) -> None:
    async with running(tmp_path / "a.json", _Server("other")) as run:
        run.node.let_go.set()
        run.announcer.announce(announcement("web"))
        await until(lambda: not run.announcer.is_announced("uid-web"))
        assert 0 == run.server.patches


async def test_a_pod_that_is_not_reported_yet_has_its_status_once_it_is(tmp_path: Path) -> None:
    server = _Server()
    async with running(tmp_path / "a.json", server) as run:
        run.announcer.announce(announcement(at_unix_seconds=time.time()))
        await until(lambda: bool(server.events))
        await trio.sleep(0.05)
        assert run.announcer.is_announced("uid-web")
        server.pods |= _Server("web").pods
        run.told_by_watch()
        await until(lambda: run.status()["phase"] == "Failed")


async def test_a_pod_that_was_reported_and_is_gone_is_not_waited_for(tmp_path: Path) -> None:
    server = _Server("web")
    async with running(tmp_path / "a.json", server) as run:
        server.faults = [lambda _: refusal(403, "forbidden")] * 2
        run.node.let_go.set()
        run.announcer.announce(announcement(at_unix_seconds=time.time()))
        await until(lambda: bool(run.announcer.problems))
        server.pods.clear()
        run.told_by_watch()
        await until(lambda: not run.announcer.is_announced("uid-web"))


async def test_another_pod_of_the_same_name_is_left_alone(tmp_path: Path) -> None:
    server = _Server("web")
    async with running(tmp_path / "a.json", server) as run:
        server.pods["web"]["metadata"]["uid"] = "another"
        run.node.let_go.set()
        run.announcer.announce(announcement())
        await until(lambda: bool(server.events))
        await until(lambda: "uid mismatch" in run.announcer.problems.get("eviction of web", ""))
        assert "Running" == run.status()["phase"]


async def test_a_missing_rule_is_named_and_nothing_is_lost(tmp_path: Path) -> None:
    server = _Server("web")
    server.faults = [lambda _: refusal(403, "forbidden")] * 2
    async with running(tmp_path / "a.json", server) as run:
        run.announcer.announce(announcement())
        await until(lambda: bool(run.announcer.problems))
        assert "missing rule" in run.announcer.problems["eviction of web"]
        await until(lambda: run.status()["phase"] == "Failed" and bool(server.events))


async def test_a_pod_known_only_by_its_cgroup_is_announced_once_its_name_is_known(
    tmp_path: Path,
) -> None:
    async with running(tmp_path / "a.json", _Server("web"), listed=False) as run:
        run.announcer.announce(announcement(name="", namespace=""))
        await trio.sleep(0.05)
        assert {} == run.server.events
        run.told_by_watch()
        await until(lambda: run.status()["phase"] == "Failed" and bool(run.server.events))


async def test_the_queue_is_bounded_and_the_oldest_goes_first(tmp_path: Path) -> None:
    async with running(tmp_path / "a.json", _Server(), listed=False) as run:
        for number in range(300):
            run.announcer.announce(announcement(f"pod-{number}", name="", namespace=""))
        assert 256 == len(run.announcer.pending)
        assert not run.announcer.is_announced("uid-pod-0")
        assert run.announcer.is_announced("uid-pod-299")


async def test_a_conflict_over_the_status_is_tried_again(tmp_path: Path) -> None:
    server = _Server("web")
    server.faults = [lambda _: refusal(409, "the object has been modified")] * 3
    async with running(tmp_path / "a.json", server) as run:
        run.announcer.announce(announcement())
        await until(lambda: run.status()["phase"] == "Failed")


async def test_what_was_untold_before_a_reboot_is_forgotten(tmp_path: Path) -> None:
    path, boot_id = tmp_path / "a.json", tmp_path / "boot_id"
    boot_id.write_text("one\n")
    file = AnnouncementFile(path, boot_id=boot_id)
    file.show((announcement(),))
    file.flush()
    assert (announcement(),) == AnnouncementFile(path, boot_id=boot_id).load()
    boot_id.write_text("two\n")
    assert AnnouncementFile(path, boot_id=boot_id).load() is None


def test_a_file_that_is_none_of_ours_is_a_problem_and_no_failure(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.touch(0o600)
    for text in ("", "{", "[]", '{"version": 9}', '{"version": 1, "announcements": [{}]}', "\x00" * 9):
        path.write_text(text)
        file = AnnouncementFile(path)
        assert file.load() is None
        assert "started without it" in (file.problem or "")
    assert AnnouncementFile(tmp_path / "gone").load() is None


async def test_a_directory_that_can_not_be_written_is_a_problem_and_no_failure(tmp_path: Path) -> None:
    (tmp_path / "in-the-way").write_text("")
    async with running(tmp_path / "in-the-way" / "a.json", _Server("web")) as run:
        run.announcer.announce(announcement())
        await until(lambda: "announcements" in run.announcer.problems)
        await until(lambda: run.status()["phase"] == "Failed")


def test_what_the_kubelet_evicts_softly_for_is_in_its_configuration(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(_SOFT)
    assert {Resource.EPHEMERAL_STORAGE, Resource.INODES} == soft_resources(str(path))


def test_a_kubelet_whose_configuration_cannot_be_read_is_not_known_to_evict_softly(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    assert frozenset() == soft_resources(str(path))
    for text in ("", "evictionSoft: {memory.available: 1Gi}", "[", "\x00"):
        path.write_text(text)
        assert frozenset() == soft_resources(str(path))
    path.write_bytes(b"\xff")
    assert frozenset() == soft_resources(str(path))
