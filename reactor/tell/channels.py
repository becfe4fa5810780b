"""Channels to operators, each with an outbox: commands, the journal of systemd, wall(1), desktops."""

from __future__ import annotations

import os
import re
import socket
import ssl
import stat
import struct
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import trio

import reactor
from reactor.backoff import Backoff
from reactor.errors import ReactorError, first_failure
from reactor.link.documents import Outcome
from reactor.model.kills import OomScope
from reactor.model.settings import EventKind, NotificationSettings, WebhookSettings
from reactor.programs import RunProgram, run_to_problem
from reactor.tell.events import Event
from reactor.text import printable
from reactor.threads import in_thread
from reactor.web_address import ACCEPTED, WebAddress, read_web_address

if TYPE_CHECKING:
    from reactor.http_client import Answer, HttpClient

_MOST_WAITING: Final = 256
_MINOR_EVENTS: Final = 30
_MINOR_SECONDS: Final = 60.0
WALL: Final = "/usr/bin/wall"
MOST_WAITING: Final = 8
BETWEEN_SECONDS: Final = 1.0
PATH: Final = "/"
INTERFACE: Final = "net.nuetzlich.SystemNotifications"
MEMBER: Final = "Notify"
_SUMMARY: Final = "reactor"
# A desktop may take the body for markup, and tenants choose names in it.
_PLAIN: Final = str.maketrans({"<": "\u2039", ">": "\u203a", "&": "\uff06"})
COMMANDS_AT_ONCE: Final = 4
SOCKET: Final = "/run/systemd/journal/socket"
# By which entries are found and explained; they never change.
MESSAGE_IDS: Final = {
    EventKind.EVICTION: "b326dd0e56ff49e9b0b4d828c712045c",
    EventKind.OOM_KILL: "eae3c872a556498eae4b2b033d955158",
    EventKind.SOURCE_LOST: "99587737fada4675ba5ea201d447147e",
    EventKind.NO_VICTIM: "5d1d36ad0f6a4b3cae1c2a86c2f5b7e1",
}
_WARNING, _ERROR = 4, 3  # syslog's
_FIELD: Final = re.compile(r"[A-Z][A-Z0-9_]{0,63}")
_SECONDS: Final = 10.0

_GIVE_UP_SECONDS: Final = 600.0
_FIRST_PAUSE_SECONDS: Final = 1.0
_LONGEST_PAUSE_SECONDS: Final = 60.0
_LONGEST_WANTED_SECONDS: Final = 300
_LONGEST_SECRET_BYTES: Final = 4096
_BODY_BYTES: Final = 4096
_BODY_SECONDS: Final = 1.0
_TAKEN: Final = range(200, 300)
_ANOTHER_TIME: Final = frozenset({408, 425, 429, *range(500, 600)})


class NotSentError(ReactorError):
    """A channel has given an event up; the text says why."""


class Channel(ABC):
    """A way to operators, by the settings as they are by then.

    `name` is what it is called in `status`, metrics and the log, `problem` why an event is late at present.
    """

    name: str
    problem: str | None = None

    def __init__(self, settings: Callable[[], NotificationSettings]) -> None:
        self._settings = settings

    @abstractmethod
    def takes(self, event: Event) -> bool:
        """Return whether the configuration wants such an event sent by it."""

    @abstractmethod
    async def send(self, event: Event) -> None:
        """Send an event, in a time that is bounded. Raises NotSentError."""


# Events on their way over one channel: bounded, counted, and waited for by no one else.
#
# waiting     256 events at most, unless fewer are asked for; what comes then is dropped and counted
# sent        the channel has taken them
# failed      the channel has given them up; why is the outbox's problem until the next one is sent
#
# Of minor events 30 are taken in a minute, while half of the room is left, and the others skipped and
# counted: a pod that is killed at its own limit again and again does not keep an eviction from being sent.
class Outbox:
    """`run` sends, `at_once` events at a time at most."""

    def __init__(self, channel: Channel, *, at_once: int = 1, most_waiting: int = _MOST_WAITING) -> None:
        self.channel = channel
        self.sent = 0
        self.failed = 0
        self.dropped = 0
        self._at_once = at_once
        self._under_way = 0
        self._failure: str | None = None
        self.skipped = 0
        self._is_full = False
        self._most_waiting = most_waiting
        self._minor_at: deque[float] = deque(maxlen=_MINOR_EVENTS)
        self._in, self._out = trio.open_memory_channel[Event](most_waiting)

    @property
    def waiting(self) -> int:
        """Return how many events are neither sent nor given up."""
        return self._in.statistics().current_buffer_used + self._under_way

    @property
    def problem(self) -> str | None:
        """Return what is wrong at present in one line, None where nothing is."""
        why = self.channel.problem or self._failure
        if self._is_full:
            why = f"events are dropped, its queue is full{'' if why is None else f': {why}'}"
        return None if why is None else f"{why} ({self.failed} failed, {self.dropped} dropped)"

    def put(self, event: Event) -> None:
        """Queue an event if the channel is to send it. Never blocks."""
        if not self.channel.takes(event):
            return
        room = self._most_waiting // 2 if event.is_minor else self._most_waiting
        is_full = self._in.statistics().current_buffer_used >= room
        if event.is_minor and (is_full or not self._has_turn()):
            self.skipped += 1
        elif is_full:
            self.dropped += 1
            self._is_full = True
        else:
            self._is_full = False
            self._in.send_nowait(event)

    def _has_turn(self) -> bool:
        """Return whether a minor event may be taken now, and record it."""
        now = trio.current_time()
        if len(self._minor_at) == _MINOR_EVENTS and now - self._minor_at[0] < _MINOR_SECONDS:
            return False
        self._minor_at.append(now)
        return True

    async def run(self) -> None:
        """Send what is queued, until cancelled."""
        async with trio.open_nursery() as nursery:
            for _ in range(self._at_once):
                nursery.start_soon(self._send_each)

    async def _send_each(self) -> None:
        async for event in self._out:
            self._under_way += 1
            try:
                await self.channel.send(event)
            except NotSentError as error:
                self.failed += 1
                self._failure = str(error)
            except Exception:
                self.failed += 1  # a defect of ours, which the supervisor reports
                raise
            else:
                self.sent += 1
                self._failure = None
            finally:
                self._under_way -= 1


class WallNotice(Channel):
    """Writes the event's line to every terminal."""

    name = "wall"

    def takes(self, _: Event) -> bool:
        return self._settings().wall

    async def send(self, event: Event) -> None:
        """Write a notice, and let a moment pass. Raises NotSentError."""
        problem = await run_to_problem(
            (WALL,), self._settings().timeout_seconds, given=f"{event.text}\n".encode(), leaves_nothing=True
        )
        if problem is not None:
            raise NotSentError(f"{WALL}: {problem}")
        await trio.sleep(BETWEEN_SECONDS)


# Events on desktops of those who are logged in: a signal on the system bus, for systembus-notify to show.
#
# Notifications of a desktop belong to the bus of its session, to which only its user may connect. So the
# event is a signal that everybody on the system bus may receive, as earlyoom sends it, and a program of the
# session shows it. Nothing is started, no user is changed to, and nothing but the bus is waited for.
#
# Source: github.com/rfjakob/systembus-notify; `Notify` has a summary and a body.
class DesktopNotice(Channel):
    """Sends the event's line to every desktop that listens. `bus` is another address in tests."""

    name = "desktop"

    def __init__(self, settings: Callable[[], NotificationSettings], *, bus: str = "SYSTEM") -> None:
        super().__init__(settings)
        self._bus = bus

    def takes(self, _: Event) -> bool:
        return self._settings().desktop

    async def send(self, event: Event) -> None:
        """Send a notice, and let a moment pass. Raises NotSentError."""
        from reactor.system_bus import open_bus  # noqa: PLC0415 - imported where a desktop is notified

        body = event.text.translate(_PLAIN)
        try:
            async with open_bus(self._bus) as bus:
                await bus.emit(PATH, INTERFACE, MEMBER, "ss", _SUMMARY, body)
        except (ReactorError, ExceptionGroup) as error:
            cause = first_failure(error)
            if not isinstance(cause, ReactorError):
                raise
            raise NotSentError(str(cause)) from error
        await trio.sleep(BETWEEN_SECONDS)


# Commands that the operator has run for events: each gets the event as JSON on its standard input.
#
# They cost the daemon nothing that it needs: four events at a time, each command with a deadline, at
# ordinary priority, in a session of its own that is killed at the end with what it has left running.
class EventCommands(Channel):
    """Runs the commands of an event's kind, one after the other, as the settings have them by then."""

    name = "command"

    def __init__(
        self, settings: Callable[[], NotificationSettings], run: RunProgram = run_to_problem
    ) -> None:
        super().__init__(settings)
        self._run = run

    def takes(self, event: Event) -> bool:
        return bool(self._settings().commands.get(event.kind))

    async def send(self, event: Event) -> None:
        """Run them. One that fails does not keep the next from running. Raises NotSentError at the end."""
        settings = self._settings()
        problems = []
        for command in settings.commands.get(event.kind, ()):
            problem = await self._run(
                command, settings.timeout_seconds, given=event.content, leaves_nothing=True
            )
            problems += [] if problem is None else [f"{command[0]}: {problem}"]
        if problems:
            raise NotSentError("; ".join(problems))


# Events as structured entries of systemd's journal: `journalctl -x` explains them by
# deploy/reactor.catalog.
#
# The native protocol: one datagram an entry, a field a line, a value with a newline by its length. Source:
# systemd.io/JOURNAL_NATIVE_PROTOCOL. The packages that speak it are bindings of libsystemd, which sends the
# same bytes but waits where journald does not take them.
class Journald(Channel):
    """Sends entries to journald, where there is one. `socket_path` is another in tests."""

    name = "journald"

    def __init__(self, settings: Callable[[], NotificationSettings], *, socket_path: str = SOCKET) -> None:
        super().__init__(settings)
        self._socket_path = socket_path

    def takes(self, _: Event) -> bool:
        return self._settings().journald and Path(self._socket_path).is_socket()

    async def send(self, event: Event) -> None:
        """Send an entry; wait for a moment where journald is busy. Raises NotSentError."""
        entry = b"".join(map(_encoded, *zip(*_fields(event), strict=True)))
        flags = socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK
        try:
            with trio.fail_after(_SECONDS), socket.socket(socket.AF_UNIX, flags) as journal:
                journal.connect(self._socket_path)
                await trio.lowlevel.wait_writable(journal)
                journal.send(entry)
        except trio.TooSlowError as error:
            raise NotSentError(f"journald has taken nothing for {_SECONDS:g} s") from error
        except OSError as error:
            raise NotSentError(f"{self._socket_path}: {error.strerror}") from error


def _fields(event: Event) -> Iterator[tuple[str, str]]:
    document = event.document
    yield "MESSAGE", event.text
    if event.kind in MESSAGE_IDS:  # a test is explained by its text
        yield "MESSAGE_ID", MESSAGE_IDS[event.kind]
    yield "PRIORITY", str(_ERROR if _is_grave(document) else _WARNING)
    yield "SYSLOG_IDENTIFIER", "reactor"
    for key, value in document.items():
        name = f"REACTOR_{key.upper()}"
        text = value.get(key) if isinstance(value, Mapping) else value  # of a threshold its text
        if key != "text" and _FIELD.fullmatch(name) and isinstance(text, (str, int)):
            yield name, str(text)


def _is_grave(document: Mapping[str, Any]) -> bool:
    is_unserved = document.get("event") == EventKind.NO_VICTIM
    return is_unserved or document.get("outcome") == Outcome.FAILED or document.get("scope") == OomScope.NODE


def _encoded(name: str, value: str) -> bytes:
    content = value.encode()
    if b"\n" not in content:
        return b"%s=%s\n" % (name.encode(), content)
    return b"%s\n%s%s\n" % (name.encode(), struct.pack("<Q", len(content)), content)


class _LaterError(ReactorError):
    """The event was not taken, and may be another time; after the pause that the server wants at least."""

    def __init__(self, why: str, pause_seconds: float = 0.0) -> None:
        super().__init__(why)
        self.pause_seconds = pause_seconds


# Events to a web server: each is POSTed as JSON, one after the other, until it is taken or given up.
#
# The server is not trusted. Its answer is its status; of the body a little is read and nothing is used.
# Each attempt has a deadline, however slowly the server accepts, reads or answers, attempts have growing
# pauses, and an event is given up after ten minutes, so that one that the server can't digest does not hold
# up the others.
class Webhook(Channel):
    """Sends by the settings as they are by then. For the tasks of one Trio loop."""

    name = "webhook"

    def __init__(
        self,
        settings: Callable[[], NotificationSettings],
        *,
        first_pause_seconds: float = _FIRST_PAUSE_SECONDS,
        give_up_seconds: float = _GIVE_UP_SECONDS,
    ) -> None:
        super().__init__(settings)
        self._first_pause_seconds = first_pause_seconds
        self._give_up_seconds = give_up_seconds
        self._client: HttpClient | None = None
        self._tls: tuple[str | None, ssl.SSLContext] | None = None

    def takes(self, _: Event) -> bool:
        return self._settings().webhook is not None

    async def send(self, event: Event) -> None:
        """Send an event, again and again where it is not taken. Raises NotSentError."""
        backoff = Backoff(self._first_pause_seconds, _LONGEST_PAUSE_SECONDS)
        give_up_at = trio.current_time() + self._give_up_seconds
        try:
            while True:
                try:
                    await self._attempt(event)
                except _LaterError as error:
                    self._tls = None  # its authorities may have been renewed
                    pause_seconds = max(backoff.next_seconds(), error.pause_seconds)
                    if trio.current_time() + pause_seconds >= give_up_at:
                        raise NotSentError(f"given up after {self._give_up_seconds:g} s: {error}") from error
                    self.problem = f"{error}; trying again"
                    await trio.sleep(pause_seconds)
                else:
                    return
        finally:
            self.problem = None

    def close(self) -> None:
        """Close the connection that is kept for the next event."""
        if self._client is not None:
            self._client.close()

    async def _attempt(self, event: Event) -> None:
        from reactor.http_client import HttpClient, HttpError, Origin  # noqa: PLC0415 - imported where one is

        if self._client is None:
            self._client = HttpClient()
        settings = self._settings()
        webhook = settings.webhook
        if webhook is None:
            raise NotSentError("there is no webhook any more")
        shown = "webhook"
        with trio.move_on_after(settings.timeout_seconds):
            try:
                address = await self._address(webhook)
                shown = address.origin
                headers = [
                    ("Content-Type", "application/json"),
                    ("User-Agent", f"reactor/{reactor.__version__}"),
                    *await self._authorization(webhook, address),
                ]
                tls = await self._context(webhook.ca_path) if address.is_tls else None
                origin = Origin(host=address.host, port=address.port, tls=tls)
                async with self._client.request(
                    origin,
                    "POST",
                    address.target,
                    headers=headers,
                    body=event.content,
                    silence_seconds=settings.timeout_seconds,
                ) as answer:
                    _raise_refusal(answer, shown)
                    # For the connection to serve again: otherwise nobody wants to know what it says.
                    with suppress(HttpError), trio.move_on_after(_BODY_SECONDS):
                        await answer.read(_BODY_BYTES)
            except (HttpError, OSError) as error:
                raise _LaterError(printable(f"{shown}: {error}")) from error
            return
        raise _LaterError(f"{shown}: no answer within {settings.timeout_seconds:g} s")

    async def _address(self, webhook: WebhookSettings) -> WebAddress:
        text = webhook.url
        if text is None:
            text = await _secret(webhook.url_path or "")
        address = read_web_address(text)
        if address is None:
            raise _LaterError(f"{webhook.url_path}: accepted: {ACCEPTED}")  # what it holds may be secret
        return address

    async def _authorization(self, webhook: WebhookSettings, address: WebAddress) -> list[tuple[str, str]]:
        if webhook.token_path is None:
            return []
        if not address.is_private:
            raise NotSentError(f"{address.origin}: a token is sent by https or to this machine only")
        return [("Authorization", f"Bearer {await _secret(webhook.token_path)}")]

    async def _context(self, ca_path: str | None) -> ssl.SSLContext:
        """Return what checks the server's certificate and name: by these authorities, or the system's."""
        if self._tls is None or self._tls[0] != ca_path:
            made = await in_thread(_tls_context, ca_path, abandon_on_cancel=True)
            self._tls = (ca_path, made)
        return self._tls[1]


def _tls_context(ca_path: str | None) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=ca_path)
    except OSError as error:  # ssl.SSLError is one
        raise _LaterError(f"{ca_path}: {error.strerror or error}") from error


def _raise_refusal(answer: Answer, shown: str) -> None:
    """Raise what the status of an answer means, unless the event was taken."""
    if answer.status in _TAKEN:
        return
    if answer.status not in _ANOTHER_TIME:
        redirects = " (redirects are not followed)" if answer.status in range(300, 400) else ""
        raise NotSentError(f"{shown} answered {answer.status}{redirects}")
    wanted = answer.header(b"retry-after") or ""
    is_number = wanted.isascii() and wanted.isdigit() and len(wanted) <= 9
    pause_seconds = min(int(wanted), _LONGEST_WANTED_SECONDS) if is_number else 0
    raise _LaterError(f"{shown} answered {answer.status}", pause_seconds)


async def _secret(path: str) -> str:
    return await in_thread(read_secret, path, abandon_on_cancel=True)


def read_secret(path: str) -> str:
    """Return the one line of a file. Raises _LaterError, which quotes nothing of it."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        with os.fdopen(fd, "rb", buffering=0) as file:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise _LaterError(f"{path}: not a regular file")
            content = file.read(_LONGEST_SECRET_BYTES + 1) or b""
    except OSError as error:
        raise _LaterError(f"{path}: {error.strerror}") from error
    text = content.strip().decode("ascii", errors="replace")
    if len(content) > _LONGEST_SECRET_BYTES or not text or not text.isascii() or not text.isprintable():
        raise _LaterError(
            f"{path}: accepted: one line of printable ASCII, {_LONGEST_SECRET_BYTES} bytes at most"
        )
    return text
