"""`reactor run`: the daemon from its turn to its end, with the signals that reach it."""

from __future__ import annotations

import dataclasses
import logging
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import trio

from reactor.errors import ConfigError, Problem
from reactor.guard.daemon import Daemon
from reactor.guard.single_instance import AnotherDaemonError, single_instance_lock
from reactor.guard.state import last_good_file
from reactor.kernel.bpf.objects import not_installed
from reactor.kernel.cgroup import CgroupTree
from reactor.kernel.cgroup_directory import CgroupVersion
from reactor.kernel.scheduling import following
from reactor.model.settings import Settings, Start
from reactor.supervisor import Faults
from reactor.threads import in_thread, limit_threads

if TYPE_CHECKING:
    from reactor.config.settings import Configuration

_LOG: Final = logging.getLogger("reactor.daemon")
_LOAD_SECONDS: Final = 30.0
_MOST_RELOADS: Final = 8
SIGNALS: Final = (signal.SIGHUP, signal.SIGTERM, signal.SIGINT)


@contextmanager
def receiver() -> Iterator[AsyncIterator[int]]:
    """Receive the signals that the daemon obeys.

    The command blocks them at its very start (reactor/run.py), so that none is answered by Python's or
    the kernel's default while modules are imported. At the end they are blocked as they were before: the
    command's stay blocked, so that a second SIGTERM does not cut the clean-up short, and another program's
    children inherit no blocked SIGTERM.
    """
    with trio.open_signal_receiver(*SIGNALS) as received:
        before = signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
        try:
            yield received
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


async def obey(
    received: AsyncIterator[int],
    daemon: Daemon,
    config_path: Path,
    end: Callable[[], None],
    *,
    config_dir: Path | None = None,
    dry_run: bool,
    keep: Callable[[str], None] = lambda _: None,
) -> None:
    """Reload at SIGHUP, end at SIGTERM and SIGINT. `dry_run` holds whatever the new file says.

    `keep` is given the text of each configuration that was taken. A reload that fails in any way is refused;
    so is one whose file is not read in time. What ends the daemon waits for no reload.
    """
    asked, hangups = trio.open_memory_channel[str](_MOST_RELOADS)
    one_at_a_time = trio.CapacityLimiter(1)

    async def load() -> Configuration:
        # In a thread: importing and parsing take 0.2 s, and the file's disk may hang. One that hangs is left
        # behind, and others need their threads.
        return await in_thread(
            following(_configuration),
            config_path,
            config_dir,
            abandon_on_cancel=True,
            limiter=one_at_a_time,
        )

    async def reload_each() -> None:
        async for _ in hangups:
            await _reload(daemon, load, config_path, keep, dry_run=dry_run)

    async with trio.open_nursery() as nursery, asked:
        nursery.start_soon(reload_each)
        async for number in received:
            name = signal.Signals(number).name
            if number != signal.SIGHUP:
                _LOG.info("%s: ending", name)
                nursery.cancel_scope.cancel()
                end()
                return
            _LOG.info("%s: reloading %s", name, config_path)
            with suppress(trio.WouldBlock):  # those that wait read what there is then
                asked.send_nowait(name)


async def _reload(
    daemon: Daemon,
    load: Callable[[], Awaitable[Configuration]],
    config_path: Path,
    keep: Callable[[str], None],
    *,
    dry_run: bool,
) -> None:
    try:
        with trio.move_on_after(_LOAD_SECONDS) as scope:
            taken = await load()
        if scope.cancelled_caught:
            got, accepted = f"not read within {_LOAD_SECONDS:g} s", "a file on a disk that answers"
            raise ConfigError([Problem(path=str(config_path), got=got, accepted=accepted)])  # noqa: TRY301
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


async def run(
    settings: Settings,
    *,
    dry_run: bool = False,
    config_path: Path | None = None,
    start: Start | None = None,
    tree: CgroupTree | None = None,
    faults: Faults | None = None,
    task_status: trio.TaskStatus[Daemon] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Guard the node until a signal or a cancellation ends it.

    With `config_path` SIGHUP reads that file again, with the drop-ins of `start`, and SIGTERM and SIGINT end;
    without it signals are left to the caller. `start` is where `settings` came from: its text is kept for a
    start with a wrong file, and why it is not what the file says now is reported. The task's status is given
    once the sources are armed. Raises KernelInterfaceError where there is no memory controller,
    AnotherDaemonError where another daemon guards with the same state file or evicts on the same node, for
    whose end `settings.stand_by` waits, or answers on the same socket.
    """
    limit_threads()
    tree = tree or CgroupTree.discover()
    warn_of_missing_objects(settings, tree.version)
    settings = dataclasses.replace(settings, dry_run=dry_run or settings.dry_run)
    if config_path is None:
        daemon = Daemon(settings, tree, faults=faults)
        await _guard(daemon, task_status)
        return
    refused: AnotherDaemonError | None = None
    last_good = last_good_file(Path(settings.state_path), config_path)
    if start is not None and start.refused is None:
        last_good.show(start.text)
    with receiver() as received:
        ends = f"reactor.dryRun: false in {config_path}, then systemctl reload reactor"
        if dry_run:
            ends = "start it without --dry-run"
        daemon = Daemon(settings, tree, last_good, ends, faults)
        if start is not None and start.refused is not None:
            daemon.refuse_at_start(start.refused)
        async with trio.open_nursery() as nursery:

            async def end() -> None:
                await daemon.leave()
                nursery.cancel_scope.cancel()

            obeying = partial(
                obey,
                received,
                daemon,
                config_path,
                partial(nursery.start_soon, end),
                config_dir=None if start is None else start.config_dir,
                dry_run=dry_run,
                keep=last_good.show,
            )
            nursery.start_soon(partial(daemon.supervisor.keep, "signals", obeying, ends=True))
            try:
                await _guard(daemon, task_status)
            except AnotherDaemonError as error:  # raised below: the nursery would make a group of it
                refused = error
                nursery.cancel_scope.cancel()
    if refused is not None:
        raise refused


async def _guard(daemon: Daemon, task_status: trio.TaskStatus[Daemon]) -> None:
    settings = daemon.settings
    with daemon.prepared():
        async with single_instance_lock(
            Path(settings.state_path),
            stand_by=settings.stand_by,
            waits=daemon.stand_by,
            node=lambda: daemon.node_lock.begin(daemon.settings),
            socket_path=Path(settings.socket_path),
            not_ready_because=daemon.not_ready_because,
        ):
            await daemon.run(task_status)


def warn_of_missing_objects(
    settings: Settings, version: CgroupVersion, missing: Callable[[], str | None] = not_installed
) -> None:
    """Log that the first choice of cgroup v2 is missing from what was installed, whatever the node offers."""
    why = missing() if version is CgroupVersion.V2 and settings.sources.ebpf else None
    if why is not None:
        _LOG.warning("%s; until then the next source of each chain stands in", why)
