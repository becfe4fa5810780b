"""Evicted pods stay killed until the kubelet has removed them, whatever becomes of guard and steward.

Between the kill and the moment at which the kubelet learns of the pod's new status it sees nothing but dead
containers, and with restartPolicy Always it starts them again, at once the first time. Nothing reaches it
faster than the API server, which may be away for hours. So whatever comes to life in the pod's cgroup
meanwhile is killed again, milliseconds old. It ends with the cgroup, which the kubelet removes when it takes
down a pod whose phase is Failed (1.20: syncPod; since 1.22: podWorkers.UpdatePod).

A file remembers the pods for the next guard of the same boot: a pod's cgroup is known by its inode, and one
that another pod has since is left alone.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

import trio

from reactor.act.populated import has_no_process
from reactor.act.target import Target
from reactor.errors import ReactorError
from reactor.guard.termination import Kills
from reactor.kernel.cgroup import CgroupTree
from reactor.kernel.procfs import BOOT_ID
from reactor.kernel.small_file import KeptFile, document_of
from reactor.link.documents import attributes
from reactor.model.pods import Pod
from reactor.plain import from_plain
from reactor.supervisor import Nursery

_LOG: Final = logging.getLogger("reactor.evict")
_LOOK_SECONDS: Final = 0.1
_LOOK_LATER_SECONDS: Final = 0.5
_LATER_SECONDS: Final = 30.0
_REAP_SECONDS: Final = 5.0
_FILE: Final = "held-down.json"
_VERSION: Final = 1
_MAX_BYTES: Final = 4 << 20
_MOST: Final = 256
# Of a pod.
_KEPT: Final = ("uid", "namespace", "name", "cgroup", "cgroup_inode", "spared_cgroups")
_WRITTEN_BY_LOOP: Final = 16  # some KiB, on tmpfs


class KeepKilled:
    """Kills again what lives in a pod until its cgroup is gone; `find` returns the pod as it is now known.

    `kills_again` counts how often it had to.
    """

    def __init__(self, tree: CgroupTree, kills: Kills, find: Callable[[], Pod]) -> None:
        self._tree = tree
        self._kills = kills
        self._find = find
        self._logged: str | None = None
        self._inode: int | None = None
        self.kills_again = 0

    async def run(self) -> None:
        """Return once the pod's cgroup is gone. Never raises; what is refused is logged once.

        A cgroup that is recreated under the same path is no longer the pod that was evicted.
        """
        began = trio.current_time()
        while await self._is_there():
            is_late = trio.current_time() - began > _LATER_SECONDS
            await trio.sleep(_LOOK_LATER_SECONDS if is_late else _LOOK_SECONDS)

    async def _is_there(self) -> bool:
        """Kill what lives in the pod; return whether its cgroup is still there."""
        pod = self._find()
        if pod.cgroup is None:
            return False
        try:
            known = replace(pod, cgroup_inode=self._inode or pod.cgroup_inode)
            with closing(Target.of(self._tree, known)) as found:
                if found.directory is None:
                    return False
                self._inode = found.directory.inode
                is_alive = not await has_no_process(found)
            if is_alive:
                await self._kill_again(replace(pod, cgroup_inode=self._inode))
        except (ReactorError, OSError) as error:
            if str(error) != self._logged:
                _LOG.warning("pod %s: can't be kept killed: %s", pod.key, error)
            self._logged = str(error)
        return True

    async def _kill_again(self, pod: Pod) -> None:
        report = self._kills.kill_now(pod)
        if report.is_gone:
            return
        self.kills_again += 1
        if self.kills_again == 1:
            _LOG.warning(
                "pod %s: lived again after its eviction; %d processes killed", pod.key, report.processes
            )
        await self._kills.reap(pod, _REAP_SECONDS)


class EvictedPods:
    """Keeps evicted pods killed; `present` lists the node's pods. `file.run` is a part of the daemon."""

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
        self.file = _EvictedPodsFile(state_path.with_name(_FILE), boot_id)

    def __len__(self) -> int:
        return len(self._pods)

    def __contains__(self, uid: object) -> bool:
        return uid in self._pods

    def load(self) -> None:
        """Restore the pods that an earlier run kept killed. Blocks on the disk."""
        self._pods = {pod.uid: pod for pod in self.file.load()[:_MOST]}

    @property
    def uids(self) -> tuple[str, ...]:
        return tuple(self._pods)

    def resume(self, nursery: Nursery) -> None:
        """Keep those that were loaded killed."""
        for uid in self._pods:
            nursery.start_soon(self._run, uid)

    def keep_killed(self, pod: Pod, nursery: Nursery) -> None:
        """Keep a pod killed from now on. Of too many those that were evicted last are not."""
        if pod.uid in self._pods:
            return
        if len(self._pods) >= _MOST:
            _LOG.warning("pod %s: not kept killed after its eviction: %d others are", pod.key, _MOST)
            return
        self._pods[pod.uid] = pod
        self._show()
        nursery.start_soon(self._run, pod.uid)

    async def _run(self, uid: str) -> None:
        evicted = self._pods[uid]

        def find() -> Pod:
            """Return the pod as it is now: its sandbox may be another one since."""
            return next((pod for pod in self._present() if pod.uid == uid), evicted)

        await KeepKilled(self._tree, self._kills, find).run()
        del self._pods[uid]  # not at the end of the daemon: the next one goes on with it
        self._show()

    def _show(self) -> None:
        self.file.show(tuple(self._pods.values()))


class _EvictedPodsFile(KeptFile[tuple[Pod, ...]]):
    def __init__(self, path: Path, boot_id: Path) -> None:
        self._boot_id = boot_id.read_text().strip()
        super().__init__(path, self._document, "evicted pods: not saved, a restart would forget them", _LOG)

    def load(self) -> tuple[Pod, ...]:
        return self._restore(_MAX_BYTES, partial(_parsed, boot_id=self._boot_id)) or ()

    def _is_small(self) -> bool:
        return all(len(pods) <= _WRITTEN_BY_LOOP for pods in self._shown)

    def _document(self, pods: tuple[Pod, ...]) -> object:
        return {
            "version": _VERSION,
            "boot_id": self._boot_id,
            "pods": [attributes(pod, *_KEPT) for pod in pods],
        }


def _parsed(content: bytes, boot_id: str) -> tuple[Pod, ...]:
    document = document_of(content, version=_VERSION, max_bytes=_MAX_BYTES)
    if document["boot_id"] != boot_id:
        return ()  # no cgroup of that boot is there any more
    return tuple(from_plain(Pod, one) for one in document["pods"])
