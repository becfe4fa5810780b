"""SIGHUP reloads the configuration, SIGTERM and SIGINT end the daemon, at whatever moment they come."""

from __future__ import annotations

import dataclasses
import logging
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

import trio

from reactor.kernel.scheduling import following
from reactor.model.settings import Settings
from reactor.threads import in_thread

if TYPE_CHECKING:
    from reactor.config.settings import Configuration

_LOG: Final = logging.getLogger("reactor.daemon")
SIGNALS: Final = (signal.SIGHUP, signal.SIGTERM, signal.SIGINT)


@contextmanager
def receiver() -> Iterator[AsyncIterator[int]]:
    """Receive the signals that the daemon obeys.

    The command blocks them at its very start (commands/run.py), so that none is answered by Python's or the
    kernel's default while modules are imported. At the end they are blocked as they were before: the
    command's stay blocked, so that a second SIGTERM does not cut the clean-up short, and another program's
    children inherit no blocked SIGTERM.
    """
    with trio.open_signal_receiver(*SIGNALS) as received:
        before = signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
        try:
            yield received
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


class Reloadable(Protocol):
    """What takes another configuration while it runs."""

    def reload(self, settings: Settings) -> None:
        """Go on with these settings."""

    def refuse_reload(self, error: Exception) -> None:
        """Go on with those in force."""


async def obey(
    received: AsyncIterator[int],
    daemon: Reloadable,
    config_path: Path,
    end: Callable[[], None],
    *,
    config_dir: Path | None = None,
    dry_run: bool,
    keep: Callable[[str], None] = lambda _: None,
) -> None:
    """Reload at SIGHUP, end at SIGTERM and SIGINT. `dry_run` holds whatever the new file says.

    `keep` is given the text of each configuration that was taken. A reload that fails in any way is refused.
    """
    async for number in received:
        name = signal.Signals(number).name
        if number != signal.SIGHUP:
            _LOG.info("%s: ending", name)
            end()
            return
        _LOG.info("%s: reloading %s", name, config_path)
        try:
            # In a thread: importing and parsing take 0.2 s, and the file's disk may hang.
            load = following(_configuration)
            taken = await in_thread(load, config_path, config_dir, abandon_on_cancel=True)
            settings = taken.settings
            daemon.reload(dataclasses.replace(settings, dry_run=dry_run or settings.dry_run))
        except Exception as error:  # noqa: BLE001 - the configuration in force goes on, whatever is wrong
            daemon.refuse_reload(error)
        else:
            keep(taken.text)


def _configuration(path: Path, config_dir: Path | None) -> Configuration:
    """Return the configuration in the file and its drop-ins. Raises ConfigError."""
    # The command has let go of what reads configurations: most daemons never need it again.
    from reactor.config.settings import load_configuration  # noqa: PLC0415

    return load_configuration(path, config_dir, may_run_commands=True)
