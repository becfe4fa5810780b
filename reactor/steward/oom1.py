"""org.freedesktop.oom1 on the system bus, for those who listen to systemd-oomd: with `systemdOomd: replace`.

    DumpByFileDescriptor    what oomctl prints: which units count, their limits, and what is observed of them
    Killed                  a signal for each cgroup that was killed, and why: desktops' notifiers wait for it

Any local user may call. A dump reads four files of each unit, 1,024 units at the most, in a thread; all calls
that wait get the same one, and the next is made after 20 times as long. What it says of limits is what the
guard goes by: oomd.conf as it was at the last reload, of either service.
Source: src/oom/oomd-manager-bus.c and manager_get_dump_string in systemd's src/oom/oomd-manager.c; oomctl(1).
"""

from __future__ import annotations

import fcntl
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import trio

from reactor.backoff import Backoff
from reactor.errors import ReactorError, first_failure
from reactor.kernel.cgroup import CgroupTree
from reactor.kernel.files import READ_BYTES, read_value
from reactor.kernel.procfs import PROC, parse_meminfo, parse_swap
from reactor.link.documents import Outcome
from reactor.link.managed_oom import (
    LONGEST_BYTES,
    PATH,
    ManagedOomKind,
    ManagedOomReport,
    ManagedOomUnit,
    read_report_at_once,
)
from reactor.model.quantity import bytes_text
from reactor.model.settings import Settings, SystemdOomd
from reactor.rules.oomd_conf import OomdDefaults, oomd_defaults
from reactor.text import printable
from reactor.threads import in_thread

if TYPE_CHECKING:
    from jeepney import Message

    from reactor.system_bus import Bus

NAME: Final = "org.freedesktop.oom1"
OBJECT: Final = "/org/freedesktop/oom1"
INTERFACE: Final = "org.freedesktop.oom1.Manager"
_PART: Final = "systemdOomd: bus"
_MOST_KILLS: Final = 16
_DUMP_PAUSE: Final = 20  # times as long as the last one took
_PAUSE_SECONDS: Final = (1.0, 60.0)
_UNKNOWN_METHOD: Final = "org.freedesktop.DBus.Error.UnknownMethod"
_DENIED: Final = "AccessDenied"
_POLICY: Final = (
    "the bus does not let reactor have the name: reactor-oom1.conf belongs into /etc/dbus-1/system.d, see "
    '"Instead of systemd-oomd" in pressure.md'
)
_FULL: Final = re.compile(
    rb"^full avg10=([0-9.]{1,8}) avg60=([0-9.]{1,8}) avg300=([0-9.]{1,8}) total=([0-9]{1,20})$", re.MULTILINE
)
_NUMBER: Final = re.compile(rb"([0-9]{1,20}|max)\n?")
_SCANNED: Final = re.compile(rb"^pgscan ([0-9]{1,20})$", re.MULTILINE)
_UNITS: Final = ((3600, "h"), (60, "min"), (1, "s"))
# Why systemd-oomd would have killed, in its own words.
_REASONS: Final = (
    ("systemd-oomd:swap", "memory-used"),
    ("systemd-oomd:pressure-", "memory-pressure"),
    ("systemd-oomd:user-pressure-", "memory-pressure"),
)
_INTROSPECTION: Final = (
    '<node><interface name="org.freedesktop.oom1.Manager">'
    '<method name="DumpByFileDescriptor"><arg type="h" name="fd" direction="out"/></method>'
    '<signal name="Killed"><arg type="s" name="cgroup"/><arg type="s" name="reason"/></signal>'
    "</interface></node>"
)

Document = Mapping[str, Any]


class Oom1:
    """Serves while the settings say so. `bus`, `path` and `root` are others in tests."""

    def __init__(
        self, *, bus: str = "SYSTEM", path: Path = Path(PATH), root: Path = Path("/"), proc: Path = PROC
    ) -> None:
        self._bus = bus
        self._path = path
        self._root = root
        self._proc = proc
        self._is_wanted = False
        self._is_dry_run = False
        self._changed = trio.Event()
        self._problem: str | None = None
        self._defaults: OomdDefaults | None = None
        self._reloads = 0
        self._scanned: dict[str, int] = {}
        self._kills, self._killed = trio.open_memory_channel[tuple[str, str]](_MOST_KILLS)

    @property
    def problems(self) -> dict[str, str]:
        return {} if self._problem is None else {_PART: self._problem}

    def order(self, settings: Settings) -> None:
        """Serve from now on, or no longer; oomd.conf is read again."""
        self._is_wanted = settings.systemd_oomd is SystemdOomd.REPLACE
        self._is_dry_run = settings.dry_run
        self._defaults = None
        self._changed.set()

    def take(self, line: Document) -> None:
        """Send a signal for each cgroup that a line of the journal says was killed."""
        if not self._is_wanted:
            return
        for cgroup, reason in killed_in(line):
            try:
                self._kills.send_nowait((cgroup, reason))
            except trio.WouldBlock:  # the bus is away: a signal is for those who listen now
                return

    async def run(self) -> None:
        """Serve until cancelled, and again after each failure."""
        backoff = Backoff(*_PAUSE_SECONDS)
        while True:
            self._changed = trio.Event()
            if not self._is_wanted:
                self._problem = None
                await self._changed.wait()
                continue
            try:
                await self._serve(backoff)
            except (ReactorError, ExceptionGroup) as error:
                cause = first_failure(error)
                if not isinstance(cause, ReactorError):
                    raise
                self._problem = _POLICY if _DENIED in str(cause) else printable(str(cause))
                with trio.move_on_after(backoff.next_seconds()):
                    await self._changed.wait()

    async def _serve(self, backoff: Backoff) -> None:
        """Serve on one connection until the settings change. Raises ReactorError where it is lost."""
        from reactor.system_bus import open_bus  # noqa: PLC0415 - imported where systemd-oomd is replaced

        async with open_bus(self._bus) as bus, trio.open_nursery() as nursery:
            calls = bus.serve()
            await bus.own(NAME)
            self._problem = None
            backoff.reset()
            nursery.start_soon(self._answer, bus, calls)
            nursery.start_soon(self._signal, bus)
            while self._is_wanted:
                await self._changed.wait()
                self._changed = trio.Event()
            nursery.cancel_scope.cancel()

    async def _signal(self, bus: Bus) -> None:
        async for cgroup, reason in self._killed:
            await bus.emit(OBJECT, INTERFACE, "Killed", "ss", cgroup, reason)

    async def _answer(self, bus: Bus, calls: trio.MemoryReceiveChannel[Message]) -> None:
        """Answer calls, those that wait for a dump together."""
        from jeepney import HeaderFields  # noqa: PLC0415 - as the bus is

        async for first in calls:
            others = range(calls.statistics().current_buffer_used)
            waiting = [first, *(calls.receive_nowait() for _ in others)]
            dumps = []
            for call in waiting:
                fields = call.header.fields
                asked = fields.get(HeaderFields.interface), fields.get(HeaderFields.member)
                if asked in {(INTERFACE, "DumpByFileDescriptor"), (None, "DumpByFileDescriptor")}:
                    dumps.append(call)
                elif asked == ("org.freedesktop.DBus.Introspectable", "Introspect"):
                    await bus.answer(call, "s", _INTROSPECTION)
                elif asked == ("org.freedesktop.DBus.Peer", "Ping"):
                    await bus.answer(call)
                else:
                    await bus.refuse(call, _UNKNOWN_METHOD, "accepted: DumpByFileDescriptor")
            if dumps:
                started = time.monotonic()
                text = await in_thread(self._dump, abandon_on_cancel=True)
                took_seconds = time.monotonic() - started
                for call in dumps:
                    await self._send_dump(bus, call, text)
                await trio.sleep(_DUMP_PAUSE * took_seconds)

    async def _send_dump(self, bus: Bus, call: Message, text: str) -> None:
        fd = _sealed(text.encode())
        try:
            await bus.answer(call, "h", fd)
        finally:
            os.close(fd)

    def _dump(self) -> str:
        """Return what oomctl prints. Blocks while a disk hangs: in a thread."""
        problem, report = "", ManagedOomReport()
        try:
            report = read_report_at_once(read_value(str(self._path), LONGEST_BYTES + 1))
            problem = report.problem
        except (OSError, ReactorError) as error:
            problem = str(error)
        if self._defaults is None or report.reloads != self._reloads:
            self._defaults, self._reloads = oomd_defaults({}, root=self._root), report.reloads
        try:
            meminfo = read_value(f"{self._proc}/meminfo", READ_BYTES)
            tree: CgroupTree | None = CgroupTree.discover()
        except (OSError, ReactorError):
            meminfo, tree = b"", None
        lines = dump_lines(
            report,
            self._defaults,
            machine=_machine_lines(meminfo),
            observe=partial(_observed, tree, self._scanned),
            is_dry_run=self._is_dry_run,
        )
        present = {unit.cgroup for unit in report.units}
        self._scanned = {cgroup: value for cgroup, value in self._scanned.items() if cgroup in present}
        if problem:
            lines.append(f"Problem: {printable(problem)}")
        return "\n".join((*lines, ""))


def killed_in(line: Document) -> Iterator[tuple[str, str]]:
    """Yield the cgroups that a line of the journal says were killed, and why; none of another form."""
    kind = line.get("kind")
    evictions = line.get("evictions") if kind == "decision" else [line] if kind == "outcome" else ()
    if not isinstance(evictions, Sequence) or line.get("dry_run"):
        return
    rule = line.get("rule")
    for one in evictions:
        if not isinstance(one, Mapping) or one.get("outcome") != Outcome.KILLED:
            continue
        cgroup = one.get("cgroup")
        if isinstance(cgroup, str) and cgroup.isprintable():
            yield cgroup, _reason(rule.get("name") if isinstance(rule, Mapping) else None, one.get("signal"))


def _reason(rule: object, signal: object) -> str:
    if not isinstance(rule, str):
        return printable(str(signal))
    for prefix, reason in _REASONS:
        if rule.startswith(prefix):
            return reason
    name = rule.removeprefix("systemd-oomd:").removeprefix("user-").removeprefix("rule-")
    return f"rule {printable(name)}"


def dump_lines(
    report: ManagedOomReport,
    defaults: OomdDefaults,
    *,
    machine: Sequence[str],
    observe: Callable[[ManagedOomUnit], Sequence[str]],
    is_dry_run: bool,
) -> list[str]:
    """Return what oomctl prints, line by line: `observe` returns what is to be said of a unit now."""
    lines = [
        f"Dry Run: {'yes' if is_dry_run else 'no'}",
        f"Swap Used Limit: {defaults.swap_used_percent:.2f}%",
        f"Default Memory Pressure Limit: {defaults.pressure_percent:.2f}%",
        f"Default Memory Pressure Duration: {timespan(defaults.pressure_seconds)}",
        "System Context:",
        *(f"\t{line}" for line in machine),
    ]
    by_kind: dict[ManagedOomKind, list[ManagedOomUnit]] = {kind: [] for kind in ManagedOomKind}
    for unit in sorted(report.units, key=lambda one: one.cgroup):
        by_kind[unit.kind].append(unit)
    lines.append("Swap Monitored CGroups:")
    for unit in by_kind[ManagedOomKind.SWAP]:
        lines += [f"\tPath: {unit.cgroup}", *(f"\t\t{line}" for line in observe(unit))]
    lines.append("Memory Pressure Monitored CGroups:")
    for unit in by_kind[ManagedOomKind.MEMORY_PRESSURE]:
        percent = unit.limit_percent or defaults.pressure_percent
        seconds = unit.duration_seconds or defaults.pressure_seconds
        lines += [
            f"\tPath: {unit.cgroup}",
            f"\t\tMemory Pressure Limit: {percent:.2f}%",
            f"\t\tMemory Pressure Duration: {timespan(seconds)}",
            *(f"\t\t{line}" for line in observe(unit)),
        ]
    if by_kind[ManagedOomKind.RULES]:
        lines.append("Rule Monitored CGroups:")
    for unit in by_kind[ManagedOomKind.RULES]:
        lines += [f"\tPath: {unit.cgroup}", f"\t\tRules: {' '.join(unit.rules)}"]
    return lines


def timespan(seconds: float) -> str:
    """Return a time as systemd prints one: `1min 30s`."""
    left, words = round(seconds), []
    for unit_seconds, unit in _UNITS:
        count, left = divmod(left, unit_seconds)
        if count:
            words.append(f"{count}{unit}")
    return " ".join(words) or "0"


def _machine_lines(meminfo: bytes) -> tuple[str, ...]:
    try:
        memory, (swap_bytes, free_bytes) = parse_meminfo(meminfo), parse_swap(meminfo)
    except ReactorError:
        return ("Memory: unknown",)
    used_bytes = memory.total_bytes - (memory.available_bytes or 0)
    return (
        f"Memory: Used: {_size(used_bytes)}, Total: {_size(memory.total_bytes)}",
        f"Swap: Used: {_size(swap_bytes - free_bytes)}, Total: {_size(swap_bytes)}",
    )


def _observed(tree: CgroupTree | None, scanned: dict[str, int], unit: ManagedOomUnit) -> list[str]:
    """Return what is to be said of a unit now; less if it is gone. `scanned` are the last dump's."""
    if unit.kind is ManagedOomKind.SWAP:
        if unit.cgroup == "/":
            return ["Swap Usage: (see System Context)"]
        return [f"Swap Usage: {_size(_number(tree, unit.cgroup, 'memory.swap.current'))}"]
    lines = []
    pressure = _FULL.search(_file(tree, unit.cgroup, "memory.pressure"))
    if pressure is not None:
        avg10, avg60, avg300, total = (part.decode() for part in pressure.groups())
        stalled = timespan(int(total) / 1e6)
        lines.append(f"Pressure: Avg10: {avg10}, Avg60: {avg60}, Avg300: {avg300}, Total: {stalled}")
    lines.append(f"Current Memory Usage: {_size(_number(tree, unit.cgroup, 'memory.current'))}")
    if unit.cgroup != "/":
        lines.append(f"Memory Min: {_size(_number(tree, unit.cgroup, 'memory.min'))}")
        lines.append(f"Memory Low: {_size(_number(tree, unit.cgroup, 'memory.low'))}")
        found = _SCANNED.search(_file(tree, unit.cgroup, "memory.stat"))
        if found is not None:
            count = int(found[1])
            lines += [f"Pgscan: {count}", f"Last Pgscan: {scanned.get(unit.cgroup, 0)}"]
            scanned[unit.cgroup] = count
    return lines


def _file(tree: CgroupTree | None, cgroup: str, name: str) -> bytes:
    try:
        return b"" if tree is None else read_value(str(tree.path(cgroup) / name), READ_BYTES)
    except (OSError, ReactorError):
        return b""


def _number(tree: CgroupTree | None, cgroup: str, name: str) -> int | None:
    """Return a file's number, None where it says `max`, and where it can't be had."""
    found = _NUMBER.fullmatch(_file(tree, cgroup, name))
    return None if found is None or found[1] == b"max" else int(found[1])


def _size(size_bytes: int | None) -> str:
    """Return an amount as systemd prints one: `1.5G`."""
    if size_bytes is None:
        return "n/a"
    return bytes_text(size_bytes).removesuffix("i") if size_bytes >= 1024 else f"{size_bytes}B"


def _sealed(content: bytes) -> int:
    """Return a descriptor of a file in memory that nobody can change, at its beginning."""
    fd = os.memfd_create("reactor-oom1", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.write(fd, content)
    os.lseek(fd, 0, os.SEEK_SET)
    seals = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
    return fd
