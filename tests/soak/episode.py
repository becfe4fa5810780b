"""One crossing, from its first byte to the verdict, with everything else that happens meanwhile."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from tests.soak.falls import FallPlan, Growth, Order, growths
from tests.soak.guarded import Guarded
from tests.soak.oracle import PAUSE_NS, Counters, Episode, Kill, Rules, Verdict, judge, place, soft_met_ns
from tests.soak.plan import (
    BEFORE_FALL_BYTES,
    FAST_RATES,
    MIB,
    CrossingPlan,
    Disturbance,
    Disturbed,
    Draw,
    HogPlan,
    LullPlan,
    PodPlan,
)
from tests.soak.pods import Pods, Present
from tests.soak.stage import Stage, StageError

_APPROACH_SECONDS: Final = 0.05
_NEAREST_BYTES: Final = MIB
_PATIENCE_SECONDS: Final = 1.5
_DYING_SECONDS: Final = 2.0
_SLOWED_SECONDS: Final = 0.3
_SETTLE_SECONDS: Final = 0.004
_SAME_CROSSING_NS: Final = 5_000_000
_AT_ONCE_BYTES: Final = 2000 * MIB  # a second, as fast as a pod takes memory
_NOTHING: Final = Counters(usage_bytes=0, inactive_file_bytes=0)


@dataclass(slots=True, kw_only=True)
class Outcome:
    """What became of a crossing: the episode as it was judged, and the verdict.

    `to_kill_ms` is from the crossing to the first kill, `past_mib` how far past the threshold the node was
    then; empty where the daemon was away, or its configuration changed. `is_fast`: who crossed took 200 MiB/s
    or more. `saved` are instances that ended by themselves at SIGTERM, of which each needs `save_seconds`.
    `oom_killed` are pods in which the kernel's OOM killer killed, while the daemon was there.
    """

    episode: Episode
    verdict: Verdict
    to_kill_ms: list[float]
    past_mib: list[float]
    is_fast: bool
    disturbed: tuple[Disturbance, ...]
    is_leak: bool = False
    fall: FallPlan | None = None
    saved: frozenset[int] = frozenset()
    save_seconds: Mapping[int, float] = field(default_factory=dict)
    partly_killed: tuple[str, ...] = ()
    oom_killed: tuple[str, ...] = ()


@dataclass(slots=True, kw_only=True)
class Course:
    """Has crossings happen on a virtual node, one after the other.

    `slowness`: how many times as long as on real hardware everything takes.
    """

    stage: Stage
    pods: Pods
    guarded: Guarded
    draw: Draw
    rules: Rules
    slowness: float = 1.0
    _all_rules: list[Rules] = field(default_factory=list)
    _away: list[tuple[int, int]] = field(default_factory=list)
    _waiting: list[tuple[float, Disturbed]] = field(default_factory=list)
    _stopped_ns: int | None = None
    _continue_at: float = 0.0
    _files_due: list[tuple[float, Present]] = field(default_factory=list)
    _noticed: set[int] = field(default_factory=set)
    _since: int = 0
    _refused: bool = False
    _unresolved: bool = False
    _soft_met_ns: int | None = None
    _growths: list[Growth] = field(default_factory=list)
    _orders: list[tuple[float, Present, Order]] = field(default_factory=list)
    _ordered: int = 0

    def begin(self) -> None:
        """Begin to sample."""
        self._guard()
        self._since = self.stage.sample(on=True)
        self._all_rules = [self.rules]
        self._unresolved = False  # of a threshold that is not configured any more
        self._soft_met_ns = None

    def _guard(self) -> None:
        soft_bytes = self.rules.soft_bytes if self.rules.in_time else None
        self.stage.guard(self.rules.capacity_bytes, self.rules.hard_bytes, soft_bytes or 0)

    @property
    def is_stuck(self) -> bool:
        """Return whether the node is short of memory though every hog is gone: of pods that stay."""
        available_bytes = self.rules.capacity_bytes - self.stage.last_node().working_set_bytes
        return available_bytes < max(self.rules.hard_bytes, self.rules.soft_bytes or 0)

    def run(self, plan: CrossingPlan) -> Outcome:
        """Have it happen, and judge it."""
        self.stage.watch_crossing()
        self._growths.clear()
        if plan.fall is not None:
            return self._fall(plan.fall)
        hogs = [self.pods.present[hog.name] for hog in plan.hogs]
        self._approach(plan.hogs, plan.lull)
        began = time.monotonic()
        self._waiting = [
            (began + (one.after_seconds or 0.0), one)
            for one in plan.disturbed
            if one.after_seconds is not None
        ]
        at_crossing = [one for one in plan.disturbed if one.after_seconds is None]
        self._rest(plan.lull, began)
        self.stage.done.clear()
        per_hog = len(plan.hogs)
        for hog, pod in zip(plan.hogs, hogs, strict=True):
            left_bytes = max(0, self._room_bytes()) // per_hog + hog.past_bytes
            self.pods.take(pod, hog.kind, left_bytes, hog.rate_bytes)
            order = Order(
                after_seconds=0.0,
                kind=hog.kind,
                size_bytes=left_bytes,
                rate_bytes=hog.rate_bytes or _AT_ONCE_BYTES,
            )
            self._growths += growths(pod.instance, [order], time.monotonic_ns())
        deadline = time.monotonic() + _PATIENCE_SECONDS * self.slowness + _APPROACH_SECONDS
        slow = [pod for hog, pod in zip(plan.hogs, hogs, strict=True) if 0 < hog.rate_bytes < min(FAST_RATES)]
        slow = [] if self.rules.in_time else slow
        self._follow(hogs, slow, at_crossing, deadline)
        for one in () if plan.lull is None else plan.lull.company:
            if one.name in self.pods.present:
                self.stage.stop_growth(self.pods.present[one.name].slot)
        self._come_back()
        is_fast = all(hog.rate_bytes in {0, *FAST_RATES} for hog in plan.hogs)
        outcome = self._judged(
            hogs, tuple(one.what for one in plan.disturbed), is_fast=is_fast, is_leak=plan.is_leak
        )
        if plan.is_leak:  # until evictions are no longer slowed down
            self.stage.wait(lambda: False, (PAUSE_NS / 1e9 + _SLOWED_SECONDS) * self.slowness)
        return outcome

    def _fall(self, plan: FallPlan) -> Outcome:
        pod = self.pods.present[plan.name]
        soft_bytes = self.rules.soft_bytes or 0
        before_bytes = self._room_bytes() + self.rules.hard_bytes - soft_bytes - BEFORE_FALL_BYTES
        if before_bytes > 0:
            self.pods.take(pod, "a", before_bytes)
            self.stage.wait_done([pod.instance])
        began = time.monotonic()
        self.stage.done.clear()
        self._growths += growths(pod.instance, plan.orders, int(began * 1e9))
        self._orders = [(began + one.after_seconds, pod, one) for one in plan.orders]
        self._ordered = len(self._orders)
        # Who keeps its memory goes at the end of the grace period, and needs time to end.
        over_ns = max(one.ended_ns for one in self._growths) + self.rules.soft_grace_ns
        self._follow([pod], [], [], over_ns / 1e9 + _PATIENCE_SECONDS * self.slowness)
        self._come_back()
        outcome = self._judged([pod], (), is_fast=False, is_leak=False)
        return replace(outcome, fall=plan)

    def first(self) -> str | None:
        """Return the pod that would go first now, None where none is sampled."""
        seen = self.stage.last_sample().pods
        ranked = sorted(
            (place(pod.plan.spec, seen[pod.instance].working_set_bytes), name)
            for name, pod in self.pods.present.items()
            if pod.instance in seen and not pod.plan.spec.is_critical
        )
        return ranked[0][1] if ranked else None

    def first_holds_bytes(self) -> int:
        """Return what the pod that would go first holds, 0 without one."""
        name = self.first()
        if name is None:
            return 0
        return self.stage.last_sample().pods[self.pods.present[name].instance].working_set_bytes

    def _approach(self, hogs: Sequence[HogPlan], lull: LullPlan | None) -> None:
        """Have those come near the level at once that rest there, or are slow: what is left takes 50 ms."""
        for hog in hogs:
            if hog.rate_bytes or lull is not None:
                left_bytes = max(_NEAREST_BYTES // 4, int(hog.rate_bytes * _APPROACH_SECONDS))
                if lull is not None:
                    left_bytes = lull.left_bytes // len(hogs)
                room_bytes = self._room_bytes() // len(hogs) - left_bytes
                pod = self.pods.present[hog.name]
                if room_bytes > 0 and hog.kind != "t":
                    self.pods.take(pod, hog.kind, room_bytes)
                    self.stage.wait_done([pod.instance])

    def _rest(self, lull: LullPlan | None, began: float) -> None:
        """Let others act, and the disturbances of that time come, while the hogs rest."""
        if lull is None:
            return
        waiting = list(lull.company)
        while (now := time.monotonic()) < began + lull.seconds:
            self.stage.read(0.001 * self.slowness)
            self._disturb(now)
            self._notice_deaths(now)
            for one in [one for one in waiting if began + one.after_seconds <= now]:
                waiting.remove(one)
                pod = self.pods.present.get(one.name)
                if pod is not None:
                    self.pods.take(pod, one.kind, one.size_bytes, one.rate_bytes)

    def _room_bytes(self) -> int:
        return self.rules.capacity_bytes - self.rules.hard_bytes - self.stage.last_node().working_set_bytes

    def _follow(
        self, hogs: Sequence[Present], slow: Sequence[Present], at_crossing: list[Disturbed], deadline: float
    ) -> None:
        """Let it happen until every hog is done or dead and the node has room again, or the time is over.

        The slow ones have done their part with the first kill: to the next it would be long.
        """
        calm_since: float | None = None
        while True:
            is_busy = at_crossing or self._waiting or self._stopped_ns
            self.stage.read((0.0005 if is_busy else 0.002) * self.slowness)
            now = time.monotonic()
            if self.stage.crossed_ns is not None and at_crossing:
                self._waiting += [(now, one) for one in at_crossing]
                at_crossing.clear()
            self._disturb(now)
            self._notice_deaths(now)
            for due in [one for one in self._orders if one[0] <= now]:
                self._orders.remove(due)
                self.pods.take(due[1], due[2].kind, due[2].size_bytes, due[2].rate_bytes)
            for pod in slow if self._noticed else ():
                self.stage.stop_growth(pod.slot)
            if self._is_calm(hogs):
                calm_since = calm_since or now
                if now - calm_since > _SETTLE_SECONDS * self.slowness:
                    return
            else:
                calm_since = None
            back = max((to_ns / 1e9 for _, to_ns in self._away), default=0.0)
            if now > max(deadline, back + _PATIENCE_SECONDS * self.slowness) and self._stopped_ns is None:
                return

    def _is_calm(self, hogs: Sequence[Present]) -> bool:
        if self._stopped_ns is not None or self._files_due or self._waiting:
            return False
        grown = all(
            self.stage.done.count(pod.instance) >= max(1, self._ordered) or self.stage.is_dead(pod.instance)
            for pod in hogs
        )
        dying = any(not self.stage.is_dead(instance) for instance in self._noticed)
        wanted = max(rules.hard_bytes for rules in self._all_rules)
        if self.rules.soft_bytes is not None:
            wanted = max(wanted, self.rules.soft_bytes)
        node = self.stage.last_node()
        return grown and not dying and self.rules.capacity_bytes - node.working_set_bytes >= wanted

    def _notice_deaths(self, now: float) -> None:
        for death in self.stage.deaths:
            if death.instance not in self._noticed and death.who == "canary":
                self._noticed.add(death.instance)
                pod = next(
                    (one for one in self.pods.present.values() if one.instance == death.instance), None
                )
                if pod is not None and pod.files:
                    self._files_due.append((now + self.draw.seconds(0.02), pod))
        for due, pod in [one for one in self._files_due if one[0] <= now]:
            pod.forget_files()
            self._files_due.remove((due, pod))

    def _disturb(self, now: float) -> None:
        for at, disturbed in [one for one in self._waiting if one[0] <= now]:
            self._waiting.remove((at, disturbed))
            match disturbed.what:
                case Disturbance.STOP:
                    self._stop(now + disturbed.lasting_seconds)
                case Disturbance.RELOAD:
                    self._reload()
                case Disturbance.REFUSED:
                    self._refused = True
                    self.guarded.spoil()
                    self.guarded.reload(is_refused=True)
                case Disturbance.CRASH:
                    self._crash()
                case Disturbance.REUSE:
                    self._reuse(disturbed.lasting_seconds)
                case Disturbance.CHURN:
                    self._churn()
        if self._stopped_ns is not None and now >= self._continue_at:
            self._continue()

    def _stop(self, until: float) -> None:
        self._stopped_ns = time.monotonic_ns()
        self._continue_at = until
        self.guarded.signal(signal.SIGSTOP)

    def _continue(self) -> None:
        if self._stopped_ns is not None:
            self.guarded.signal(signal.SIGCONT)
            self._away.append((self._stopped_ns, time.monotonic_ns()))
            self._stopped_ns = None

    def _reload(self) -> None:
        self.rules = self.draw.other_rules(self.rules)
        self._all_rules.append(self.rules)
        self.guarded.configure(self.rules)
        self.guarded.reload()

    def _crash(self) -> None:
        from_ns = time.monotonic_ns()
        self.guarded.crash()

        def wait(true: Callable[[], bool], seconds: float) -> bool:
            def ready() -> bool:
                self._notice_deaths(time.monotonic())
                return true()

            return self.stage.wait(ready, seconds)

        self.guarded.start(wait)
        self._away.append((from_ns, time.monotonic_ns()))

    def _reuse(self, lasting_seconds: float) -> None:
        """Remove the likely victim and make it again, small, while the daemon stands still."""
        self._stop(time.monotonic() + lasting_seconds)
        biggest = max(
            (pod for pod in self.pods.present.values() if not self.stage.is_dead(pod.instance)),
            key=lambda pod: self.stage.last_sample().pods.get(pod.instance, _NOTHING).usage_bytes,
            default=None,
        )
        if biggest is not None:
            self.pods.end(biggest)
            self.pods.remove([biggest])
            plan = replace(biggest.plan, kind="a", size_bytes=MIB)
            self._made_again(plan)

    def _made_again(self, plan: PodPlan) -> None:
        done = list(self.stage.done)
        self.pods.start([plan])
        self.stage.done += [one for one in done if one not in self.stage.done]

    def _churn(self) -> None:
        present = self.pods.present
        if len(present) < 24:
            self._made_again(self.draw.pod(MIB, may_be_kept=False))

    def _come_back(self) -> None:
        """Have the configuration that was meant in force, and the daemon running."""
        self._continue()
        if self._refused:
            self.guarded.configure(self.rules)
            self.guarded.reload()
            self._refused = False
        if not self.stage.wait(self.guarded.is_ready, 20.0 * self.slowness):
            raise StageError(f"the daemon does not come back from its reload: {self.guarded.log_tail()}")

    def _judged(
        self, hogs: Sequence[Present], disturbed: tuple[Disturbance, ...], *, is_fast: bool, is_leak: bool
    ) -> Outcome:
        # Asked anew each time: a canary may have died while the others were waited for.
        self.stage.wait(lambda: all(map(self._is_gone, self._dying())), _DYING_SECONDS * self.slowness)
        next_since = self.stage.sample(on=True) - 1
        deaths: dict[int, int] = {}
        for death in sorted(self.stage.deaths, key=lambda one: one.at_ns):
            deaths.setdefault(death.instance, death.at_ns)
        seen: dict[int, int] = {}
        for death in self.stage.deaths:
            seen[death.instance] = min(death.seen_ns, seen.get(death.instance, death.seen_ns))
        actors = {death.instance: death.at_ns for death in self.stage.deaths if death.who == "actor"}
        lives = self.pods.lives
        by_kernel = self.pods.oom_killed()
        kills = [
            Kill(
                instance=instance,
                at_ns=at_ns,
                seen_ns=seen[instance],
                struck_ns=self.stage.struck.get(instance),
                gone_ns=self._gone_ns(instance),
                tmpfs_bytes=self._tmpfs_bytes(instance),
                is_kernels=instance in by_kernel,
            )
            for instance, at_ns in deaths.items()
            if instance in lives and not ((ended := lives[instance].ended_ns) is not None and ended <= at_ns)
        ]
        episode = Episode(
            samples=list(self.stage.samples(self._since)),
            lives={
                instance: replace(life, processes_gone_ns=actors.get(instance))
                for instance, life in lives.items()
            },
            kills=kills,
            rules=list(dict.fromkeys(self._all_rules)),
            crossed_ns=self.stage.crossed_ns,
            away=list(self._away),
            unresolved=self._unresolved,
            soft_met_ns=self._soft_met_ns,
            leaks=frozenset(pod.instance for pod in hogs) if is_leak else frozenset(),
            growths=list(self._growths),
            slowness=self.slowness,
        )
        killed = [kill.instance for kill in kills]
        self.stage.wait(lambda: all(map(self._is_gone, killed)), _DYING_SECONDS * self.slowness)
        # Only the daemon knows whether it looked while the minimum reclaim was there, too.
        self._unresolved = self._unresolved or bool(kills)
        self._soft_met_ns = soft_met_ns(episode)
        verdict = judge(episode)
        outcome = Outcome(
            episode=episode,
            verdict=verdict,
            to_kill_ms=self._latencies(episode, verdict),
            past_mib=[verdict.kills[0].past_bytes / MIB] if self._is_timed(episode, verdict) else [],
            is_fast=is_fast,
            disturbed=disturbed,
            is_leak=is_leak,
            saved=frozenset(self.stage.saved),
            save_seconds={pod.instance: pod.plan.save_seconds for pod in self.pods.present.values()},
            partly_killed=tuple(
                lives[kill.instance].name
                for kill in kills
                if not (self._is_gone(kill.instance) or kill.is_kernels)
            ),
        )
        oom_killed = self._clear(hogs, outcome)
        self._since = next_since
        return replace(outcome, oom_killed=oom_killed)

    def _dying(self) -> list[int]:
        killed = {death.instance for death in self.stage.deaths}
        present = self.pods.present.values()
        return [pod.instance for pod in present if pod.instance in killed or self.stage.is_dying(pod.slot)]

    def _is_gone(self, instance: int) -> bool:
        """Return whether both the actor and the canary of an instance have ended."""
        ended = {death.who for death in self.stage.deaths if death.instance == instance}
        return {"actor", "canary"} <= ended

    def _gone_ns(self, instance: int) -> int | None:
        """Return when a killed pod had given back what it can; None where it has not."""
        died_ns = [one.at_ns for one in self.stage.deaths if one.instance == instance and one.who == "actor"]
        pod = self._present(instance)
        if not died_ns or pod is None or (pod.holds_tmpfs and not pod.tmpfs_gone_ns):
            return None
        return max(died_ns[0], pod.tmpfs_gone_ns)

    def _tmpfs_bytes(self, instance: int) -> int | None:
        """Return how much a pod has written to the tmpfs, None of one that is not there any more."""
        pod = self._present(instance)
        return None if pod is None else pod.note_tmpfs()

    def _present(self, instance: int) -> Present | None:
        return next((one for one in self.pods.present.values() if one.instance == instance), None)

    @staticmethod
    def _is_timed(episode: Episode, verdict: Verdict) -> bool:
        first = verdict.kills[0] if verdict.kills else None
        is_hard = (
            first is not None and not first.is_soft and first.wrong is None and not first.kill.is_kernels
        )
        return is_hard and not (episode.away or episode.leaks) and len(episode.rules) == 1

    def _latencies(self, episode: Episode, verdict: Verdict) -> list[float]:
        """Return ms from the crossing to the first kill, by the actor's and the stage's clocks.

        Only where the daemon was there all the time, under one configuration, and a kill ends it. The actor's
        instant is the better one; but it may note a crossing that the kernel's batches took back for a while.
        Where a minimum reclaim is wanted the reason for a kill may come long before the crossing.
        """
        if not self._is_timed(episode, verdict):
            return []
        from_ns, at_ns = verdict.kills[0].window
        noted_ns = episode.crossed_ns
        wants_more = episode.rules[0].minimum_reclaim_bytes > 0
        if noted_ns is None or not from_ns <= noted_ns <= at_ns:
            return [] if wants_more else [(at_ns - from_ns) / 1e6]
        if wants_more or noted_ns < from_ns + _SAME_CROSSING_NS:
            from_ns = noted_ns
        return [(at_ns - from_ns) / 1e6]

    def _clear(self, hogs: Sequence[Present], outcome: Outcome) -> tuple[str, ...]:
        """Remove who died and who grew, make as many again, and forget what was judged.

        Return in whom the kernel killed while the daemon was there.
        """
        killed = {judged.kill.instance for judged in outcome.verdict.kills}
        gone = [pod for pod in self.pods.present.values() if pod.instance in killed]
        grown = [pod for pod in hogs if self.pods.present.get(pod.plan.name) is pod and pod not in gone]
        for pod in (*grown, *(one for one in gone if not self._is_gone(one.instance))):
            self.pods.end(pod)
        oom_killed = self.pods.remove([*gone, *grown], was_away=bool(self._away))
        self._files_due.clear()
        self._noticed.clear()
        self.pods.forget_lives()
        self._all_rules = [self.rules]
        self._away.clear()
        self._waiting.clear()
        self._orders.clear()
        self._ordered = 0
        self._guard()
        again = [self._another(pod) for pod in (*gone, *grown) if not pod.plan.is_outside]
        self.pods.start(again)
        self.stage.done.clear()
        return () if outcome.episode.away else oom_killed

    def _another(self, pod: Present) -> PodPlan:
        """Draw who comes in the place of a pod: half of the time under its very name."""
        is_same = pod.plan.is_manifested or self.draw.seconds(1) < 0.5
        name = pod.plan.name if is_same else None
        return self.draw.pod(pod.plan.size_bytes, name=name, may_be_kept=False)
