"""What is kept for the steward until it has taken it: the journal's lines, and reports to the API server.

If a steward ends, nothing is lost: what it has not said to be safe is sent to the next, which may receive
it twice. What is kept is bounded; what does not fit is lost and counted. Nothing here waits for the steward.
"""

from __future__ import annotations

import json
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

import trio

from reactor.forms import FormError
from reactor.link.frames import LONGEST_BYTES, FrameKind, Message
from reactor.model.rules import Marks
from reactor.model.signals import NodeCondition

_LOG: Final = logging.getLogger("reactor.journal")
_MOST_WAITING: Final = 256
_MOST_UNMADE: Final = 32
_MOST_KEPT: Final = 64
_MOST_KEPT_BYTES: Final = 1 << 20

Document = Mapping[str, Any]
Make = Callable[[], Document]
# What a ranking is made from, a few places at a time.
Ranking = Callable[[], Iterable[Sequence[Document]]]

_API_LOG: Final = logging.getLogger("reactor.announce")
_MOST: Final = 256
EVICTION, CONDITIONS, MARKS, SHUTDOWN = "eviction", "conditions", "marks", "shutdown"
THRESHOLD_MET, SYSTEM_OOM, SLOWED_DOWN = "threshold met", "system OOM", "evictions slowed down"
NO_VICTIM: Final = "no evictable pod"
PROCESS_KILLED: Final = "process killed"


class _Unmade(NamedTuple):
    """What a line is made from; `seq` is its place in the journal."""

    seq: int
    make: Make
    ranking: Ranking | None


Send = Callable[[Message], Awaitable[None]]


class _Kept:
    """Messages in the order of their numbers, each by its key; `_sent` is the last number that was sent."""

    def __init__(self) -> None:
        self.lost = 0
        self._kept: dict[Hashable, Message] = {}
        self._sent = 0
        self._changed = trio.Event()

    def restart(self) -> None:
        """Begin again with what is not safe yet: there is another steward."""
        self._sent = 0
        self._wake()

    async def send_to(self, send: Send) -> None:
        """Send the present steward everything, as it comes; never return."""
        while True:
            await send(await self.next())

    async def next(self) -> Message:
        """Return what is to be sent next; wait for it."""
        while (kept := self._next()) is None:
            await self._changed.wait()
        return kept

    def _next(self) -> Message | None:
        for message in self._kept.values():
            if message.number > self._sent:
                self._sent = message.number
                return message
        return None

    def _wake(self) -> None:
        # Another event for those who wait from now on: there may be two of them.
        changed, self._changed = self._changed, trio.Event()
        changed.set()


# The lines are
#
# waiting     not encoded yet, since that takes a while; bounded, and what does not fit is lost and counted.
#             Where many wait, the others are encoded at once, with the head of their ranking alone: what
#             they are made from holds all pods of that moment
# kept        encoded, sent or to be sent; sent again to the next steward where one ends before it took them
class RecordQueue(_Kept):
    """Queues lines for the steward.

    Each line has the `start` of this run and its place in it, `seq`: by them lines can be put in order, and a
    place that is missing is a line that was lost. `written` and `lost` count lines as the steward says, and
    as they did not fit here; `problem` says why lines are being lost at present (None: they aren't).
    """

    def __init__(self, start: str) -> None:
        super().__init__()
        self.start = start
        self.written = 0
        self.problem: str | None = None
        self._seq = 0
        self._waiting: deque[_Unmade | Message] = deque()
        self._kept_bytes = 0

    def __len__(self) -> int:
        return len(self._waiting) + len(self._kept)

    def write(self, make: Make, ranking: Ranking | None = None) -> bool:
        """Queue a line, made later; return False where it had to be dropped.

        `ranking` makes what stands in it under that key, in pieces: a thousand pods take a while.
        """
        self._seq += 1
        if len(self._waiting) >= _MOST_WAITING:
            why = "its queue is full: the steward does not take them"
            if self.problem is None:  # once, not for each line, of which there may be a flood
                _LOG.error("journal: lines are being lost: %s", why)
            self.problem = why
            self.lost += 1
            return False
        line: _Unmade | Message = _Unmade(self._seq, make, ranking)
        with self._counts_loss():
            if len(self._waiting) >= _MOST_UNMADE:
                head = None if ranking is None else next(iter(ranking()), [])
                cut = {} if head is None else {"ranking": head, "ranking_is_cut": True}
                line = Message(FrameKind.LINE, self._seq, encode(self._document(self._seq, make) | cut))
            self._waiting.append(line)
            self._wake()
        return True

    def taken(self, up_to: int, lost: int) -> None:
        """Forget lines that the steward is done with. Raises FormError for what can't be."""
        places = [message.number for message in self._kept.values() if message.number <= self._sent]
        if up_to not in places:
            raise FormError(f"got line {up_to} as taken; accepted: one that was sent and not taken yet")
        count = places.index(up_to) + 1
        if lost > count:
            raise FormError(f"got {lost} lost lines; accepted: {count} at the most")
        for place in places[:count]:
            self._kept_bytes -= len(self._kept.pop(place).content)
        self.written += count - lost
        self.lost += lost
        if lost:
            # The steward has said why, in the log and in its own problem.
            self.problem = None
        elif self.problem is not None:
            _LOG.warning("journal: recovered; %d lines lost", self.lost)
            self.problem = None
        self._wake()

    async def next(self) -> Message:
        """Return what is to be sent next, as any does; what is encoded here makes way for the loop."""
        while True:
            if (kept := self._next()) is not None:
                return kept
            if self._waiting and len(self._kept) < _MOST_KEPT and self._kept_bytes < _MOST_KEPT_BYTES:
                line = self._waiting[0]
                with self._counts_loss():
                    message = line if isinstance(line, Message) else await self._encoded(line)
                    self._kept[message.number] = message
                    self._kept_bytes += len(message.content)
                self._waiting.popleft()
                continue
            await self._changed.wait()

    async def wait_empty(self) -> None:
        """Wait until all that was written has been taken."""
        while len(self):
            await self._changed.wait()

    async def _encoded(self, line: _Unmade) -> Message:
        content = await _encode(self._document(line.seq, line.make), line.ranking)
        if len(content) > LONGEST_BYTES:
            raise ValueError(f"a line of {len(content)} bytes; accepted: {LONGEST_BYTES}")
        return Message(FrameKind.LINE, line.seq, content)

    def _document(self, seq: int, make: Make) -> dict[str, Any]:
        return {**make(), "start": self.start, "seq": seq}

    @contextmanager
    def _counts_loss(self) -> Iterator[None]:
        """Log and count a line that can't be made inside the block, which is a defect of ours."""
        try:
            yield
        except Exception:  # noqa: BLE001 - whatever one line holds, the next is written
            _LOG.exception("journal: a line was lost")
            self.lost += 1


async def _encode(document: dict[str, Any], ranking: Ranking | None) -> bytes:
    if ranking is None:
        return encode(document)
    document.pop("ranking", None)
    pieces = [encode(document)[:-2]]
    places = b',"ranking":['
    for some in ranking():
        await trio.lowlevel.checkpoint()
        if some:
            pieces += [places, encode(some)[1:-2]]
            places = b","
    if len(pieces) == 1:
        pieces.append(places)
    return b"".join((*pieces, b"]}\n"))


def encode(document: object) -> bytes:
    return json.dumps(document, separators=(",", ":"), default=str).encode() + b"\n"


class ClusterReports(_Kept):
    """Queues what the API server is to receive; `lost` counts the reports that did not fit, the oldest.

    eviction        a pod was evicted, or is to end within its grace period; its uid is the key, by which the
                    latest report stands for those before it
    conditions      those of the node that are in force
    marks           what the node shows by rules
    shutdown        whether the node shuts down
                    these three are reported where they differ from before, and to each new steward
    events          about the node: a threshold was met, the kernel killed, evictions are slowed down; about a
                    pod: a process of it was killed
    """

    def __init__(self) -> None:
        super().__init__()
        self._number = 0
        self._lasting: dict[str, Document] = {}

    def __len__(self) -> int:
        return len(self._kept)

    def evicted(self, uid: str, document: Document) -> None:
        self._report((EVICTION, uid), EVICTION, {"uid": uid, **document})

    def conditions(
        self, conditions: Collection[NodeCondition], unknown: Collection[NodeCondition] = ()
    ) -> None:
        """Report the conditions in force, and the unknown ones."""
        also = {"unknown": list(unknown)} if unknown else {}
        self._show(CONDITIONS, conditions=list(conditions), **also)

    def marks(self, marks: Marks) -> None:
        self._show(MARKS, shown=[list(one) for one in marks.shown], left=[list(one) for one in marks.left])

    def shutdown(self, *, is_under_way: bool) -> None:
        self._show(SHUTDOWN, is_under_way=is_under_way)

    def event(self, kind: str, **about: object) -> None:
        self._report((kind, self._number), kind, about)

    def restart(self) -> None:
        """Begin again with what is not safe yet, and with what lasts: there is another steward."""
        super().restart()
        for kind, document in self._lasting.items():
            if kind not in self._kept:
                self._report(kind, kind, document)

    def reported(self, number: int) -> None:
        """Forget a report that is safe. Raises FormError for one that was not sent.

        One that was replaced meanwhile is not kept any more.
        """
        if not 0 < number <= self._sent:
            raise FormError(f"got report {number} as safe; accepted: one that was sent")
        self._kept = {key: one for key, one in self._kept.items() if one.number != number}

    def _show(self, kind: str, **document: object) -> None:
        if self._lasting.get(kind) != document:
            self._lasting[kind] = document
            self._report(kind, kind, document)

    def _report(self, key: Hashable, kind: str, document: Document) -> None:
        self._number += 1
        self._kept.pop(key, None)
        self._kept[key] = Message(FrameKind.REPORT, self._number, encode({"report": kind, **document}))
        while len(self._kept) > _MOST:
            if not self.lost:
                _API_LOG.error("reports to the API server are being lost: the steward does not take them")
            self.lost += 1
            del self._kept[next(iter(self._kept))]
        self._wake()
