"""What a guard that did not end in order has left on the node, and what restores it.

Each entry of LEFTOVERS restores one thing, whether a guard is there or not, and returns a line for each that
it found. To call it again changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from reactor.act.leftovers import restore
from reactor.errors import ReactorError
from reactor.guard.oom_order import OwnScoresFile
from reactor.guard.own_scores import NAME, Restoration, read_own_scores
from reactor.guard.state import BOOT_ID
from reactor.kernel.cgroup import CgroupTree
from reactor.kernel.procfs import PROC
from reactor.model.settings import Settings


class LeftError(ReactorError):
    """Something could not be restored."""


def restore_scores(settings: Settings, *, proc: Path = PROC, boot_id: Path = BOOT_ID) -> Sequence[str]:
    """Give processes back the oom_score_adj that they had before the OOM killer's order. See oom_order.py.

    Raises OSError, ValueError, LeftError.
    """
    path = Path(settings.state_path).with_name(NAME)
    held = read_own_scores(str(path), boot_id.read_text().strip())
    restoration = Restoration(held, str(proc))
    restoration.run()
    if held and not restoration.is_complete:
        raise LeftError(restoration.refused or "processes are started faster than they are restored")
    file = OwnScoresFile(path, boot_id)
    if held and not file.save(()):
        raise LeftError(str(file.problem))
    count = restoration.restored
    return [f"oom_score_adj: {count} process{'' if count == 1 else 'es'} restored"] if count else []


def restore_kills(_: Settings) -> Sequence[str]:
    """Thaw pods that a kill has left frozen, and give them back their limits. See act/leftovers.py.

    Raises OSError, ReactorError.
    """
    return restore(CgroupTree.discover())


# What is restored, in words; and what restores it. May raise OSError, ValueError, ReactorError.
LEFTOVERS: Final[tuple[tuple[str, Callable[[Settings], Sequence[str]]], ...]] = (
    ("the OOM killer's order", restore_scores),
    ("what kills have changed", restore_kills),
)
