"""The guard's part on a Kubernetes node: who its pods are, what the cluster is to hear, who stays down.

The steward talks to the API server, the kubelet and the container runtime (reactor/steward/kubernetes.py).
The guard lists the pods from their cgroups, with what the steward reported of them last, and needs no more:
without a steward it keeps the pods that it knows, and ranks new ones by what the node itself shows of them.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import trio

from reactor.act.kill_path import KillPath
from reactor.act.reap import KillReport, Populated, has_no_process
from reactor.act.target import Target
from reactor.errors import ReactorError, StewardError
from reactor.guard.node import Node
from reactor.guard.node_shutdown import ShutdownTermination
from reactor.guard.outbox import PROCESS_KILLED, SYSTEM_OOM, THRESHOLD_MET, ClusterReports
from reactor.guard.pod_facts import PodFacts
from reactor.guard.record import EvictionAttempt, PassRecord, process_document
from reactor.guard.steward_link import StewardLink
from reactor.kernel.cgroup import CgroupTree
from reactor.kernel.procfs import BOOT_ID
from reactor.kernel.small_file import KeptFile
from reactor.link.documents import Outcome, attributes, process_text
from reactor.link.frames import FrameKind
from reactor.model.kills import OomKill, OomScope, ProcessMemory
from reactor.model.pods import Pod
from reactor.model.rules import Marks
from reactor.model.settings import Settings
from reactor.model.signals import CONDITION, RESOURCE, NodeCondition, RuleSignal, Signal
from reactor.model.thresholds import Threshold
from reactor.plain import from_plain
from reactor.policy.events import PodEmptied
from reactor.policy.messages import eviction_message
from reactor.supervisor import Nursery, Part, Supervisor
from reactor.workloads.kubernetes_pods import UNKNOWN_NAMESPACE, KubernetesPods, OwnScore

_LOG: Final = logging.getLogger("reactor.node")
_RUNTIME_LOG: Final = logging.getLogger("reactor.runtime")
# By which a condition is known. Inodes are not among them: a filesystem may have none to count.
_CONCLUSIVE: Final = frozenset(
    {Signal.MEMORY_AVAILABLE, Signal.NODEFS_AVAILABLE, Signal.IMAGEFS_AVAILABLE, Signal.PID_AVAILABLE}
)
_FIRST_PODS_SECONDS: Final = 2.0  # better known pods than estimates; but memory waits for no API server
_KNOWN_PODS_SECONDS: Final = 1.0
_ANSWER_SECONDS: Final = 0.5  # for the steward's answer once its own time is over
_NOT_REPORTED: Final = frozenset({Outcome.FAILED, Outcome.DRY_RUN, Outcome.GONE})
_OVER, _ORDERED, _LIVES_ON = "over", "ordered", "called off"  # states of a report
_PROCESS_ENDED: Final = frozenset({Outcome.PROCESS_KILLED, Outcome.PROCESS_TERMINATED})
_SHUT_DOWN: Final = frozenset({Outcome.TERMINATED, Outcome.KILLED, Outcome.GONE})
_SHUTDOWN_MESSAGE: Final = "Pod was terminated in response to imminent node shutdown."


class Unobserved:
    """Which node conditions are unknown: a signal of theirs has not been observed for long.

    What was observed goes stale first (`Observed`).
    """

    def __init__(self, *, patience_seconds: float) -> None:
        self._patience_seconds = patience_seconds
        self._since: dict[Signal, float] = {}

    def conditions(
        self,
        thresholds: Iterable[Threshold],
        observed: Collection[Signal],
        in_force: Collection[NodeCondition],
        now_seconds: float,
    ) -> tuple[NodeCondition, ...]:
        """Return the conditions that are neither in force nor known not to be, by the thresholds there are.

        For a moment after the start, and after a reload, nothing need be observed yet.
        """
        missing = {one.signal for one in thresholds} & _CONCLUSIVE - frozenset(observed)
        self._since = {signal: self._since.get(signal, now_seconds) for signal in missing}
        unknown = {
            CONDITION[signal]
            for signal, since in self._since.items()
            if now_seconds - since > self._patience_seconds
        }
        return tuple(one for one in NodeCondition if one in unknown and one not in in_force)


class RuntimeKills(KillPath):
    """Kills pods of a Kubernetes node: at once by their cgroups, with a grace period through the runtime.

    A hard eviction does without the runtime: a call takes milliseconds, and the runtime itself starves with
    the node. With a grace period the steward asks it to stop the containers, each by its own stop signal;
    without a steward, or without an answer, the processes are asked themselves.
    """

    def __init__(self, tree: CgroupTree, pod_parents: Sequence[str], steward: StewardLink) -> None:
        super().__init__(tree, pod_parents)
        self._steward = steward

    async def terminate(
        self, pod: Pod, grace_period_seconds: float, still_wanted: Callable[[], bool] = lambda: True
    ) -> KillReport | None:
        """Have the runtime stop the pod's containers, each by its own stop signal; then kill what is left.

        Where the runtime can't be had, the processes are asked themselves. preStop hooks are the kubelet's
        to run. A runtime that was asked kills at the end of the grace period by itself. Returns and raises
        as KillPath.terminate.
        """
        why: str | None = None
        with trio.move_on_after(grace_period_seconds) as scope:
            try:
                over = await self._steward.ask(
                    FrameKind.STOP, uid=pod.uid, grace_seconds=grace_period_seconds
                )
                why = "; ".join(over.problems) if over.problems else None
            except ReactorError as error:
                why = str(error)
        if why is not None:
            _RUNTIME_LOG.warning("pod %s: sending SIGTERM to its processes instead: %s", pod.key, why)
        left_seconds = scope.deadline - trio.current_time()
        if why is not None and left_seconds > 0:
            return await super().terminate(pod, left_seconds, still_wanted) if still_wanted() else None
        may_live = Populated(self._tree)(pod) is not False
        return self.kill_now(pod) if may_live and still_wanted() else None


class KubernetesNode:
    """Made at the start, run once; a reload leaves it as it is. `present` lists the node's pods."""

    def __init__(
        self,
        settings: Settings,
        tree: CgroupTree,
        link: StewardLink,
        supervisor: Supervisor,
        present: Callable[[], Sequence[Pod]],
    ) -> None:
        self._is_dry = settings.dry_run
        self._thresholds = settings.eviction.thresholds
        self._unobserved = Unobserved(patience_seconds=3 * settings.housekeeping_interval_seconds)
        self._tree = tree
        self._link = link
        self._supervisor = supervisor
        self.own_score: OwnScore | None = None  # what a process has, whatever was written for an order
        self.facts = PodFacts(settings)
        self._pods: KubernetesPods | None = None
        self.reports = ClusterReports()
        link.attend_cluster(self.facts, self.reports)
        self.kills = RuntimeKills(tree, settings.pod_parents, link)
        self._evicted = EvictedPods(tree, self.kills, Path(settings.state_path), present)

    @property
    def problems(self) -> dict[str, str]:
        """Return what is wrong at present, each in one line."""
        lost = self.reports.lost
        found = {
            "remembered pods": self.facts.remembered.problem,
            "evicted pods": self._evicted.file.problem,
            "kubernetes reports": f"{lost} could not be kept for the API server" if lost else None,
        }
        return {name: why for name, why in found.items() if why is not None}

    def document(self) -> dict[str, Any]:
        return {
            "held_down": len(self._evicted),
            "waiting_reports": len(self.reports),
            "lost_reports": self.reports.lost,
        }

    def restore(self, node: Node) -> None:
        """Take over what is known from an earlier run; have no pod chosen that is kept down already."""
        self.facts.load()
        node.is_kept_down = self._evicted.__contains__
        for uid in () if self._is_dry else self._evicted.load():
            node.apply(PodEmptied(uid=uid))

    def pod_list(self, settings: Settings) -> KubernetesPods:
        """Return what lists the node's pods: the kubelet's cgroups, with what is known of each.

        By these settings it goes on: which conditions there are follows from their thresholds.
        """
        self._is_dry, self._thresholds = settings.dry_run, settings.eviction.thresholds
        if not settings.dry_run and not any(rule.mark for rule in settings.rules):
            self.reports.marks(Marks())  # with such rules they report
        self._pods = KubernetesPods(
            self._tree,
            settings,
            specs=lambda: self.facts.specs,
            runtime=lambda: self.facts.runtime,
            files=lambda: self.facts.files,
            is_complete=self.facts.is_complete,
            take_waiting=self._link.take_waiting,
            own_score=self.own_score,
            known={} if self._pods is None else self._pods.known,
        )
        return self._pods

    def passed(self, record: PassRecord, nursery: Nursery) -> None:
        """Report a pass: which pods it evicted, what it tried to get back, which conditions are in force."""
        if record.dry_run:
            return
        for attempt in record.attempts:
            self.evicted(attempt, nursery)
        acted_on = record.decision.acted_on
        if acted_on is not None and (record.attempts or record.decision.reclaim):
            self.reports.event(THRESHOLD_MET, resource=RESOURCE[acted_on.signal])
        self.reports.conditions(
            record.decision.conditions,
            self._unobserved.conditions(
                self._thresholds,
                record.snapshot.signals,
                record.decision.conditions,
                record.decision.at_seconds,
            ),
        )

    def evicted(self, attempt: EvictionAttempt, nursery: Nursery) -> None:
        """Report an eviction; one with a grace period when it is ordered, and when its pod has stopped.

        Of a pod that loses one process the status says nothing: it lives on.
        """
        if attempt.process is not None:
            nursery.start_soon(self._when_process_over, attempt, attempt.process)
            return
        frees_memory = attempt.is_empty and bool(attempt.credited_bytes)  # an emptyDir in memory, say
        if attempt.outcome in _NOT_REPORTED and not frees_memory:
            return
        eviction, pod = attempt.eviction, attempt.eviction.pod
        # A pod that broke its own limit is not disrupted, as upstream. A rule's limits are the node's.
        disrupted = eviction.threshold is not None or eviction.signal is RuleSignal.RULE
        grace_seconds = eviction.grace_period_seconds
        document = _report_of(pod, *eviction_message(eviction), grace_seconds, disrupted=disrupted)
        is_soft = grace_seconds > 0
        self.reports.evicted(pod.uid, {**document, "state": _ORDERED if is_soft else _OVER})
        nursery.start_soon(self._when_over, attempt, document, nursery)

    async def _when_process_over(self, attempt: EvictionAttempt, process: ProcessMemory) -> None:
        await attempt.stopped.wait()
        pod = attempt.eviction.pod
        if attempt.outcome in _PROCESS_ENDED and pod.namespace != UNKNOWN_NAMESPACE:
            message, _ = eviction_message(attempt.eviction)
            which = process_text(process_document(process))
            how = "killed" if attempt.outcome is Outcome.PROCESS_KILLED else "ended by SIGTERM"
            self.reports.event(
                PROCESS_KILLED,
                uid=pod.uid,
                namespace=pod.namespace,
                name=pod.name,
                message=f"{which} was {how}, the pod lives on. {message}",
            )

    async def _when_over(self, attempt: EvictionAttempt, report: Mapping[str, Any], nursery: Nursery) -> None:
        pod = attempt.eviction.pod
        await attempt.stopped.wait()
        if attempt.outcome is Outcome.PRE_EMPTED:
            return  # a hard eviction of the same pod took over, and is reported by itself
        if attempt.outcome in {Outcome.CALLED_OFF, Outcome.FAILED}:
            self.reports.evicted(pod.uid, {**report, "state": _LIVES_ON})
            return
        if attempt.eviction.grace_period_seconds > 0:
            self.reports.evicted(pod.uid, {**report, "state": _OVER})
        if attempt.outcome is not Outcome.TERMINATED:
            await attempt.ended.wait()  # until then the kill path reaps what is left
        self._evicted.keep_killed(pod, nursery)

    def oom_killed(self, kill: OomKill) -> None:
        """Report a kill by the kernel that was the whole node's, as the kubelet does, but in a dry run."""
        if kill.scope is OomScope.NODE and kill.pid is not None and not self._is_dry:
            self.reports.event(SYSTEM_OOM, comm=kill.comm or "", pid=kill.pid)

    def befell(self, kind: str, message: str) -> None:
        """Report as an event what has befallen the node, but in a dry run."""
        if not self._is_dry:
            self.reports.event(kind, message=message)

    async def leave(self, *, stands_by: bool, seconds: float) -> None:
        """Have the steward remove what is set on the node unless a successor comes; wait so long at most.

        A steward that only ever got a dry run's settings has set nothing.
        """
        with trio.move_on_after(seconds) as scope:
            try:
                # On CLOCK_MONOTONIC: a steward that has just started reads it seconds later.
                until_seconds = time.monotonic() + seconds - _ANSWER_SECONDS
                over = await self._link.ask(FrameKind.LEAVE, stands_by=stands_by, until_seconds=until_seconds)
            except StewardError as error:
                _LOG.warning("conditions and taints stay on the node: %s", error)
                return
            for line in over.did or ():
                _LOG.info("%s", line)
            for line in over.problems:
                _LOG.warning("%s", line)
        if scope.cancelled_caught:
            _LOG.warning("conditions and taints stay on the node: no answer of the steward")

    def shuts_down(self, *, is_under_way: bool) -> None:
        self.reports.shutdown(is_under_way=is_under_way)

    def shutdown_ends(self, ending: ShutdownTermination, nursery: Nursery) -> None:
        """Report a pod that is ended for a shutdown, in upstream's words, and keep it down."""
        report = _report_of(
            ending.pod, _SHUTDOWN_MESSAGE, {}, ending.grace_seconds, disrupted=True, for_shutdown=True
        )
        nursery.start_soon(self._when_shut_down, ending, report, nursery)

    async def _when_shut_down(
        self, ending: ShutdownTermination, report: Mapping[str, Any], nursery: Nursery
    ) -> None:
        await ending.ended.wait()
        if ending.outcome in _SHUT_DOWN:
            self.reports.evicted(ending.pod.uid, {**report, "state": _OVER})
            self._evicted.keep_killed(ending.pod, nursery)

    def close(self) -> None:
        """Save what the next guard is to know."""
        self.facts.remembered.flush()
        self._evicted.file.flush()

    async def run(self, on_pods: Callable[[], None]) -> None:
        """Take part until cancelled; `on_pods` is called when there is something new of the pods."""
        self.facts.on_change = on_pods
        parts: dict[str, Part] = {
            "kubernetes told pods": self.facts.run,
            "kubernetes remembered pods": self.facts.remembered.run,
            "kubernetes evicted pods": self._evicted.file.run,
        }
        async with trio.open_nursery() as nursery:
            if not self._is_dry:
                self._evicted.resume(self._supervisor.jobs(nursery, "kubernetes evictions"))
            await self._supervisor.keep_all(parts)

    async def wait_pods(self) -> None:
        """Wait for the first listing of specs, but not for long, and less where some are remembered."""
        with trio.move_on_after(_KNOWN_PODS_SECONDS if self.facts.specs else _FIRST_PODS_SECONDS):
            await self.facts.has_specs.wait()


def _report_of(
    pod: Pod, message: str, annotations: Mapping[str, str], grace_period_seconds: int, **more: bool
) -> dict[str, Any]:
    """Return what is reported of a pod that is to end; without its name if the server's list will have it."""
    is_named = pod.namespace != UNKNOWN_NAMESPACE
    return {
        "name": pod.name if is_named else "",
        "namespace": pod.namespace if is_named else "",
        "message": message,
        "annotations": dict(annotations),
        "at_unix_seconds": time.time(),
        "grace_period_seconds": grace_period_seconds,
        **more,
    }


# Evicted pods stay killed until the kubelet has removed them, whatever becomes of guard and steward.
#
# Between the kill and the moment at which the kubelet learns of the pod's new status it sees nothing but dead
# containers, and with restartPolicy Always it starts them again, at once the first time. Nothing reaches it
# faster than the API server, which may be away for hours. So whatever comes to life in the pod's cgroup
# meanwhile is killed again, milliseconds old. It ends with the cgroup, which the kubelet removes when it
# takes down a pod whose phase is Failed (1.20: syncPod; since 1.22: podWorkers.UpdatePod).
#
# A file remembers the pods for the next guard of the same boot: a pod's cgroup is known by its inode, and one
# that another pod has since is left alone.

_EVICT_LOG: Final = logging.getLogger("reactor.evict")
_LOOK_SECONDS: Final = 0.1
_LOOK_LATER_SECONDS: Final = 0.5
_LATER_SECONDS: Final = 30.0
_REAP_SECONDS: Final = 5.0
_FILE: Final = "held-down.json"
_MOST: Final = 256
# Of a pod.
_KEPT: Final = ("uid", "namespace", "name", "cgroup", "cgroup_inode", "spared_cgroups")
_WRITTEN_BY_LOOP: Final = 16  # some KiB, on tmpfs


async def keep_killed(tree: CgroupTree, kills: KillPath, find: Callable[[], Pod]) -> int:
    """Kill what lives in a pod until its cgroup is gone; return how often that was.

    `find` returns the pod as it is now known. Never raises; what is refused is logged once. A cgroup that is
    recreated under the same path is no longer the pod that was evicted.
    """
    late_seconds = trio.current_time() + _LATER_SECONDS
    inode, times, logged = None, 0, ""
    while (pod := find()).cgroup is not None:
        try:
            with closing(Target.of(tree, replace(pod, cgroup_inode=inode or pod.cgroup_inode))) as found:
                if found.directory is None:
                    break
                inode = found.directory.inode
                is_alive = not await has_no_process(found)
            pod = replace(pod, cgroup_inode=inode)
            if is_alive and not (report := kills.kill_now(pod)).is_gone:
                times += 1
                if times == 1:
                    killed = "pod %s: lived again after its eviction; %d processes killed"
                    _EVICT_LOG.warning(killed, pod.key, report.processes)
                await kills.reap(pod, _REAP_SECONDS)
        except (ReactorError, OSError) as error:
            if str(error) != logged:
                _EVICT_LOG.warning("pod %s: can't be kept killed: %s", pod.key, error)
            logged = str(error)
        await trio.sleep(_LOOK_LATER_SECONDS if trio.current_time() > late_seconds else _LOOK_SECONDS)
    return times


class EvictedPods:
    """Keeps evicted pods killed; `present` lists the node's pods. `file.run` is a part of the daemon."""

    def __init__(
        self,
        tree: CgroupTree,
        kills: KillPath,
        state_path: Path,
        present: Callable[[], Sequence[Pod]],
        *,
        boot_id: Path = BOOT_ID,
    ) -> None:
        self._tree = tree
        self._kills = kills
        self._present = present
        self._pods: dict[str, Pod] = {}
        self.file = KeptFile[tuple[Pod, ...]](
            state_path.with_name(_FILE),
            lambda pods: {"pods": [attributes(pod, *_KEPT) for pod in pods]},
            lambda document: tuple(from_plain(Pod, one) for one in document["pods"]),
            "evicted pods: not saved, a restart would forget them",
            _EVICT_LOG,
            boot_id=boot_id,  # no cgroup of another boot is there any more
            is_small=lambda pods: len(pods) <= _WRITTEN_BY_LOOP,
        )

    def __len__(self) -> int:
        return len(self._pods)

    def __contains__(self, uid: object) -> bool:
        return uid in self._pods

    def load(self) -> tuple[str, ...]:
        """Restore the pods that an earlier run kept killed, and return their uids. Blocks on the disk."""
        self._pods = {pod.uid: pod for pod in (self.file.load() or ())[:_MOST]}
        return tuple(self._pods)

    def resume(self, nursery: Nursery) -> None:
        """Keep those that were loaded killed."""
        for uid in self._pods:
            nursery.start_soon(self._run, uid)

    def keep_killed(self, pod: Pod, nursery: Nursery) -> None:
        """Keep a pod killed from now on. Of too many those that were evicted last are not."""
        if pod.uid in self._pods:
            return
        if len(self._pods) >= _MOST:
            _EVICT_LOG.warning("pod %s: not kept killed after its eviction: %d others are", pod.key, _MOST)
            return
        self._pods[pod.uid] = pod
        self._show()
        nursery.start_soon(self._run, pod.uid)

    async def _run(self, uid: str) -> None:
        evicted = self._pods[uid]

        def find() -> Pod:
            return next((pod for pod in self._present() if pod.uid == uid), evicted)

        await keep_killed(self._tree, self._kills, find)
        del self._pods[uid]  # not at the end of the daemon: the next one goes on with it
        self._show()

    def _show(self) -> None:
        self.file.show(tuple(self._pods.values()))
