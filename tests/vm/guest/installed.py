"""The service as it is installed on a node: it is started at each boot, and what it writes outlives them."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from guarded import (
    BIN,
    CONFIG,
    JOURNAL,
    SECONDS,
    SLICE,
    SLICE_MIB,
    UNIT,
    Service,
    clear,
    eventually,
    is_clear,
    run,
)
from shutting_down import DROP_IN_OF_LOGIND

_UNITS: Final = Path("/etc/systemd/system")
_BOOT: Final = Path("/var/lib/reactor-boot")
_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
_SLICE_TEXT: Final = f"[Slice]\nMemoryMax={SLICE_MIB}M\n"
_DROP_IN: Final = f"""\
[Unit]
Wants={SLICE}
After={SLICE}
[Service]
ExecStart=
ExecStart={BIN} run --config {CONFIG}
TimeoutStartSec={SECONDS:.0f}s
"""


def install(service: Service, configuration: Mapping[str, Any], section: Mapping[str, Any]) -> None:
    """Configure the service, have it started now and at each boot."""
    if not is_clear():  # what an interrupted run has left
        clear()
    service.configure(configuration, section)
    shutil.copy(UNIT, _UNITS)
    (_UNITS / SLICE).write_text(_SLICE_TEXT)
    drop_in = _UNITS / "reactor.service.d/test.conf"
    drop_in.parent.mkdir(exist_ok=True)
    drop_in.write_text(_DROP_IN)
    run("systemctl", "daemon-reload")
    run("systemctl", "enable", "--now", "reactor.service")


def before_going_down() -> None:
    """Note which boot this is, and have everything on the disk: what comes may cut the power."""
    _BOOT.write_text(_BOOT_ID.read_text())
    os.sync()


@contextmanager
def booted_again() -> Iterator[Service]:
    """Yield the service, which this boot has started; it is removed at the end, with what it wrote."""
    service = Service()
    try:
        assert _BOOT.read_text() != _BOOT_ID.read_text(), "the machine has not been down"
        eventually(lambda: service.prop("ActiveState") == "active", "the service is started by the boot")
        yield service
    finally:
        run("systemctl", "disable", "--now", "reactor.service", check=False)
        written = (DROP_IN_OF_LOGIND, *JOURNAL.parent.glob("*"))
        for path in (_UNITS / "reactor.service", _UNITS / SLICE, _BOOT, *written):
            path.unlink(missing_ok=True)
        shutil.rmtree(_UNITS / "reactor.service.d", ignore_errors=True)
        run("systemctl", "stop", SLICE, check=False)
        run("systemctl", "daemon-reload")
        run("systemctl", "kill", "--signal=HUP", "systemd-logind.service")


def last_boot(said: Callable[[dict[str, str]], bool]) -> list[dict[str, str]]:
    """Return what systemd's journal has of the boot before this one, in its order, as far as it `said` so."""
    entries = run("journalctl", "--boot=-1", "--output=json", "--no-pager").splitlines()
    return [entry for entry in map(json.loads, entries) if said(entry)]
