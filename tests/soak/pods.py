"""The virtual node's pods: cgroups with what decides their place, and a process of the stage's in each."""

from __future__ import annotations

import errno
import itertools
import json
import os
import re
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from reactor.kernel.cgroup import CgroupVersion
from reactor.testbed.allocator import compiled_tool
from reactor.testbed.virtual_node import VirtualNode
from tests.soak.oracle import Life
from tests.soak.plan import MANIFESTED, PodPlan
from tests.soak.stage import SLOTS, Stage, StageError

PODS: Final = "pods"  # the parent of all pods, in the node
BYSTANDER_BYTES: Final = 256 << 10  # what the process of one takes, with what the kernel holds for it
# Never above its request, and above all other pods' priority: it goes only if no other pod is left.
_BYSTANDER_REQUEST_BYTES: Final = 64 << 20
_BYSTANDER_PRIORITY: Final = 1_000_000
_GONE_SECONDS: Final = 10.0
_IN_FILES: Final = frozenset("tfF")


@dataclass(slots=True, kw_only=True)
class Present:
    """A pod that is there: its plan, the slot of its actor, its cgroup with that one's inode, its files."""

    plan: PodPlan
    slot: int
    instance: int
    cgroup: str
    directories: tuple[Path, ...]
    inode: int
    files: list[Path] = field(default_factory=list)
    tmpfs_files: list[Path] = field(default_factory=list)
    tmpfs_bytes: int = 0
    tmpfs_gone_ns: int = 0

    @property
    def holds_tmpfs(self) -> bool:
        """Tell whether the pod has written to the tmpfs."""
        return bool(self.tmpfs_files)

    def note_tmpfs(self) -> int:
        """Return how large its files in tmpfs are; after their removal, how large they were."""
        with suppress(FileNotFoundError):
            self.tmpfs_bytes = sum(path.stat().st_blocks * 512 for path in self.tmpfs_files)
        return self.tmpfs_bytes

    def forget_files(self) -> None:
        """Remove what the pod wrote: its tmpfs or its page cache is free with that."""
        self.note_tmpfs()
        while self.files:
            self.files.pop().unlink(missing_ok=True)
        if self.holds_tmpfs and not self.tmpfs_gone_ns:
            self.tmpfs_gone_ns = time.monotonic_ns()


class Pods:
    """Makes and removes pods; `lives` remembers every instance. Files of pods lie in a tmpfs or on a disk.

    `stillborn` counts the pods that were killed before they stood, `oom_kills` what the kernel killed in pods
    that were removed.
    """

    def __init__(self, node: VirtualNode, stage: Stage, tmpfs: Path, disk: Path) -> None:
        self._node = node
        self._stage = stage
        self._places = {"t": tmpfs, "f": disk, "F": disk}
        self._instances = itertools.count(1)
        self.present: dict[str, Present] = {}
        self._bystanders: dict[str, subprocess.Popen[bytes]] = {}
        self._bystanders_by_kernel: dict[str, int] = {}
        self.stillborn = 0
        self.oom_kills = self.oom_kills_away = 0
        node.add_pod(PODS)
        self.lives: dict[int, Life] = {}
        self.inodes: dict[int, int] = {}

    def add_bystanders(self, count: int) -> None:
        """Make so many pods that hold little and stay."""
        for number in range(count):
            cgroup = self._node.add_pod(
                f"{PODS}/bystander-{number}",
                request_bytes=_BYSTANDER_REQUEST_BYTES,
                priority=_BYSTANDER_PRIORITY,
            )
            self._bystanders[cgroup] = self._stand_by(cgroup)

    def _stand_by(self, cgroup: str) -> subprocess.Popen[bytes]:
        return self._node.spawn(cgroup, [str(compiled_tool()), "idle"])

    def killed_bystanders(self) -> int:
        """Return how many were killed though another pod could be, and not by the kernel; they come back."""
        dead = [cgroup for cgroup, process in self._bystanders.items() if process.poll() is not None]
        others = [
            one
            for one in self.present.values()
            if not one.plan.spec.is_critical and not self._stage.is_dead(one.instance)
        ]
        kills = 0
        for cgroup in dead:
            by_kernel = self._oom_kills(self._node.tree.path(cgroup))
            kills += bool(others) and by_kernel == self._bystanders_by_kernel.get(cgroup, 0)
            self._bystanders_by_kernel[cgroup] = by_kernel
            self._bystanders[cgroup] = self._stand_by(cgroup)
        return kills

    @property
    def node_cgroup(self) -> str:
        """Return the virtual node's cgroup."""
        return self._node.cgroup

    def limit(self, capacity_bytes: int) -> None:
        """Give the node this capacity."""
        self._node.tree.set_memory_limit(self.node_cgroup, capacity_bytes)

    def start(self, plans: list[PodPlan]) -> list[Present]:
        """Make these pods and have each take its memory."""
        made = [self._make(plan) for plan in plans]
        self._stage.wait_up({pod.instance for pod in made})
        stillborn = [pod for pod in made if pod.instance in self._stage.stillborn]
        for pod in stillborn:
            # Killed before anything of it was sampled: nothing can be said of that.
            self.lives[pod.instance] = replace(self.lives[pod.instance], ended_ns=0)
            made.remove(pod)
        self.stillborn += len(stillborn)
        self.remove(stillborn)
        for pod in made:
            self._stage.save(pod.slot, pod.plan.save_seconds)
            self.take(pod, pod.plan.kind, pod.plan.size_bytes)
        self._stage.wait_done([pod.instance for pod in made])
        return made

    def take(self, pod: Present, kind: str, size_bytes: int, rate_bytes: int = 0) -> None:
        """Have a pod take more memory."""
        path = None
        if kind in _IN_FILES:
            path = self._places[kind] / f"{pod.instance}-{len(pod.files)}"
            pod.files.append(path)
            if kind == "t":
                pod.tmpfs_files.append(path)
        life = self.lives[pod.instance]
        self.lives[pod.instance] = replace(life, holds=life.holds + kind)
        self._stage.act(pod.slot, kind, max(4096, size_bytes), rate_bytes, path)

    def end(self, pod: Present) -> None:
        """End a pod ourselves; its cgroup stays until `remove`."""
        life = self.lives[pod.instance]
        if life.ended_ns is None:
            self.lives[pod.instance] = replace(life, ended_ns=time.monotonic_ns())
        self._stage.kill(pod.slot)

    def remove(self, pods: list[Present], *, was_away: bool = False) -> tuple[str, ...]:
        """Remove what is left of pods that ended; return in which of them the kernel's OOM killer killed.

        `was_away`: the daemon was stopped or gone meanwhile. Raises StageError where it doesn't succeed.
        """
        instances = [pod.instance for pod in pods]
        gone_seconds = _GONE_SECONDS * self._stage.slowness
        if not self._stage.wait(lambda: all(map(self._stage.is_dead, instances)), gone_seconds):
            raise StageError(f"still alive: {[pod.plan.name for pod in pods]}")
        oom_killed = []
        for pod in pods:
            self._stage.free(pod.slot)
            pod.forget_files()
            if kills := self._oom_kills(pod.directories[0]):
                oom_killed.append(pod.plan.name)
                self.oom_kills += 0 if was_away else kills
                self.oom_kills_away += kills if was_away else 0
            for directory in pod.directories:
                self._remove(directory)
            del self.present[pod.plan.name]
            life = self.lives[pod.instance]
            if life.ended_ns is None:
                self.lives[pod.instance] = replace(life, ended_ns=time.monotonic_ns())
        return tuple(oom_killed)

    def oom_killed(self) -> frozenset[int]:
        """Return the instances, of those that are there, in which the kernel's OOM killer has killed."""
        return frozenset(pod.instance for pod in self.present.values() if self._oom_kills(pod.directories[0]))

    def forget_lives(self) -> None:
        """Forget the instances that are gone: they are judged."""
        kept = {pod.instance for pod in self.present.values()}
        self.lives = {instance: life for instance, life in self.lives.items() if instance in kept}
        self.inodes = {inode: instance for inode, instance in self.inodes.items() if instance in kept}
        self._stage.deaths = [death for death in self._stage.deaths if death.instance in kept]
        self._stage.up &= kept
        self._stage.stillborn &= kept
        self._stage.saved &= kept
        self._stage.struck = {one: at_ns for one, at_ns in self._stage.struck.items() if one in kept}

    def _make(self, plan: PodPlan) -> Present:
        slot = next(iter(set(range(SLOTS)) - {pod.slot for pod in self.present.values()}))
        instance = next(self._instances)
        born_ns = time.monotonic_ns()
        cgroup = self._node.add_pod(
            plan.name if plan.is_outside else f"{PODS}/{plan.name}",
            request_bytes=0 if plan.is_manifested else plan.spec.request_bytes,
            priority=None if plan.is_manifested or not plan.spec.priority else plan.spec.priority,
        )
        tree = self._node.tree
        roots = (tree.memory_root, tree.pids_root, tree.freezer_root, tree.cpu_root)
        directories = tuple(dict.fromkeys(root / cgroup[1:] for root in roots if root is not None))
        pod = Present(
            plan=plan,
            slot=slot,
            instance=instance,
            cgroup=cgroup,
            directories=directories,
            inode=directories[0].stat().st_ino,
        )
        self.present[plan.name] = pod
        self.inodes[pod.inode] = instance
        self.lives[instance] = Life(instance=instance, name=plan.name, spec=plan.spec, born_ns=born_ns)
        self._stage.start(slot, instance, directories[0], self._entrances(directories))
        return pod

    def _entrances(self, directories: Sequence[Path]) -> list[Path]:
        """Return the files by which a process enters; the actor alone enters the last."""
        found = [directory / "cgroup.procs" for directory in directories]
        return found if len(found) > 1 else found * 2

    def _oom_kills(self, directory: Path) -> int:
        """Return how often the kernel's OOM killer killed in a pod; no pod has a limit but the node's."""
        is_v2 = self._node.tree.version is CgroupVersion.V2
        text = (directory / ("memory.events" if is_v2 else "memory.oom_control")).read_text()
        found = re.search(r"^oom_kill (\d+)$", text, re.MULTILINE)
        return int(found[1]) if found else 0

    def _remove(self, directory: Path) -> None:
        deadline = time.monotonic() + _GONE_SECONDS * self._stage.slowness
        while True:
            try:
                with suppress(FileNotFoundError):
                    os.rmdir(directory)
            except OSError as error:
                if error.errno != errno.EBUSY or time.monotonic() > deadline:
                    raise StageError(f"{directory}: {error}") from error
                time.sleep(0.0005)
            else:
                return


def write_manifests(directory: Path, node_cgroup: str) -> None:
    """Write a v1.Pod for each pod that has its priority and its request from a manifest."""
    for name, document in _manifests(node_cgroup):
        (directory / f"{name}.json").write_text(json.dumps(document))


def _manifests(node_cgroup: str) -> Iterator[tuple[str, object]]:
    for name, spec in MANIFESTED.items():
        yield (
            name,
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {
                    "name": name,
                    "namespace": "soak",
                    "uid": f"uid-{name}",
                    "annotations": {"reactor/cgroup": f"{node_cgroup}/{PODS}/{name}"},
                },
                "spec": {
                    "priority": spec.priority,
                    "containers": [
                        {"name": "all", "resources": {"requests": {"memory": str(spec.request_bytes)}}}
                    ],
                },
            },
        )
