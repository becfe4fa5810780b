"""Parts that only some nodes have, imported only there: what they take of memory is for those."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final

from reactor.act.kill import KillPath
from reactor.errors import ConfigError, Problem, extra_remedy
from reactor.guard.steward_link import StewardLink
from reactor.kernel.cgroup import CgroupTree
from reactor.model.pods import Pod
from reactor.model.settings import Settings
from reactor.supervisor import Supervisor

if TYPE_CHECKING:
    from reactor.guard.kubernetes import KubernetesNode

_IN_STEWARD: Final = ("h2",)


def kubernetes_node_of(
    settings: Settings,
    tree: CgroupTree,
    kills: KillPath,
    link: StewardLink,
    supervisor: Supervisor,
    present: Callable[[], Sequence[Pod]],
) -> KubernetesNode | None:
    """Return the guard's part on a Kubernetes node; None on any other.

    Raises ConfigError where the steward would lack what it speaks to a cluster with.
    """
    if settings.kubernetes is None:
        return None
    missing = [name for name in _IN_STEWARD if find_spec(name) is None]
    if missing:
        accepted = f"nothing here unless you {extra_remedy('kubernetes')}"
        got = f"No module named {missing[0]!r}"
        raise ConfigError([Problem(path="reactor.kubernetes", got=got, accepted=accepted)])
    from reactor.guard.kubernetes import KubernetesNode  # noqa: PLC0415

    return KubernetesNode(settings, tree, kills, link, supervisor, present)
