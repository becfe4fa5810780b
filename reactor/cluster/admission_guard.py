"""Pods that arrive while the node is under pressure or shuts down, and that a kubelet would not admit.

The kubelet beside us admits by its own conditions, which lag behind by up to ten seconds; what it lets in is
failed here as its admission would have done. Source: kubelet's HandlePodAdditions, rejectPod.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from reactor.cluster.announce import Announcement
from reactor.kube.pods import PENDING, KnownPod, PodStore
from reactor.model.signals import NodeCondition
from reactor.policy.admission import admit


class AdmissionGuard:
    """Checks each pod once, when it is first listed; those of the first list were there before."""

    def __init__(
        self,
        pods: PodStore,
        refuse: Callable[[Announcement], None],
        clock_unix_seconds: Callable[[], float],
    ) -> None:
        self._pods = pods
        self._refuse = refuse
        self._clock_unix_seconds = clock_unix_seconds
        self._seen: frozenset[str] | None = None

    def check(self, conditions: Sequence[NodeCondition], *, is_shutting_down: bool = False) -> None:
        """Refuse what has arrived since the last check, if conditions or a shutdown don't admit it."""
        if not self._pods.is_complete:
            return
        known = self._pods.known
        if self._seen is not None:
            for uid in known.keys() - self._seen:
                self._admit(known[uid], conditions, is_shutting_down=is_shutting_down)
        self._seen = frozenset(known)

    def _admit(self, known: KnownPod, conditions: Sequence[NodeCondition], *, is_shutting_down: bool) -> None:
        if known.phase != PENDING or known.has_started or known.is_being_deleted:
            return
        admission = admit(known.pod, conditions, is_shutting_down=is_shutting_down)
        if admission.message is not None and admission.reason is not None:
            self._refuse(
                Announcement(
                    uid=known.api_uid,
                    name=known.pod.name,
                    namespace=known.pod.namespace,
                    message=admission.message,
                    reason=admission.reason,
                    at_unix_seconds=self._clock_unix_seconds(),
                    disrupted=False,
                    refused=True,
                )
            )
