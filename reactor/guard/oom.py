"""What is said of the kernel's own OOM kills: a journal line, a log line, a count.

A kill at a limit that reactor guards means that the kernel was faster, and is said to be so. One at a pod's
own limit is the kernel doing what that limit asks for.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from reactor.guard.node import Node
from reactor.guard.oom_victims import pod_in
from reactor.link.documents import OOM_KILL, instant
from reactor.model.amounts import amount_text
from reactor.model.oom import OomKill, OomScope
from reactor.model.pods import Pod
from reactor.model.signals import Resource
from reactor.text import printable

_LOG: Final = logging.getLogger("reactor.oom")
_SAYS: Final = {
    OomScope.NODE: "the kernel's OOM killer was faster than us",
    OomScope.OWN_LIMIT: "at the limit of a pod or container, not for the node's sake",
    OomScope.ABOVE_NODE: "memory ran out above the guarded node",
    OomScope.UNKNOWN: "the kernel's counters do not say at whose limit",
}

Document = Mapping[str, Any]


class OomKills:
    """Records kills as the source tells them. `write` journals, `count` counts; neither may block.

    `glance` brings the known pods up to date: a pod that meets its limit at its start is younger than the
    last housekeeping.
    """

    def __init__(
        self,
        known: Node,
        write: Callable[[Callable[[], Document]], object],
        count: Callable[[OomKill], None],
        glance: Callable[[], None],
    ) -> None:
        self._known = known
        self._write = write
        self._count = count
        self._glance = glance
        self.counted = dict.fromkeys(OomScope, 0)

    def record(self, kill: OomKill) -> None:
        """Record one kill, or several that were only counted."""
        document = self._document(kill)
        self.counted[kill.scope] += kill.kills
        self._count(kill)
        self._write(lambda: document)
        level = logging.ERROR if kill.scope is OomScope.NODE else logging.WARNING
        _LOG.log(level, "%s; scope=%s decision=%d", document["message"], kill.scope, document["decision"])

    def _document(self, kill: OomKill) -> Document:
        pod = self._victim(kill.victim_cgroup)
        evicting = pod is not None and self._known.under_way.at(pod.uid, kill.at_ns)
        return {
            "kind": OOM_KILL,
            "time": instant(time.time() - (time.monotonic_ns() - kill.at_ns) / 1e9),
            "at_ns": kill.at_ns,
            "decision": self._known.passes,  # the last one before it was told
            "source": kill.source,
            "scope": kill.scope,
            "kills": kill.kills,
            "pid": kill.pid,
            "comm": kill.comm,
            "victim_bytes": kill.victim_bytes,
            "victim_cgroup": kill.victim_cgroup,
            "pod": None if pod is None else pod.key,
            "uid": None if pod is None else pod.uid,
            "being_evicted": evicting,
            "limit_cgroup": kill.limit_cgroup,
            "limit_bytes": kill.limit_bytes,
            "usage_bytes": kill.usage_bytes,
            "message": _message(kill, pod, evicting=evicting),
        }

    def _victim(self, cgroup: str | None) -> Pod | None:
        """Return the pod that died in a cgroup, None where that is in none."""
        if cgroup is None:
            return None
        pod = pod_in(cgroup, self._known.pods)
        if pod is None:
            self._glance()
            pod = pod_in(cgroup, self._known.pods)
        return pod


def _message(kill: OomKill, pod: Pod | None, *, evicting: bool) -> str:
    """Return what happened as one line."""
    where = ""
    if kill.limit_bytes is not None:
        limit = amount_text(kill.limit_bytes, Resource.MEMORY)
        where = f" at the limit of {limit} of {kill.limit_cgroup or 'the machine'}"
    if kill.pid is None:
        victim = f"{kill.kills} process{'es' if kill.kills > 1 else ''}, by the kernel's count"
    else:
        size = amount_text(kill.victim_bytes or 0, Resource.MEMORY)
        home = pod.key if pod is not None else kill.victim_cgroup or "a cgroup that is not known"
        victim = (
            f"{kill.comm} (pid {kill.pid}, {size}) of {home}{', which was being evicted' if evicting else ''}"
        )
    return printable(f"OOM kill of {victim}{where}: {_SAYS[kill.scope]}")
