"""The steward's loop: lines into the journal, answers to clients, and what it remembers of both.

hear            what the guard says
    filesystems     followed for the guard; what is to be reclaimed of them
    storage         what pods take of them, counted by the walker
journal         a thread writes it; what is written is reported to the guard
notifications   of evictions, OOM kills and lost sources, by the journal's lines
status socket   status, explain, top: asked of the guard, completed here
metrics         scrapes and health, asked of the guard
"""

from __future__ import annotations

import json
import logging
import socket
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import trio

from reactor.blackbox.record import added
from reactor.blackbox.sampler import Sampler
from reactor.errors import ReactorError
from reactor.kernel.cgroup import CgroupTree
from reactor.link.documents import OOM_KILL, ORDERED, evictions_of
from reactor.link.frames import FrameKind, Message
from reactor.link.orders import Orders, read_order
from reactor.link.requests import ReclaimOver, Request, RequestKind
from reactor.model.kills import OomScope
from reactor.model.settings import RestartLoopSettings, Settings, SystemdOomd
from reactor.privileged.client import Commands, Privileged, PrivilegedError
from reactor.steward.answers import (
    RecentRecords,
    RestartLoops,
    explanation,
    name_asked,
    places_asked,
    status,
)
from reactor.steward.disks import Disks
from reactor.steward.guard import Guard, GuardError
from reactor.steward.hooks import Hooks
from reactor.steward.memory import SwapTrafficWatch, memory_holders
from reactor.steward.notifications import Notifications
from reactor.steward.storage import StorageWatch
from reactor.supervisor import Nursery, Supervisor
from reactor.tell.events import WHO_GREW
from reactor.tell.http import serve_metrics
from reactor.tell.journal import Document, Journal, read_tail
from reactor.tell.metrics import Metrics, StewardReading
from reactor.tell.status_socket import Command
from reactor.tell.status_socket import serve as serve_questions
from reactor.text import printable
from reactor.threads import NameLookups, in_thread, limit_threads

if TYPE_CHECKING:
    from reactor.blackbox.live import LivePage
    from reactor.steward.kubernetes import Kubernetes
    from reactor.steward.oom1 import Oom1

_LOG: Final = logging.getLogger("reactor.steward")
_ASKED: Final = frozenset(
    {
        FrameKind.OBSERVE,
        FrameKind.RECLAIM,
        FrameKind.EMPTY,
        FrameKind.COUNT,
        FrameKind.STOP,
        FrameKind.LEAVE,
        FrameKind.BEFORE,
    }
)
_REMEMBERED: Final = 100
_REMEMBERING_SECONDS: Final = 3.0
_COUNTING_SECONDS: Final = 10.0
_HOLDERS_SECONDS: Final = 0.5
_MOST_ASKED: Final = 32
_SHOWN_PODS: Final = 40
_MOST_COUNTED_PODS: Final = 200

Done = tuple[tuple[str, ...] | None, tuple[str, ...]]  # what was done (None: nothing), and what went wrong
Do = Callable[[Document], Awaitable[Done]]


async def serve(
    guard: socket.socket,
    listener: socket.socket | None,
    on_end: Callable[[], None] = lambda: None,
    privileged: Privileged | None = None,
) -> None:
    """Serve until the guard closes its end of the pair; `listener` is where questions come, if anywhere.

    `privileged` runs the operator's commands; without it they are not run.

    `on_end` is called then, before the journal gets what is left for it: its disk may hang.
    """
    limit_threads()
    trio.socket.set_custom_hostname_resolver(NameLookups())
    guard.setblocking(False)  # noqa: FBT003 - its one argument
    with trio.socket.from_stdlib_socket(guard.dup()) as connection:
        await _Steward(connection, listener, privileged).run(on_end)


class _Steward:
    def __init__(
        self,
        connection: trio.socket.SocketType,
        listener: socket.socket | None,
        privileged: Privileged | None,
    ) -> None:
        self._commands = Commands() if privileged is None else privileged.commands()
        self._hooks = Hooks(self._commands.run_to_problem)
        self._guard = Guard(connection, self._take)
        self._listener = listener
        self._orders: Orders | None = None
        self._ordered = trio.Event()
        self._journal: Journal | None = None
        self._early: list[Message] | None = []  # lines that came before the journal's end was read
        self._early_own: deque[Document] = deque(maxlen=_MOST_ASKED)
        self._written_up_to = 0
        self._token = trio.lowlevel.current_trio_token()
        self._recent = RecentRecords()
        self._ended: deque[tuple[str, object]] = deque(maxlen=_MOST_COUNTED_PODS)
        self._pod_oom_kills: Counter[tuple[str, str]] = Counter()
        self._loops = RestartLoops(RestartLoopSettings())
        self._notifications: Notifications | None = None
        self._oom1: Oom1 | None = None
        self._is_oomd_replaced = trio.Event()
        self._metrics = Metrics()
        self._disks: Disks | None = None
        self._kubernetes: Kubernetes | None = None
        self._early_reports: list[Message] = []
        self._asking, self._asked = trio.open_memory_channel[Message](_MOST_ASKED)
        self._supervisor = Supervisor()
        self._swap = SwapTrafficWatch(
            lambda: None if self._orders is None else self._orders.settings.node_cgroup
        )
        self._storage = StorageWatch(
            self._guard.say,
            supervisor=self._supervisor,
            quotas_fd=None if privileged is None else privileged.walkers_fd,
        )
        self._sampler = Sampler(self._settings)
        self._page: LivePage | None = None
        self._no_metrics: str | None = None
        self._questions = self._supervisor.hook("questions")
        self._scrapes = self._supervisor.hook("scrapes")
        self._lines = self._supervisor.hook("lines")
        self._reports = self._supervisor.hook("reports")
        self._events = self._supervisor.hook("events")

    async def run(self, on_end: Callable[[], None]) -> None:
        """Serve until the guard has ended, and write what it has left."""
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._work, nursery)
                nursery.start_soon(self._run_commands, nursery.cancel_scope)
                await self._guard.hear()
                nursery.cancel_scope.cancel()
        finally:
            on_end()
            if self._listener is not None:
                self._listener.close()
            if self._early and self._orders is not None:  # the guard ended before the journal's end was read
                path = Path(self._orders.settings.journal.path)
                self._go_on_from(read_tail(path, _REMEMBERED), self._orders)
            if self._journal is not None:
                self._journal.close()
            if self._kubernetes is not None:
                self._kubernetes.close()
            self._hooks.close()

    async def _run_commands(self, scope: trio.CancelScope) -> None:
        """Have commands run. Without the process that runs them the steward ends, and is replaced."""
        try:
            await self._commands.run()
        except PrivilegedError as error:
            _LOG.error("%s", error)
            scope.cancel()

    async def _work(self, nursery: trio.Nursery) -> None:
        await self._ordered.wait()
        orders = self._orders
        if orders is None:
            raise AssertionError("ordered without orders")

        keep = self._supervisor.keep
        nursery.start_soon(self._guard.send)
        nursery.start_soon(self._guard.say_alive)
        nursery.start_soon(self._guard.say_taken)
        settings = orders.settings
        self._kubernetes = self._kubernetes_of(settings)
        self._disks = Disks(
            self._guard,
            self._supervisor,
            orders,
            self._kubernetes,
            run=self._commands.run_to_problem,
        )
        if self._kubernetes is not None:
            nursery.start_soon(self._kubernetes.run)
            for message in self._early_reports:
                self._take_report(message)
        nursery.start_soon(keep, "filesystems", self._disks.run)
        nursery.start_soon(self._disks.run_podman)
        nursery.start_soon(self._do_asked, self._disks)
        nursery.start_soon(self._storage.run)
        nursery.start_soon(keep, "swap traffic", self._swap.run)
        nursery.start_soon(keep, "black box", self._sampler.run)
        if self._notifications is not None:
            nursery.start_soon(self._notifications.run)
        nursery.start_soon(keep, "systemd-oomd's name", self._run_oom1)
        if settings.metrics_address is not None:
            metrics = partial(
                serve_metrics,
                self._metrics.short,
                settings.metrics_address,
                self._guard.is_alive,
                self._scrapes.failed,
                every=self._metrics.registry,
                refresh=self._refresh,
                live=self._live,
                on_address=self._metrics_at,
            )
            nursery.start_soon(keep, "metrics", metrics)
        nursery.start_soon(partial(keep, "earlier journal", partial(self._remember, orders), ends=True))
        if self._listener is not None:
            nursery.start_soon(keep, "status socket", partial(self._serve_status, self._listener))

    async def _remember(self, orders: Orders) -> None:
        """Read the journal's end, then begin with what goes on from there; its disk may hang."""
        documents: tuple[Document, ...] = ()
        with trio.move_on_after(_REMEMBERING_SECONDS):
            path = Path(orders.settings.journal.path)
            documents = await in_thread(read_tail, path, _REMEMBERED, abandon_on_cancel=True)
        self._go_on_from(documents, orders)

    def _go_on_from(self, documents: Iterable[Document], orders: Orders) -> None:
        """Take over what the journal holds; write what has come since, but for what was written already."""
        early, self._early = self._early, None
        if early is None:
            return
        with self._lines.guard():  # an old line that is odd must not keep the journal from going on
            for document in documents:
                self._recent.take(document)
                if document.get("start") == orders.start and isinstance(document.get("seq"), int):
                    self._written_up_to = max(self._written_up_to, document["seq"])
            decisions = self._recent.decisions()
            ended = (one for decision in decisions for one in evictions_of(decision))
            self._ended.extend(_end(one) for one in ended if one.get("ended_ns") is not None)
            if self._notifications is not None:
                self._notifications.remember(documents)
            self._loops.remember(decisions)
        self._journal = Journal(orders.settings.journal)
        self._journal.start()
        while self._early_own:
            self._write_own(self._early_own.popleft())
        for message in early:
            self._take_record(message)

    def _take(self, message: Message) -> None:
        if message.kind is FrameKind.ORDERS:
            self._take_orders(read_order(message.content))
        elif message.kind is FrameKind.PLACES:
            self._storage.know(read_order(message.content))
        elif message.kind is FrameKind.COUNT and not message.number:
            self._storage.due(urgent=json.loads(message.content)["urgent"])
        elif message.kind in _ASKED:
            with suppress(trio.WouldBlock):
                self._asking.send_nowait(message)
        elif message.kind is FrameKind.REPORT:
            self._take_report(message)
        elif message.kind is FrameKind.PODS:
            self._sampler.take(message)
        elif self._early is not None:
            self._early.append(message)
        else:
            self._take_record(message)

    def _take_orders(self, orders: Orders) -> None:
        self._loops.settings = orders.settings.restart_loop
        if self._notifications is None:
            self._notifications = Notifications(
                orders.settings, self._supervisor, run=self._commands.run_to_problem
            )
        self._notifications.settings = orders.settings
        if orders.settings.systemd_oomd is SystemdOomd.REPLACE:
            self._is_oomd_replaced.set()
        if self._oom1 is not None:
            self._oom1.order(orders.settings)
        self._orders = orders
        if self._disks is not None:
            with self._lines.guard():
                if self._kubernetes is not None:
                    self._kubernetes.order(orders.settings)
                self._disks.order(orders)
        self._ordered.set()

    async def _do_asked(self, disks: Disks) -> None:
        """Do what the guard asks for, one thing beside the other: commands take long."""
        async with trio.open_nursery() as nursery:
            jobs = self._supervisor.jobs(nursery, "disks")
            beside: dict[FrameKind, tuple[Nursery, Do]] = {
                FrameKind.EMPTY: (jobs, disks.empty),
                FrameKind.RECLAIM: (jobs, disks.reclaim),
                FrameKind.STOP: (self._supervisor.jobs(nursery, "runtime"), self._stop),
                FrameKind.LEAVE: (self._supervisor.jobs(nursery, "kubernetes leaving"), self._leave),
                FrameKind.BEFORE: (self._supervisor.jobs(nursery, "hooks before evictions"), self._before),
            }
            async for message in self._asked:
                if message.kind is FrameKind.COUNT:
                    jobs.start_soon(self._count, message.number)
                elif message.kind in beside:
                    others, do = beside[message.kind]
                    others.start_soon(self._do, message, do)
                else:
                    jobs.start_soon(self._observe, disks, message.number)

    async def _count(self, number: int) -> None:
        """Have everything counted, and say so; the guard has not waited for longer."""
        with trio.move_on_after(_COUNTING_SECONDS):
            await self._storage.refresh()
            await self._guard.say(Request(kind=RequestKind.COUNTED, number=number))

    async def _observe(self, disks: Disks, number: int) -> None:
        await disks.refresh()
        await self._guard.say(Request(kind=RequestKind.OBSERVED, number=number))

    async def _do(self, message: Message, do: Do) -> None:
        """Do what a message asks for, and say what was done and what went wrong."""
        did: tuple[str, ...] | None = ()
        try:
            did, problems = await do(json.loads(message.content))
        except (ReactorError, OSError) as error:
            problems = (str(error),)
        await self._guard.say(ReclaimOver(number=message.number, did=did, problems=problems))

    async def _before(self, asked: Document) -> Done:
        return await self._hooks.before(self._settings().hooks, asked["eviction"], asked["seconds"])

    async def _stop(self, asked: Document) -> Done:
        """Have a pod's containers stopped. Raises ReactorError."""
        if self._kubernetes is None:
            return (), ("no container runtime is known",)
        await self._kubernetes.stop(asked["uid"], asked["grace_seconds"])
        return (), ()

    async def _leave(self, asked: Document) -> Done:
        """Have the node's object as it is to be after the guard's end."""
        if self._kubernetes is None:
            return (), ()
        seconds = asked["until_seconds"] - time.monotonic()
        return await self._kubernetes.leave(stands_by=asked["stands_by"], seconds=seconds)

    def _kubernetes_of(self, settings: Settings) -> Kubernetes | None:
        """Return the part in a cluster, imported where there is one: what it takes of memory is for those."""
        if settings.kubernetes is None:
            return None
        from reactor.steward.kubernetes import Kubernetes  # noqa: PLC0415

        return Kubernetes(
            self._guard,
            self._supervisor,
            settings,
            lambda: {} if self._disks is None else self._disks.observed(),
            lambda: None if self._disks is None else self._disks.renew(),
            write=self._write_own,
        )

    async def _run_oom1(self) -> None:
        """Have systemd-oomd's name on the bus once it is replaced; imported then."""
        await self._is_oomd_replaced.wait()
        from reactor.steward.oom1 import Oom1  # noqa: PLC0415

        self._oom1 = Oom1()
        self._oom1.order(self._settings())
        await self._oom1.run()

    def _take_report(self, message: Message) -> None:
        if self._kubernetes is None:
            self._early_reports.append(message)
            return
        with self._reports.guard():
            self._kubernetes.take(message)

    def _take_record(self, message: Message) -> None:
        document: Document = {}
        with self._lines.guard():
            document = json.loads(message.content)
            document, message = self._with_black_box(document, message)
        self._write(message)
        with self._lines.guard():
            self._recent.take(document)
            self._count_evictions(document)
            if document.get("kind") == OOM_KILL:
                self._count_oom_kill(document)
        is_news = message.number > self._written_up_to
        if self._notifications is not None and is_news:
            with self._events.guard():
                self._notifications.take(_for_receivers(document))
        if self._oom1 is not None and is_news:
            with self._events.guard():
                self._oom1.take(document)

    def _with_black_box(self, document: Document, message: Message) -> tuple[Document, Message]:
        """Return a line with what was seen before it, as `black_box`."""
        if not self._settings().black_box:
            return document, message
        if document.get("kind") == ORDERED:  # with a grace period its processes live for a while
            self._sampler.want_ordered(document)
        if document.get("kind") == OOM_KILL and document.get("pod") is None:
            struck = self._sampler.struck()  # kills that were only counted come without a name
            if struck is not None and document.get("scope") == OomScope.OWN_LIMIT:
                document = {**document, "pod": struck.pod, "uid": struck.uid}
        found = added(self._sampler, document, now_seconds=time.monotonic())
        if found is None:
            return document, message
        document = {**document, "black_box": found}
        content = json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"
        return document, replace(message, content=content)

    def _happened(self) -> Iterable[Document]:
        return (*self._recent.decisions(), *self._recent.oom_kills())

    def _settings(self) -> Settings:
        if self._orders is None:
            raise AssertionError("the guard's orders come first")
        return self._orders.settings

    def _write(self, message: Message) -> None:
        place = message.number

        def done(is_written: bool) -> None:  # noqa: FBT001 - in the journal's thread
            with suppress(trio.RunFinishedError):
                self._token.run_sync_soon(partial(self._guard.taken, place, is_written=is_written))

        if place <= self._written_up_to:  # by the steward before this one, which could not say so any more
            self._guard.taken(place, is_written=True)
        elif self._journal is None or not self._journal.write(message.content, done):
            self._guard.taken(place, is_written=False)

    def _write_own(self, document: Document) -> None:
        """Write a line of the steward's own; one that comes before the journal's end was read waits."""
        if self._journal is None:
            self._early_own.append(document)
        else:
            self._journal.write(json.dumps(document, separators=(",", ":")).encode() + b"\n")

    def _count_evictions(self, document: Document) -> None:
        """Count evictions for restart loops, each once, as soon as their pods are known to have ended."""
        for one in [document] if document.get("kind") == "outcome" else evictions_of(document):
            if not one.get("pod_lives") and _end(one) not in self._ended:
                self._loops.take(one, time.time())
                if one.get("ended_ns") is not None:
                    self._ended.append(_end(one))

    def _count_oom_kill(self, document: Document) -> None:
        """Count a kill of a pod's by its name; beyond so many names as one."""
        if document.get("pod") is not None:
            of = (printable(str(document["pod"])), str(document.get("scope")))
            is_known = of in self._pod_oom_kills or len(self._pod_oom_kills) < _MOST_COUNTED_PODS
            self._pod_oom_kills[of if is_known else ("other", of[1])] += int(document.get("kills") or 1)

    async def _serve_status(self, listener: socket.socket) -> None:
        commands: dict[str, Command] = {
            "status": lambda _: self._status(),
            "explain": lambda question: self._explain(question.get("pod")),
            "top": lambda question: self._top(question.get("pods", _SHOWN_PODS)),
            "healthz": lambda _: self._health(),
        }
        # A copy, which is closed at the end: the listener itself is for the next to serve by.
        await serve_questions(listener.dup(), commands, self._questions.failed)

    async def _status(self) -> dict[str, Any]:
        """Return the status; who holds the node's memory is left out if that is not known in time."""
        answer = await self._guard.ask(RequestKind.STATUS)
        holders = None
        if answer["held"] is not None:
            with trio.move_on_after(_HOLDERS_SECONDS):
                holders = await in_thread(_holders, answer, abandon_on_cancel=True)
        return {**self._completed(answer["status"]), "memory": holders}

    async def _top(self, places: object) -> dict[str, Any]:
        return self._completed(await self._guard.ask(RequestKind.TOP, places_asked(places)))

    async def _explain(self, name: object) -> dict[str, Any]:
        wanted = name_asked(name)
        return explanation(await self._guard.ask(RequestKind.EXPLAIN), self._recent, wanted)

    def _completed(self, guard: Mapping[str, Any]) -> dict[str, Any]:
        if self._disks is not None:
            guard = self._disks.completed(dict(guard))
        if self._kubernetes is not None:
            runtime, cluster = self._kubernetes.description, guard["kubernetes"] or {}
            guard = {**guard, "runtime": runtime, "kubernetes": {**self._kubernetes.document(), **cluster}}
        document = status(guard, self._recent, self._own_problems())
        parts = [*guard["parts"], *(part.document() for part in self._supervisor.states)]
        notifications = [] if self._notifications is None else self._notifications.document()
        swap = self._swap.document()
        return {**document, "parts": parts, "notifications": notifications, "swap_traffic": swap}

    def _own_problems(self) -> dict[str, str]:
        own = {
            "journal": None if self._journal is None else self._journal.problem,
            "black box": self._sampler.problem,
            "metrics": self._no_metrics,
        }
        problems = self._loops.problems(time.time()) | self._storage.problems
        problems |= {what: why for what, why in own.items() if why is not None}
        for part in (self._disks, self._notifications, self._oom1, self._kubernetes):
            problems |= {} if part is None else part.problems
        return problems | self._supervisor.problems

    def _metrics_at(self, problem: str | None) -> None:
        self._no_metrics = problem

    def _live(self) -> bytes:
        # What draws it takes a quarter of a mebibyte, and few ask for the page.
        from reactor.blackbox.live import LivePage  # noqa: PLC0415

        if self._page is None:
            self._page = LivePage(self._sampler, self._settings, self._happened)
        return self._page.content()

    async def _health(self) -> Mapping[str, Any]:
        try:
            return await self._guard.ask(RequestKind.HEALTH)
        except GuardError as error:
            return {"alive": False, "not_ready_because": str(error)}

    async def _refresh(self) -> None:
        reading = await self._guard.ask(RequestKind.SCRAPE)
        if self._kubernetes is not None:
            reading["kubernetes"] = self._kubernetes.document()
        storage, disks, notifications = self._storage, self._disks, self._notifications
        own = StewardReading(
            parts={part.name: part.restarts for part in self._supervisor.states},
            restart_loops=len(self._loops.present(time.time())),
            repeated_evictions=self._loops.repeated,
            overdue_pods=storage.overdue,
            removed_images={} if disks is None else disks.removed_images,
            notifications=() if notifications is None else notifications.document(),
            problems=self._own_problems(),
            swap_traffic=self._swap.counted(),
            pod_oom_kills=self._pod_oom_kills,
        )
        self._metrics.read(reading, own)


def _holders(answer: Mapping[str, Any]) -> dict[str, Any] | None:
    try:
        tree = CgroupTree.discover()
    except (OSError, ReactorError) as error:
        _LOG.warning("who holds the node's memory can't be told: %s", error)
        return None
    return memory_holders(tree, answer["status"]["node_cgroup"] or "/", answer["held"])


def _for_receivers(document: Document) -> Document:
    """Return a line as those get it who are notified: of the black box one sentence, and no command lines."""
    box = document.get("black_box")
    if not isinstance(box, Mapping):
        return document
    return {**{key: value for key, value in document.items() if key != "black_box"}, WHO_GREW: box["text"]}


def _end(eviction: Document) -> tuple[str, object]:
    """Return whose end, and when: one of them may stand in several lines."""
    return str(eviction.get("uid")), eviction.get("ended_ns")
