"""Which pods the policy is asked about: all, but for those that an eviction could not end or emptied."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Final

from reactor.model.pods import Pod

_EMPTY_SECONDS: Final = 0.02


class Candidates:
    """Keeps three kinds of pods from being chosen over and over while others should be.

    An evicted pod's cgroup may stay behind empty: it is left out until a process lives in it again. So is one
    that was found without a process, before its first one or between two. A pod whose kill failed is spared
    for `spare_seconds`, and the ranking says why. What lives again in a pod that `is_kept_down` is killed
    without being chosen: a kubelet that has not heard of the eviction starts its containers again.
    """

    def __init__(self, *, spare_seconds: float = 30.0) -> None:
        self.is_kept_down: Callable[[str], bool] = lambda _: False
        self._spare_seconds = spare_seconds
        self._ended: set[str] = set()
        self._found_empty: dict[str, float] = {}
        self._failed: dict[str, tuple[float, str]] = {}

    def ended(self, uid: str) -> None:
        """Note that an eviction emptied this pod."""
        self._ended.add(uid)

    def ended_among(self, pods: Sequence[Pod]) -> tuple[Pod, ...]:
        """Return which of these pods an eviction has emptied."""
        return tuple(pod for pod in pods if pod.uid in self._ended)

    def empty(self, uid: str, now_seconds: float) -> bool:
        """Note that there was no process in this pod to be killed; return whether that is news.

        It is not where the same was found a moment ago: then processes come and go there, and to choose again
        at once would go on for ever.
        """
        self._ended.add(uid)
        before_seconds = self._found_empty.get(uid)
        self._found_empty[uid] = now_seconds
        return before_seconds is None or now_seconds - before_seconds >= _EMPTY_SECONDS

    def failed(self, uid: str, why: str, now_seconds: float) -> None:
        """Note that this pod could not be ended."""
        self._failed[uid] = (now_seconds + self._spare_seconds, why)

    def forget_absent(self, pods: Sequence[Pod]) -> None:
        """Forget what was noted of pods that are no longer listed."""
        present = {pod.uid for pod in pods}
        self._ended &= present
        self._found_empty = {uid: at for uid, at in self._found_empty.items() if uid in present}
        self._failed = {uid: noted for uid, noted in self._failed.items() if uid in present}

    def of(self, pods: Sequence[Pod], now_seconds: float, populated: Callable[[Pod], bool]) -> Sequence[Pod]:
        """Return the pods to decide over, in their order; `populated` tells whether a process is in one."""
        if not self._ended and not self._failed:
            return pods
        self._failed = {uid: noted for uid, noted in self._failed.items() if now_seconds < noted[0]}
        self._ended -= {
            pod.uid
            for pod in pods
            if pod.uid in self._ended and not self.is_kept_down(pod.uid) and populated(pod)
        }
        return tuple(self._spared(pod) for pod in pods if pod.uid not in self._ended)

    def _spared(self, pod: Pod) -> Pod:
        noted = self._failed.get(pod.uid)
        if noted is None or pod.critical_because is not None:
            return pod
        why = f"could not be ended: {noted[1]}"
        return dataclasses.replace(pod, critical_because=why, could_not_be_ended=True)
