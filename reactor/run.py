"""`reactor run`: the guard, by an order that a child has made of the arguments and the configuration.

What reads them takes 6 MiB, once. In a child it leaves nothing in the guard's memory, which
is locked: what a process has let go of is seldom the system's again.
"""

from __future__ import annotations

import signal
from _pickle import dumps, loads  # as in reactor.link.orders
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from reactor.processes import import_dataclasses, import_trio, made_by_child

if TYPE_CHECKING:  # nothing is imported here that would come before `import_trio`
    from pathlib import Path

    from reactor.model.settings import Start


class Order(NamedTuple):
    """What the guard is to do; it comes from `commands.daemon`."""

    start: Start
    config: Path
    dry_run: bool


def block_signals() -> None:
    """Block the signals that the daemon receives itself, so that none is answered by a default until then.

    That of SIGHUP would end the process halfway, while modules are being imported.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGHUP, signal.SIGTERM, signal.SIGINT))


def run_by_child(order: Callable[[Callable[[Order], int]], int]) -> int:
    """Guard by what `order` gives to its argument, in a child; return the exit status."""
    block_signals()
    import_dataclasses()
    made, status = made_by_child(lambda give: order(lambda one: give(dumps(one))), meanwhile=import_trio)
    return guard(loads(made)) if made else status


def guard(order: Order) -> int:
    """Guard the node until the end; signals are blocked."""
    trio = import_trio()

    from reactor.guard.run import run  # noqa: PLC0415 - not before what it would import is replaced
    from reactor.tell.log import log_to_stderr  # noqa: PLC0415

    log = log_to_stderr()
    start = order.start
    try:
        trio.run(partial(run, start.settings, dry_run=order.dry_run, config_path=order.config, start=start))
    finally:
        log.close()
    return 0
