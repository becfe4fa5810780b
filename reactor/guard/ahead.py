"""The kills that the kernel makes at a crossing, by a decision that it was given before."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from reactor.model.decisions import Decision, PolicyState, Snapshot
from reactor.model.pods import Pod
from reactor.model.settings import EvictionSettings
from reactor.policy.forecast import Ahead
from reactor.sources.levels import MemoryLevel


class Served(Protocol):
    """A kill that the kernel made at a crossing, by a decision that it was given before."""

    @property
    def document(self) -> Callable[[], Mapping[str, Any]]:
        """Return it as plain JSON values, as far as it is written."""

    def decision(self) -> Decision:
        """Return the decision that the kernel has carried out."""

    def at_crossing(self, snapshot: Snapshot) -> Snapshot:
        """Return what was observed last with what was so at the crossing."""

    def crossed_ns(self) -> int | None:
        """Return when the level was crossed, None if that is not written yet."""

    def signalled_ns(self) -> int | None:
        """Return when the kernel sent SIGKILL, None if it refused to."""


class KernelKills(Ahead, Protocol):
    """What has the kernel kill at the crossing itself."""

    def served(self) -> Served | None:
        """Return the kill that the kernel has made since it was asked last; for the beginning of a pass."""
        return None

    def begin(self) -> None:
        """Record what stands before the pods are listed and observed for a forecast."""

    def levels(self, levels: Sequence[MemoryLevel]) -> None:
        """Take over where the crossings of hard thresholds are now."""

    def stand_down(
        self, settings: EvictionSettings, state: PolicyState, pods: Sequence[Pod], decision: Decision
    ) -> bool:
        """Do as `far`, unless the pass leaves all as it was when the kernel was given its decision.

        Return whether the kernel has killed meanwhile: then the pass has observed the victim's end.
        """

    def why_not_served(self) -> str | None:
        """Return why the kernel has not killed at the crossing that a pass has acted on."""
        return None


class NoKernelKills(KernelKills):
    """The kernel is given no decision."""

    def stand_down(self, *_: object) -> bool:
        return False
