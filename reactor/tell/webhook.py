"""Events to a web server: each is POSTed as JSON, one after the other, until it is taken or given up.

The server is not trusted. Its answer is its status; of the body a little is read and nothing is used. Each
attempt has a deadline, however slowly the server accepts, reads or answers, attempts have growing pauses, and
an event is given up after ten minutes, so that one that the server can't digest does not hold up the others.
"""

from __future__ import annotations

import os
import ssl
import stat
from collections.abc import Callable
from contextlib import suppress
from typing import Final

import trio

import reactor
from reactor.backoff import Backoff
from reactor.errors import ReactorError
from reactor.http_client import Answer, HttpClient, HttpError, Origin
from reactor.model.settings import NotificationSettings, WebhookSettings
from reactor.tell.channels import NotSentError
from reactor.tell.events import Event
from reactor.text import printable
from reactor.threads import in_thread
from reactor.web_address import ACCEPTED, WebAddress, read_web_address

_GIVE_UP_SECONDS: Final = 600.0
_FIRST_PAUSE_SECONDS: Final = 1.0
_LONGEST_PAUSE_SECONDS: Final = 60.0
_LONGEST_WANTED_SECONDS: Final = 300
_LONGEST_SECRET_BYTES: Final = 4096
_BODY_BYTES: Final = 4096
_BODY_SECONDS: Final = 1.0
_TAKEN: Final = range(200, 300)
_ANOTHER_TIME: Final = frozenset({408, 425, 429, *range(500, 600)})


class _LaterError(ReactorError):
    """The event was not taken, and may be another time; after the pause that the server wants at least."""

    def __init__(self, why: str, pause_seconds: float = 0.0) -> None:
        super().__init__(why)
        self.pause_seconds = pause_seconds


class Webhook:
    """Sends by the settings as they are by then. For the tasks of one Trio loop."""

    name = "webhook"

    def __init__(
        self,
        settings: Callable[[], NotificationSettings],
        *,
        first_pause_seconds: float = _FIRST_PAUSE_SECONDS,
        give_up_seconds: float = _GIVE_UP_SECONDS,
    ) -> None:
        self._settings = settings
        self._first_pause_seconds = first_pause_seconds
        self._give_up_seconds = give_up_seconds
        self._client = HttpClient()
        self._tls: tuple[str | None, ssl.SSLContext] | None = None
        self.problem: str | None = None

    def takes(self, event: Event) -> bool:
        """Return whether there is a webhook."""
        del event
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
        self._client.close()

    async def _attempt(self, event: Event) -> None:
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
                    _heed(answer, shown)
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


def _heed(answer: Answer, shown: str) -> None:
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
    """Return the one line of a file. Raises _LaterError, which quotes nothing of it."""
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
