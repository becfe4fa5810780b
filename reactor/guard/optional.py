"""Parts that only some nodes have, imported only there: what they take of memory is for those."""

from __future__ import annotations

from typing import TYPE_CHECKING

from reactor.act.kill import KillPath
from reactor.errors import ConfigError, Problem, extra_remedy
from reactor.kernel.cgroup import CgroupTree
from reactor.model.settings import Settings
from reactor.supervisor import Supervisor

if TYPE_CHECKING:
    from reactor.guard.kubernetes import Cluster


def cluster_of(
    settings: Settings, tree: CgroupTree, kills: KillPath, supervisor: Supervisor
) -> Cluster | None:
    """Return the daemon's part in a cluster; None on a node that is in none."""
    if settings.kubernetes is None:
        return None
    try:
        from reactor.guard.kubernetes import Cluster  # noqa: PLC0415
    except ImportError as error:
        accepted = f"nothing here unless you {extra_remedy('kubernetes')}"
        raise ConfigError([Problem(path="reactor.kubernetes", got=str(error), accepted=accepted)]) from error
    return Cluster(settings, tree, kills, supervisor)
