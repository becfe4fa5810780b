"""Evictions: a hard one kills at once, a soft one begins; endings.py sees each to its end."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from typing import Final

from reactor.errors import ReactorError
from reactor.guard.endings import Endings, resumed_eviction
from reactor.guard.record import EvictionAttempt
from reactor.guard.termination import one_process, whole_pod
from reactor.link.documents import Outcome
from reactor.model.decisions import Claim, Eviction
from reactor.model.pods import Pod
from reactor.policy.forecast import Ahead, Forecast

_LOG: Final = logging.getLogger("reactor.evict")
_CHOICE_SECONDS: Final = 0.5  # takes a few milliseconds at the most


class Evictor(Endings, Ahead):
    """Orders evictions, and prepares for them."""

    _retry_seconds = math.inf

    def adopt(self, deadline_seconds: float, *, dry_run: bool) -> None:
        """Do as a new configuration says from now on.

        A dry run kills no pod, also not at the end of a grace period that began before: the pod may have had
        its SIGTERM, the SIGKILL does not follow. All else that is under way goes on as it began.
        """
        self.deadline_seconds = deadline_seconds
        self.dry_run = dry_run
        if dry_run:
            self._call_off()

    def prepare(self, pods: Sequence[Pod], gives_way: Callable[[], bool] = bool) -> None:
        """Hold what it takes to end these pods at once, and no others."""
        wanted = () if self.dry_run else pods
        self.kills.prepare(wanted)
        self.kills.one_process.prepare(wanted, gives_way)

    def near(self, forecast: Forecast, gives_way: Callable[[], bool]) -> None:
        """Prepare for a crossing; see policy/forecast.py."""
        self.prepare(forecast.prepared, gives_way)
        is_chosen = any(pod.process_victim is not None for pod in forecast.first)
        self._retry_seconds = forecast.now_seconds + _CHOICE_SECONDS if is_chosen else math.inf

    def far(self) -> None:
        """Hold nothing: no crossing is near."""
        self.prepare(())
        self._retry_seconds = math.inf

    def retry_seconds(self) -> float:
        """Return when the processes of a prepared pod, of which one is to go, are to be read again."""
        return self._retry_seconds

    def holds(self, pod: Pod) -> bool:
        return not self.dry_run and self.kills.holds(pod)

    def begin(
        self,
        eviction: Eviction,
        *,
        by_kernel_ns: int | None = None,
        used_bytes: int | None = None,
        whole_because: str | None = None,
        counts_shared: bool = True,
    ) -> EvictionAttempt:
        """Order an eviction: without a grace period the pod is dead on return. Never raises, never waits.

        `by_kernel_ns` is when the kernel itself killed a process of the pod: here its others are.
        If one process of the pod is to end and the pod to live on, `used_bytes` is the pod's working set
        and `counts_shared` whether shared memory counts in the choice; `whole_because` says why it is the
        whole pod all the same.
        """
        if eviction.is_of_one_process and by_kernel_ns is None and whole_because is None:
            try:
                return self._begin_process(eviction, used_bytes, counts_shared=counts_shared)
            except (ReactorError, OSError) as error:
                whole_because = str(error)
        attempt = self._begin_whole(eviction, by_kernel_ns)
        attempt.whole_because = whole_because
        return attempt

    def _begin_whole(self, eviction: Eviction, by_kernel_ns: int | None = None) -> EvictionAttempt:
        pod = eviction.pod
        if self.dry_run:
            return _over(EvictionAttempt(eviction=eviction, outcome=Outcome.DRY_RUN))
        if eviction.grace_period_seconds > 0:
            return self._ask(EvictionAttempt(eviction=eviction), whole_pod(self.kills, pod))
        try:
            report = self.kills.kill_now(pod)
        except (ReactorError, OSError) as error:
            attempt = EvictionAttempt(eviction=eviction)
            attempt.fail(error)
            return _over(attempt)
        attempt = EvictionAttempt(eviction=eviction)
        attempt.stop(report)
        if by_kernel_ns is not None:
            attempt.stopped_by_kernel(by_kernel_ns)
        # Only now: cancelling what waits for the same pod is not on the way of the kill.
        self._pre_empt(pod.uid)
        self.nursery.start_soon(self._finish, attempt, whole_pod(self.kills, pod))
        return attempt

    def _begin_process(
        self, eviction: Eviction, used_bytes: int | None, *, counts_shared: bool
    ) -> EvictionAttempt:
        """Order the end of one process of a pod. Raises NoProcessError and as a kill if none is chosen."""
        kills, pod = self.kills.one_process, eviction.pod
        is_hard = eviction.grace_period_seconds <= 0
        find = kills.kill_first if is_hard and not self.dry_run else kills.choose
        chosen = find(pod, used_bytes, counts_shared=counts_shared, wanted_bytes=_missing_bytes(eviction))
        attempt = EvictionAttempt(eviction=eviction, process=chosen.process)
        if self.dry_run:
            chosen.close()
            attempt.outcome = Outcome.DRY_RUN
            return _over(attempt)
        victim = one_process(kills, chosen)
        if is_hard:
            attempt.stop(chosen.report())
            waiting = self._waiting.get(pod.uid)
            if waiting is not None and waiting[0].process is not None:
                self._pre_empt(pod.uid)
            self.nursery.start_soon(self._finish, attempt, victim)
            return attempt
        return self._ask(attempt, victim)

    def resume(self, pod: Pod, claim: Claim, now_seconds: float) -> EvictionAttempt:
        """Resume an earlier run's eviction; a soft one that is over, or of a spared pod, only if wanted."""
        left_seconds = max(0, math.ceil((claim.kill_at_seconds or 0.0) - now_seconds))
        eviction = resumed_eviction(pod, claim, left_seconds)
        _LOG.warning(
            "pod %s: resuming eviction after restart; %d s of grace left",
            pod.key,
            eviction.grace_period_seconds,
        )
        is_soft = claim.threshold is not None and not claim.threshold.is_hard
        is_doubted = eviction.grace_period_seconds == 0 or pod.critical_because is not None
        attempt = EvictionAttempt(eviction=eviction, outcome=Outcome.CALLED_OFF)
        is_off = is_soft and is_doubted and not self._is_still_wanted(attempt)
        return _over(attempt) if is_off else self._begin_whole(eviction)


def _missing_bytes(eviction: Eviction) -> int | None:
    if eviction.threshold is None or eviction.shortage is None:
        return None
    return eviction.threshold.missing(eviction.shortage.seen)


def _over(attempt: EvictionAttempt) -> EvictionAttempt:
    attempt.end()
    return attempt
