"""The system's units: PID 1 answers with all that say `kill`, and then with each change."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import trio

from reactor.managed_oom.units import Changes, changes_in
from reactor.managed_oom.varlink import PERMISSION_DENIED, Messages, VarlinkError

ADDRESSES: Final = ("/run/systemd/io.systemd.ManagedOOM", "/run/systemd/io.system.ManagedOOM")
"""That of today, and that of systemd 252."""

_METHOD: Final = "io.systemd.ManagedOOM.SubscribeManagedOOMCGroups"
_TAKEN: Final = "io.systemd.ManagedOOM.SubscriptionTaken"
_MOST_BYTES: Final = 8 << 20
_ANSWER_SECONDS: Final = 10.0
_WHY: Final = {
    _TAKEN: (
        "another process of systemd-oomd.service listens to systemd: is systemd-oomd itself still running? "
        "systemctl restart systemd-oomd.service"
    ),
    PERMISSION_DENIED: (
        "systemd answers systemd-oomd.service alone: this process has to be run as that unit, see "
        '"Instead of systemd-oomd" in pressure.md'
    ),
}


async def subscribe(
    on_all: Callable[[Changes], object],
    on_changes: Callable[[Changes], object],
    *,
    addresses: Sequence[str] = ADDRESSES,
) -> None:
    """Tell of all units first, and then of changes, until the connection is lost. Raises VarlinkError.

    The first of the addresses at which there is a socket is PID 1's.
    """
    address = _present(addresses)
    try:
        stream = await trio.open_unix_socket(address)
    except OSError as error:
        raise VarlinkError(f"{address}: {error.strerror or error}") from error
    async with stream:
        messages = Messages(stream, most_bytes=_MOST_BYTES, message_seconds=_ANSWER_SECONDS)
        await messages.send({"method": _METHOD, "parameters": {}, "more": True})
        with trio.move_on_after(_ANSWER_SECONDS) as patience:
            on_all(await _next(messages, address))
        if patience.cancelled_caught:
            raise VarlinkError(f"{address}: no answer in {_ANSWER_SECONDS:g} s")
        while True:
            on_changes(await _next(messages, address))


def _present(addresses: Sequence[str]) -> str:
    return next((one for one in addresses if os.path.exists(one)), addresses[0])


async def _next(messages: Messages, address: str) -> Changes:
    """Return what the next message says. Raises VarlinkError."""
    try:
        return _changes(await messages.receive())
    except VarlinkError as error:
        raise VarlinkError(f"{address}: {error}") from error


def _changes(message: Mapping[str, Any] | None) -> Changes:
    if message is None:
        raise VarlinkError("systemd has closed the connection")
    if message.get("error") is not None:
        raise VarlinkError(_why(message["error"]))
    return changes_in(message.get("parameters"), None)


def _why(error: Any) -> str:
    known = _WHY.get(error) if isinstance(error, str) else None
    return known or f"systemd refuses: {error!r:.80}"
