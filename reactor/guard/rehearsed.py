"""What a dry run has reported already: each pod that it would evict, once for one shortage."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from reactor.model.decisions import Decision, Eviction, PolicyState
from reactor.model.pods import Pod
from reactor.model.signals import LimitSignal, RuleSignal, Signal
from reactor.model.thresholds import Threshold

_Key = Threshold | tuple[Signal | LimitSignal | RuleSignal, str]


class Rehearsed:
    """Remembers what was reported until its threshold is not met any more, or its pod has gone."""

    def __init__(self) -> None:
        self._reported: set[_Key] = set()

    def news(self, decision: Decision, state: PolicyState, pods: Iterable[Pod]) -> Sequence[Eviction]:
        """Return which evictions of a decision were not reported for this shortage.

        A rule has a cool-down of its own, and is reported each time.
        """
        if self._reported:
            present = {pod.uid for pod in pods}
            self._reported = {key for key in self._reported if _lasts(key, state, present)}
        if decision.rule is not None:
            return decision.evictions
        fresh = [one for one in decision.evictions if _key(one) not in self._reported]
        self._reported.update(map(_key, fresh))
        return fresh


def _key(eviction: Eviction) -> _Key:
    return eviction.threshold or (eviction.signal, eviction.pod.uid)


def _lasts(key: _Key, state: PolicyState, present: set[str]) -> bool:
    return key in state.first_observed if isinstance(key, Threshold) else key[1] in present
