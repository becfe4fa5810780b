"""`reactor run`: the daemon from its turn to its end, with the signals that reach it."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path
from typing import Final

import trio

from reactor.guard.last_good import LastGoodFile
from reactor.guard.listening import AnotherDaemonError
from reactor.guard.loop import Daemon
from reactor.guard.recorder import Hooks
from reactor.guard.signals import obey, receiver
from reactor.guard.single_instance_lock import single_instance_lock
from reactor.kernel.bpf.objects import not_installed
from reactor.kernel.cgroup import CgroupTree
from reactor.kernel.cgroup_files import CgroupVersion
from reactor.model.settings import Settings
from reactor.model.start import Start
from reactor.threads import limit_threads

_LOG: Final = logging.getLogger("reactor.daemon")


async def run(
    settings: Settings,
    *,
    dry_run: bool = False,
    config_path: Path | None = None,
    start: Start | None = None,
    tree: CgroupTree | None = None,
    hooks: Hooks | None = None,
    task_status: trio.TaskStatus[Daemon] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Guard the node until a signal or a cancellation ends it.

    With `config_path` SIGHUP reads that file again, with the drop-ins of `start`, and SIGTERM and SIGINT end;
    without it signals are left to the caller. `start` is where `settings` came from: its text is kept for a
    start with a wrong file, and why it is not what the file says now is reported. The task's status is given
    once the sources are armed. Raises KernelInterfaceError where there is no memory controller,
    AnotherDaemonError where another daemon guards with the same state file, for whose end
    `settings.stand_by` waits, or answers on the same socket.
    """
    limit_threads()
    tree = tree or CgroupTree.discover()
    warn_of_missing_objects(settings, tree.version)
    settings = dataclasses.replace(settings, dry_run=dry_run or settings.dry_run)
    if config_path is None:
        daemon = Daemon(settings, tree, hooks or Hooks())
        with daemon.prepared():
            async with _turn(settings, daemon):
                await daemon.run(task_status)
        return
    refused: AnotherDaemonError | None = None
    last_good = LastGoodFile(Path(settings.state_path), config_path)
    if start is not None and start.refused is None:
        last_good.show(start.text)
    with receiver() as received:
        ends = f"reactor.dryRun: false in {config_path}, then systemctl reload reactor"
        if dry_run:
            ends = "start it without --dry-run"
        daemon = Daemon(settings, tree, hooks or Hooks(), last_good, ends)
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
                with daemon.prepared():
                    async with _turn(settings, daemon):
                        await daemon.run(task_status)
            except AnotherDaemonError as error:  # raised below: the nursery would make a group of it
                refused = error
                nursery.cancel_scope.cancel()
    if refused is not None:
        raise refused


def _turn(settings: Settings, daemon: Daemon) -> AbstractAsyncContextManager[None]:
    """Return what waits for the daemon's turn to guard the node."""
    return single_instance_lock(
        Path(settings.state_path),
        stand_by=settings.stand_by,
        waits=daemon.stand_by,
        socket_path=Path(settings.socket_path),
        not_ready_because=daemon.not_ready_because,
    )


def warn_of_missing_objects(
    settings: Settings, version: CgroupVersion, missing: Callable[[], str | None] = not_installed
) -> None:
    """Log that the first choice of cgroup v2 is missing from what was installed, whatever the node offers."""
    why = missing() if version is CgroupVersion.V2 and settings.sources.ebpf else None
    if why is not None:
        _LOG.warning("%s; until then the next source of each chain stands in", why)
