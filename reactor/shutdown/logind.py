"""logind's and systemd's part of a shutdown. See org.freedesktop.login1(5), org.freedesktop.systemd1(5)."""

from __future__ import annotations

from typing import Final

from jeepney import DBusAddress, HeaderFields, Message
from jeepney.fds import FileDescriptor

from reactor.system_bus import Bus, BusError

LOGIND: Final = "org.freedesktop.login1"
_SYSTEMD: Final = "org.freedesktop.systemd1"
_BUS: Final = "org.freedesktop.DBus"
_MANAGER: Final = DBusAddress(
    "/org/freedesktop/login1", bus_name=LOGIND, interface="org.freedesktop.login1.Manager"
)
_SYSTEMD_MANAGER: Final = DBusAddress(
    "/org/freedesktop/systemd1", bus_name=_SYSTEMD, interface="org.freedesktop.systemd1.Manager"
)
_SIGNAL: Final = "PrepareForShutdown"
_PREPARE_RULE: Final = (
    f"type='signal',sender='{LOGIND}',path='{_MANAGER.object_path}',"
    f"interface='{_MANAGER.interface}',member='{_SIGNAL}'"
)
_OWNER_RULE: Final = (
    f"type='signal',sender='{_BUS}',interface='{_BUS}',member='NameOwnerChanged',arg0='{LOGIND}'"
)
_WHO: Final = "reactor"
_WHY: Final = "Pods are ended by their priority"
_SIGHUP: Final = 1
_MICROSECONDS: Final = 1_000_000
_NO_MAXIMUM: Final = 2**64 - 1


class Logind:
    """logind over one connection."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._owner = ""

    async def attend(self) -> None:
        """Hear of shutdowns from now on. Raises BusError."""
        await self._bus.subscribe(_PREPARE_RULE, _OWNER_RULE)
        await self.max_delay_seconds()  # starts it, where the bus does so when it is asked
        self._owner = await self._bus.listen(LOGIND)

    async def next_preparing(self) -> bool:
        """Wait for what logind says next: True a shutdown begins, False it was cancelled.

        Raises BusError where logind has ended or was restarted: what it knew of us is to be said again.
        """
        async for message in self._bus.signals:
            if _is(message, _BUS, "NameOwnerChanged") and message.body[0] == LOGIND:
                if message.body[2] != self._owner:
                    raise BusError(f"{LOGIND}: was restarted")
            elif self._is_preparing(message):
                return bool(message.body[0])
        raise BusError("system bus: has closed the connection")

    async def is_preparing(self) -> bool:
        """Return whether a shutdown waits for its locks now. Raises BusError."""
        found: bool = await self._bus.property(_MANAGER, "PreparingForShutdown", bool)
        return found

    async def max_delay_seconds(self) -> int:
        """Return for how long logind waits at the most. Raises BusError."""
        found: int = await self._bus.property(_MANAGER, "InhibitDelayMaxUSec", int)
        return _NO_MAXIMUM if found == _NO_MAXIMUM else found // _MICROSECONDS

    async def read_configuration(self) -> None:
        """Have logind read its configuration again; it has not when this returns. Raises BusError."""
        await self._bus.call(_SYSTEMD_MANAGER, "KillUnit", "ssi", "systemd-logind.service", "all", _SIGHUP)

    async def inhibit(self) -> int:
        """Return a lock that delays a shutdown until this descriptor is closed. Raises BusError."""
        answer = await self._bus.call(_MANAGER, "Inhibit", "ssss", "shutdown", _WHO, _WHY, "delay")
        if len(answer) != 1 or not isinstance(answer[0], FileDescriptor):
            raise BusError(f"{LOGIND}: Inhibit: got {answer!r:.80}; accepted: a descriptor")
        lock: int = answer[0].to_raw_fd()
        return lock

    def _is_preparing(self, message: Message) -> bool:
        return (
            message.header.fields.get(HeaderFields.sender) == self._owner
            and message.header.fields.get(HeaderFields.path) == _MANAGER.object_path
            and _is(message, _MANAGER.interface, _SIGNAL)
            and len(message.body) == 1
        )


def _is(message: Message, interface: str | None, member: str) -> bool:
    fields = message.header.fields
    return bool(fields.get(HeaderFields.interface) == interface and fields.get(HeaderFields.member) == member)
