"""Random statistics of a node and its pods, mostly at the edge of something."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from tests.upstream.differential.configuration import EXACT, hard_thresholds, needs_all_pods
from tests.upstream.differential.draw import Draw
from tests.upstream.differential.words import (
    ALL_SIGNALS,
    ALLOCATABLE,
    GIB,
    IMAGE_BYTES,
    IMAGE_INODES,
    MEMORY,
    MIB,
    NODE_BYTES,
    NODE_INODES,
    PIDS,
    Json,
    amount,
    exactly,
)


class Statistics:
    """Makes summaries of one node. What is short stays so for some steps, so that grace periods pass."""

    def __init__(self, draw: Draw, config: Json, *, dedicated: bool, limited: bool) -> None:
        """Choose capacities, and the signals that are short at times."""
        self.draw = draw
        self.config = config
        self.dedicated = dedicated
        self.limited = limited
        self.short = frozenset(draw.random.sample(ALL_SIGNALS, draw.pick(1, 1, 2, 3, 7)))
        self.capacity = self._capacities()
        self._lasting: dict[str, int] = {}

    def press(self, signal: str) -> None:
        """Have this signal short alone, and for long."""
        self.short = frozenset({signal})
        self._lasting = {signal: self.capacity[signal] // 1000}

    def summary(
        self, pods: Sequence[Json], time: str | None, *, calm: bool = False, after: bool = False
    ) -> Json:
        """Return a summary; `after` a reclaim nothing that it shows lasts."""
        levels = self._levels(calm=calm, after=after)
        stats = [
            self._pod(pod)
            for pod in pods
            if needs_all_pods(self.draw, self.config)
            or not self.draw.chance(0.35 if "pid-statistics" in self.draw.areas else 0.1)
        ]
        self.draw.random.shuffle(stats)
        return {"node": self._node(levels, time), "pods": stats}

    def _capacities(self) -> dict[str, int]:
        draw = self.draw
        zero = draw.seeks("absurd-statistics", 0.2)

        def odd(*by: int) -> int:
            return draw.pick(*by) if draw.seeks("percent") else 0

        return {
            MEMORY: draw.pick(4, 8, 16) * GIB + odd(0, 12345),
            ALLOCATABLE: draw.pick(3, 6) * GIB,
            NODE_BYTES: draw.pick(10**11, 100 * GIB, 2**40) + odd(0, 1, 77),
            IMAGE_BYTES: draw.pick(10**11, 50 * GIB) + odd(0, 1, 77),
            NODE_INODES: 0 if zero else draw.pick(16000, 1600000, 6553600) + odd(0, 1, 13),
            IMAGE_INODES: 0 if zero else draw.pick(16000, 3200000) + odd(0, 1, 13),
            PIDS: draw.pick(32768, 32000, 4194304) + odd(0, 1, 13),
        }

    def _levels(self, *, calm: bool, after: bool) -> dict[str, int]:
        """Return what is available of each signal that is observed."""
        draw, levels = self.draw, {}
        for signal in ALL_SIGNALS:
            if draw.chance(0.06):
                continue
            plenty = self.capacity[signal] - self.capacity[signal] // 128
            if calm or (signal not in self.short and draw.chance(0.8)):
                levels[signal] = plenty
            elif signal in self._lasting and draw.chance(0.6):
                levels[signal] = self._lasting[signal]
            else:
                levels[signal] = self._available(signal)
                if not after:
                    self._lasting[signal] = levels[signal]
        return self._without_differences(levels)

    def _without_differences(self, levels: dict[str, int]) -> dict[str, int]:
        """Return the levels without what the two are known to see differently, if that is not sought."""
        config, areas = self.config, self.draw.areas
        is_default = "evictionHard" not in config or config.get("mergeDefaultEvictionSettings")
        if is_default and IMAGE_INODES in levels and "default-inodes" not in areas:
            levels[IMAGE_INODES] = self.capacity[IMAGE_INODES] - min(1, self.capacity[IMAGE_INODES])
        if IMAGE_BYTES not in levels and "imagefs-inodes" not in areas:
            levels.pop(IMAGE_INODES, None)
        if self.draw.seeks("imagefs-inodes", 0.4):
            levels.pop(IMAGE_BYTES, None)
        return levels

    def _available(self, signal: str) -> int:
        """Return a number at the edge of one of the signal's thresholds, or far off."""
        draw, capacity = self.draw, self.capacity[signal]
        if draw.seeks("absurd-statistics", 0.3):
            # Memory has no capacity of its own to be above: it is what is available and what is used.
            most: tuple[int, ...] = () if signal in {MEMORY, ALLOCATABLE} else (1 << 63,)
            absurd: tuple[int, ...] = (capacity + 1, 2 * capacity, 0, *most)
            return draw.pick(*absurd)
        points = [capacity - capacity // 10 - 1, capacity - capacity // 128, capacity // 1000]
        for text, minimum in self._edges(signal):
            points += self._points(text, minimum, capacity)
        chosen: int = draw.pick(*points)
        return min(max(chosen, 0), capacity)

    def _edges(self, signal: str) -> list[tuple[str, str | None]]:
        """Return the values of the signal's thresholds, each with the minimum reclaim that is to be added."""
        config, of = self.config, MEMORY if signal == ALLOCATABLE else signal
        minimum = config.get("evictionMinimumReclaim", {}).get(of)
        hard, soft = hard_thresholds(config), config.get("evictionSoft", {})
        texts = [hard.get(of), soft.get(of)]
        if signal == ALLOCATABLE:
            texts += [hard.get(ALLOCATABLE), soft.get(ALLOCATABLE)]
        found: list[tuple[str, str | None]] = []
        for text in texts:
            if text is not None and text not in {"0%", "100%"}:
                if minimum is None or self.draw.chance(0.7):
                    found.append((text, None))
                if minimum is not None:
                    found.append((text, minimum))
        return found

    def _points(self, text: str, minimum: str | None, capacity: int) -> list[int]:
        total = exactly(text, capacity) + (exactly(minimum, capacity) if minimum else 0)
        margin = int(capacity * Fraction(3, 10**6)) + 2  # beyond what single precision loses
        points = [int(total) - margin, int(total) + margin]
        is_exact = all(not each.endswith("%") or each in EXACT for each in (text, minimum or ""))
        if is_exact and total.denominator == 1:
            points += [int(total) + by for by in (-1, 0, 1)]
        elif self.draw.areas & {"percent", "fraction"}:
            points += [int(total) + by for by in (-2, -1, 0, 1, 2)]
            points += [int(total * (1 + Fraction(by, 10**8))) for by in (-1, 1)]
        return points

    def _node(self, levels: dict[str, int], time: str | None) -> Json:
        node: Json = {}
        at = {} if time is None else {"time": time}
        if MEMORY in levels:
            node["memory"] = self._memory(MEMORY, levels) | at
        if ALLOCATABLE in levels:
            pods = {"name": "pods", "memory": self._memory(ALLOCATABLE, levels) | at}
            node["systemContainers"] = [{"name": "kubelet"}, pods]
        filesystem = self._filesystem(NODE_BYTES, NODE_INODES, levels)
        if filesystem:
            node["fs"] = filesystem | at
        filesystem = self._filesystem(IMAGE_BYTES, IMAGE_INODES, levels)
        if filesystem:
            node["runtime"] = {"imageFs": filesystem | at}
        if PIDS in levels:
            node["rlimit"] = self._processes(levels) | at
        return node

    def _memory(self, signal: str, levels: dict[str, int]) -> Json:
        working_set = max(0, self.capacity[signal] - levels[signal])
        made = {"availableBytes": levels[signal], "workingSetBytes": working_set}
        if self.draw.chance(0.7):
            made["usageBytes"] = working_set + self.draw.pick(0, 1, 12345678, 300 * MIB)
        return made

    def _filesystem(self, space: str, inodes: str, levels: dict[str, int]) -> Json:
        made: Json = {}
        if space in levels:
            made |= {"availableBytes": levels[space], "capacityBytes": self.capacity[space]}
        if inodes in levels:
            made |= {"inodesFree": levels[inodes], "inodes": self.capacity[inodes]}
        return made

    def _processes(self, levels: dict[str, int]) -> Json:
        capacity = self.capacity[PIDS]
        taken = max(0, capacity - levels[PIDS])
        if self.draw.seeks("absurd-statistics", 0.3):
            taken = capacity + self.draw.pick(1, 1000)
        return {"maxpid": capacity, "curproc": taken}

    def _around(self, *points: int) -> int:
        """Return a number at, beside or away from one of these."""
        by = self.draw.pick(0, 0, 1, -1, 1000, MIB, -MIB, 5 * MIB, 300 * MIB)
        return max(0, self.draw.pick(*points) + by)

    def _pod(self, pod: Json) -> Json:
        draw, spec = self.draw, pod["spec"]
        memory = sum(_request(container, "memory") for container in spec["containers"])
        containers = self._containers(spec)
        volumes = [self._volume(volume) for volume in spec.get("volumes", ()) if draw.chance(0.85)]
        stats: Json = {
            "podRef": {key: pod["metadata"][key] for key in ("name", "namespace", "uid")},
            "memory": {"workingSetBytes": self._around(memory, memory, 0, 64 * MIB, 128 * MIB)},
            "process_stats": {"process_count": draw.pick(0, 1, 5, 5, 5, 100, 1000)},
            "containers": containers,
            "ephemeral-storage": {"usedBytes": self.local_bytes(spec, containers, volumes)},
        }
        if volumes:
            stats["volume"] = volumes
        if draw.seeks("storage-told"):
            used = stats["ephemeral-storage"]["usedBytes"]
            stats["ephemeral-storage"] = {"usedBytes": self._around(used, 64 * MIB, 128 * MIB)}
            if draw.chance(0.2):
                del stats["ephemeral-storage"]
        for part in ("memory", "process_stats", "containers"):
            if draw.seeks("partial-statistics", 0.3):
                del stats[part]
        return stats

    def _containers(self, spec: Json) -> list[Json]:
        draw = self.draw
        storage = sum(_request(container, "ephemeral-storage") for container in spec["containers"])
        made: list[Json] = []
        for container in spec["containers"]:
            if made and draw.chance(0.1):
                continue
            one: Json = {"name": container["name"]}
            if draw.chance(0.8):
                one["memory"] = {"workingSetBytes": self._around(_request(container, "memory"), 64 * MIB)}
            limit = int(amount(container["resources"].get("limits", {}).get("ephemeral-storage", "0")))
            for part in ("rootfs", "logs"):
                if not made or draw.chance(0.85):
                    points = (0, storage // 2, limit, limit // 2)
                    one[part] = {
                        "usedBytes": self._around(*points) if draw.chance(0.6) else draw.pick(0, MIB),
                        "inodesUsed": 0 if draw.seeks("inode-zero", 0.6) else draw.pick(1, 5, 5, 500),
                    }
            made.append(one)
        if draw.chance(0.05):
            made.append({"name": "stranger", "rootfs": {"usedBytes": MIB, "inodesUsed": 3}})
        return made

    def _volume(self, volume: Json) -> Json:
        draw = self.draw
        size = volume.get("emptyDir", {}).get("sizeLimit")
        at_its_limit = size and draw.chance(0.7 if self.limited else 0.4)
        used = self._around(int(amount(size))) if at_its_limit else draw.pick(0, 0, MIB, 5 * MIB)
        return {"name": volume["name"], "inodesUsed": draw.pick(0, 2, 7), "usedBytes": used}

    def local_bytes(self, spec: Json, containers: Sequence[Json], volumes: Sequence[Json]) -> int:
        """Return the sum of what a pod's ephemeral storage consists of, as upstream of 1.20 adds it up."""
        return local_bytes(spec, containers, volumes, dedicated=self.dedicated)


def local_bytes(spec: Json, containers: Sequence[Json], volumes: Sequence[Json], *, dedicated: bool) -> int:
    """Return the sum of what a pod's ephemeral storage consists of, as upstream of 1.20 adds it up.

    Source: podLocalEphemeralStorageUsage, IsLocalEphemeralVolume.
    """
    parts = ("logs",) if dedicated else ("logs", "rootfs")
    used: int = sum(container.get(part, {}).get("usedBytes", 0) for container in containers for part in parts)
    local = {volume["name"] for volume in spec.get("volumes", ()) if _is_local_ephemeral(volume)}
    of_volumes: int = sum(volume["usedBytes"] for volume in volumes if volume["name"] in local)
    return used + of_volumes


def _is_local_ephemeral(volume: Json) -> bool:
    if "gitRepo" in volume or "configMap" in volume or len(volume) == 1:  # no source means emptyDir
        return True
    return "emptyDir" in volume and volume["emptyDir"].get("medium", "") == ""


def _request(container: Json, resource: str) -> int:
    return int(amount(container["resources"].get("requests", {}).get(resource, "0")))
