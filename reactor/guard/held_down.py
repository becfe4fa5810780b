"""Evicted pods that stay down until the kubelet has let go of them, whatever becomes of guard and steward.

The API server is told that such a pod has failed, so none of it may run any more. A file remembers them for
the next guard of the same boot: a pod's cgroup is known by its inode, and one that another pod has since is
left alone.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

from reactor.guard.standing_order import Kills, StandingOrder
from reactor.kernel.cgroup import CgroupTree
from reactor.kernel.procfs import BOOT_ID
from reactor.kernel.small_file import KeptFile, document_of
from reactor.model.pods import Pod
from reactor.supervisor import Nursery

_LOG: Final = logging.getLogger("reactor.evict")
_FILE: Final = "held-down.json"
_VERSION: Final = 1
_MAX_BYTES: Final = 4 << 20
_MOST: Final = 256
_WRITTEN_BY_LOOP: Final = 16  # some KiB, on tmpfs


class HeldDown:
    """Keeps pods down; `present` lists the node's pods as they are. `file.run` is a part of the daemon."""

    def __init__(
        self,
        tree: CgroupTree,
        kills: Kills,
        state_path: Path,
        present: Callable[[], Sequence[Pod]],
        *,
        boot_id: Path = BOOT_ID,
    ) -> None:
        self._tree = tree
        self._kills = kills
        self._present = present
        self._pods: dict[str, Pod] = {}
        self.file = _HeldDownFile(state_path.with_name(_FILE), boot_id)

    def __len__(self) -> int:
        """Return how many pods are kept down."""
        return len(self._pods)

    def __contains__(self, uid: object) -> bool:
        """Return whether a pod is kept down."""
        return uid in self._pods

    def load(self) -> None:
        """Take over the pods that an earlier run kept down. Blocks on the disk."""
        self._pods = {pod.uid: pod for pod in self.file.load()[:_MOST]}

    @property
    def uids(self) -> tuple[str, ...]:
        """Return which pods are kept down."""
        return tuple(self._pods)

    def resume(self, nursery: Nursery) -> None:
        """Keep down those that were loaded."""
        for uid in self._pods:
            nursery.start_soon(self._run, uid)

    def hold(self, pod: Pod, nursery: Nursery) -> None:
        """Keep a pod down from now on. Of too many those that were evicted last are not."""
        if pod.uid in self._pods:
            return
        if len(self._pods) >= _MOST:
            _LOG.warning("pod %s: not kept down after its eviction: %d others are", pod.key, _MOST)
            return
        self._pods[pod.uid] = pod
        self._show()
        nursery.start_soon(self._run, pod.uid)

    async def _run(self, uid: str) -> None:
        evicted = self._pods[uid]

        def find() -> Pod:
            """Return the pod as it is now: its sandbox may be another one since."""
            return next((pod for pod in self._present() if pod.uid == uid), evicted)

        await StandingOrder(self._tree, self._kills, find).run()
        del self._pods[uid]  # not at the end of the daemon: the next one goes on with it
        self._show()

    def _show(self) -> None:
        self.file.show(tuple(self._pods.values()))


class _HeldDownFile(KeptFile[tuple[Pod, ...]]):
    def __init__(self, path: Path, boot_id: Path) -> None:
        self._boot_id = boot_id.read_text().strip()
        super().__init__(path, self._document, "evicted pods: not saved, a restart would forget them", _LOG)

    def load(self) -> tuple[Pod, ...]:
        return self._restore(_MAX_BYTES, partial(_parsed, boot_id=self._boot_id)) or ()

    def _is_small(self) -> bool:
        return all(len(pods) <= _WRITTEN_BY_LOOP for pods in self._shown)

    def _document(self, pods: tuple[Pod, ...]) -> object:
        return {"version": _VERSION, "boot_id": self._boot_id, "pods": [_pod_document(pod) for pod in pods]}


def _pod_document(pod: Pod) -> dict[str, Any]:
    return {
        "uid": pod.uid,
        "namespace": pod.namespace,
        "name": pod.name,
        "cgroup": pod.cgroup,
        "cgroup_inode": pod.cgroup_inode,
        "spared_cgroups": list(pod.spared_cgroups),
    }


def _parsed(content: bytes, boot_id: str) -> tuple[Pod, ...]:
    document = document_of(content, version=_VERSION, max_bytes=_MAX_BYTES)
    if document["boot_id"] != boot_id:
        return ()  # no cgroup of that boot is there any more
    return tuple(_pod(one) for one in document["pods"])


def _pod(document: dict[str, Any]) -> Pod:
    inode = document["cgroup_inode"]
    return Pod(
        uid=str(document["uid"]),
        namespace=str(document["namespace"]),
        name=str(document["name"]),
        cgroup=None if document["cgroup"] is None else str(document["cgroup"]),
        cgroup_inode=None if inode is None else int(inode),
        spared_cgroups=tuple(str(one) for one in document["spared_cgroups"]),
    )
