"""The pods of a pass that memory has woken: the charge of each bounds it, and few are read before a kill.

Which ones they are is the policy's to say (policy/bounds.py). All others are read after the kill: by the
history of kills later ones are judged, and the record has all numbers.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Final, NamedTuple

from reactor.model.decisions import Inputs
from reactor.model.pods import Pod, PodUsage
from reactor.model.settings import EvictionSettings
from reactor.observe.pods import PodObserver
from reactor.policy.bounds import Bounded, standings, unsettled
from reactor.policy.decide import Due
from reactor.policy.forecast import hold_too_little

# To read so few is as fast as to choose among them.
FEW_PODS: Final = 16
_MOST_BY_WIDE_BOUNDS: Final = 8
_MOST_LARGEST: Final = 8
_CLOSE: Final = 4  # so many times what all others hold together is in the likely victim


class Known(NamedTuple):
    """The most that each pod can hold that was not read, and what the others use; by uid.

    Of those in `charged` the bound is what is charged to the pod, with no swap in it. `is_wide`: few are.
    """

    bounds: dict[str, int]
    used: dict[str, PodUsage]
    charged: AbstractSet[str] = frozenset()
    is_wide: bool = False


class GivesWayError(Exception):
    """Reading pods was given up for what can't wait."""


class BoundedPods:
    """Reads as much of the pods as a decision needs. Of the `likely` ones, by uid, the first is read first.

    `largest` are pods to which much was charged a moment ago: of all others their parents' charge is a bound
    that may be close enough. None where it can't be.
    """

    def __init__(self, settings: EvictionSettings, usages: PodObserver) -> None:
        self.likely: Sequence[str] = ()
        self.largest: Collection[str] = ()
        self._settings = settings
        self._usages = usages
        self._standings = standings(())

    def observe(self, between: Callable[[], object] = bool) -> Known:
        """Return the most that each pod can hold, and what those use of which that is not known.

        `between` is called before each few pods, and ends the reading by what it raises.
        """
        bounds, used = self._usages.bounds(between)
        return Known(bounds, used, frozenset() if self._settings.counts_swap else bounds.keys())

    def observe_few(self) -> Known | None:
        """Return what `observe` does, by less reading; None: bounds can't be had so, or leave out no pod."""
        found = self._usages.wide_bounds((*self.likely, *self.largest)) if self.largest else None
        if found is None:
            return None
        known = Known(*found, is_wide=True)
        most_bytes = max(map(known.bounds.__getitem__, known.charged), default=0)
        return known if max(known.bounds.values(), default=0) <= most_bytes else None

    def expect(self, bounds: Mapping[str, int], prepared: Iterable[Pod]) -> None:
        """Record which pods were prepared before a crossing, and the bounds of then."""
        self.likely = tuple(pod.uid for pod in prepared)
        largest = heapq.nlargest(_MOST_LARGEST, bounds, key=bounds.__getitem__)
        left_bytes = sum(bounds.values()) - sum(map(bounds.__getitem__, largest))
        self.largest = largest if left_bytes * _CLOSE <= bounds.get(next(iter(self.likely), ""), 0) else ()

    def settle(
        self, inputs: Inputs, found: Known, *, heads: int = 1, between: Callable[[], object] = bool
    ) -> Due | None:
        """Return what is due by a snapshot of what was `found`; read what it needs. None: that is all pods.

        What is read comes into `found`, and so into the snapshot. `between` is as for `observe`. Wide bounds
        ask for closer ones instead, once a few pods that were read settle nothing.
        """
        known = self._known(inputs, found)
        for number, uid in enumerate(unsettled(known, heads=heads)):
            between()
            if not isinstance(uid, str):
                return uid
            if found.is_wide and number >= _MOST_BY_WIDE_BOUNDS:
                break
            self.read(found, [uid])
        return None

    def read(self, found: Known, uids: Iterable[str | None]) -> None:
        """Read what those of these pods use of which only a bound was found."""
        for uid in found.bounds.keys() & uids:
            del found.bounds[uid]
            found.used.update(self._usages.of([uid], with_containers=True))

    def hold_too_little(self, inputs: Inputs, found: Known) -> bool:
        """Return whether the decision over a snapshot of what was `found` evicts no pod, by bounds alone."""
        return hold_too_little(self._known(inputs, found))

    def _known(self, inputs: Inputs, found: Known) -> Bounded:
        pods = inputs.pods
        if pods != self._standings.pods:
            self._standings = standings(pods)
        elif pods is not self._standings.pods:  # equal, and from here on the same: compared at once
            self._standings = self._standings._replace(pods=pods)
        return Bounded(inputs, self._standings, self.likely[:1], found.charged)
