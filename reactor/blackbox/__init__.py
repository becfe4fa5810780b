"""The black box: what the node and its pods did before an eviction, and what the victim was running.

(here)      the guard's side: which pods there are, and that a crossing is near; sent to the steward
sampler     the steward's side: reads memory, often only while it moves or a threshold is near
series      what was read, bounded: the last minute finely, the last hour coarsely
processes   the largest processes of a pod, with their commands as far as those are safe to write down
record      what of it is added to a line of the journal, 16 KiB at most
live        the page of the last hour on the metrics port

The guard sends two small messages and samples nothing. Both are noted in a pass at the price of an
assignment, and sent by a task of its own once the pass is over. A node whose pods do not change and whose
memory is not short sends nothing. If the steward has just been started, a record says that nothing was
observed before.
"""

from __future__ import annotations

import json
import math
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final, NamedTuple, Protocol

import trio

from reactor.link.frames import FrameKind, Message
from reactor.model.pods import Pod

_AT_ONCE: Final = 256  # in a piece, as with places: encoded in a fraction of a millisecond
_BETWEEN_SECONDS: Final = 0.5
PRESENT, NEAR = 0, 1  # numbers of messages: which pods there are; which a near crossing would evict

Send = Callable[[Message], Awaitable[None]]


class Forecast(Protocol):
    """What of a forecast (`reactor.policy.forecast`) is sent."""

    @property
    def prepared(self) -> Sequence[Pod]: ...

    @property
    def now_seconds(self) -> float: ...


class KnownPod(NamedTuple):
    """A pod as the steward knows it. `is_never_evicted` says that no threshold and no rule evicts it."""

    uid: str
    pod: str
    cgroup: str
    is_never_evicted: bool = False


class PodChanges(NamedTuple):
    """Pods that have come or changed, and the uids of those that are gone."""

    came: tuple[KnownPod, ...] = ()
    gone: tuple[str, ...] = ()


class Feed:
    """Stands ahead of a crossing (`Ahead`); `send_to` serves one steward after the other.

    That a crossing is near is sent at most twice a second.
    """

    reads_all = False

    def __init__(self) -> None:
        self._pods: Sequence[Pod] = ()
        self._near: Sequence[Pod] = ()
        self._near_seconds = -math.inf
        self._is_news = False
        self._changed = trio.Event()

    def near(self, forecast: Forecast, *_: object) -> None:
        """Note who would be evicted, for the task that sends it."""
        if forecast.now_seconds - self._near_seconds < _BETWEEN_SECONDS:
            return
        self._near, self._near_seconds, self._is_news = forecast.prepared, forecast.now_seconds, True
        self._changed.set()

    def far(self) -> None:
        """Do nothing: the steward sees by itself that memory is there again."""

    def pods(self, pods: Sequence[Pod]) -> None:
        """Note the pods, for the task that sends them."""
        self._pods = pods
        self._changed.set()

    def retry_seconds(self) -> float:
        return math.inf

    async def send_to(self, send: Send) -> None:
        """Send all pods, then each change, until cancelled. Raises what `send` raises."""
        sent: dict[str, KnownPod] = {}
        while True:
            self._changed = trio.Event()
            if self._is_news:
                self._is_news = False
                await send(Message(FrameKind.PODS, NEAR, _write(_known(self._near), ())))
            await self._send_changes(send, sent)
            await self._changed.wait()

    async def _send_changes(self, send: Send, sent: dict[str, KnownPod]) -> None:
        """Bring what a steward knows up to date; the loop's other tasks run in between."""
        present = {pod.uid: pod for pod in _known(self._pods)}
        gone = [uid for uid in sent if uid not in present]
        came = [pod for uid, pod in present.items() if sent.get(uid) != pod]
        for start in range(0, max(len(gone), len(came)), _AT_ONCE):
            some_gone, some = gone[start : start + _AT_ONCE], came[start : start + _AT_ONCE]
            await send(Message(FrameKind.PODS, PRESENT, _write(some, some_gone)))
            for uid in some_gone:
                del sent[uid]
            sent.update((pod.uid, pod) for pod in some)
            await trio.lowlevel.checkpoint()


def _known(pods: Iterable[Pod]) -> list[KnownPod]:
    return [
        KnownPod(pod.uid, pod.key, pod.cgroup, pod.critical_because is not None)
        for pod in pods
        if pod.cgroup is not None
    ]


def _write(came: Sequence[KnownPod], gone: Sequence[str]) -> bytes:
    """Return the bytes; a name's bytes that are no UTF-8 survive as surrogates."""
    return json.dumps({"came": came, "gone": gone}).encode()


def read_pods(content: bytes) -> PodChanges:
    """Return what the guard has written. For the steward, which trusts it."""
    document = json.loads(content)
    return PodChanges(tuple(KnownPod(*one) for one in document["came"]), tuple(document["gone"]))
