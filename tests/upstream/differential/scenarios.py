"""Random scenarios in the project's own format: one document for each seed."""

from __future__ import annotations

from collections.abc import Set as AbstractSet

from tests.upstream.differential.configuration import configuration, needs_all_pods, press_one, watched
from tests.upstream.differential.draw import AREAS, Draw
from tests.upstream.differential.pods import Pods
from tests.upstream.differential.statistics import Statistics
from tests.upstream.differential.words import INODES, Json, stamp

_PAUSES_SECONDS = (0, 0.5, 1, 5, 10, 10, 11, 20, 29.5, 30, 31, 45.5, 60, 90, 120, 299, 300, 301)


def areas_of(seed: int) -> frozenset[str]:
    """Return the areas that a seed's scenario goes into: none for half of them, one, or several at once."""
    names = list(AREAS)
    if seed % 2 == 0:
        return frozenset()
    if seed % 4 == 1:
        return frozenset({names[seed // 4 % len(names)]})
    draw = Draw(seed, frozenset())
    return frozenset(name for name in names if draw.chance(0.2))


def scenario(seed: int, areas: AbstractSet[str] | None = None) -> Json:
    """Return a seed's scenario, in its own areas or in these."""
    return _Maker(Draw(seed, areas_of(seed) if areas is None else areas), f"seed {seed}").scenario()


class _Maker:
    def __init__(self, draw: Draw, name: str) -> None:
        config, dedicated = configuration(draw), draw.chance(0.5)
        dense = draw.chance(0.15)  # one signal is short all the time, and many pods are ranked
        pressed = press_one(draw, config) if dense else None
        limited = not dense and draw.chance(0.2)
        self.draw, self.name, self.config, self.dedicated, self.dense = draw, name, config, dedicated, dense
        self.pods = Pods(draw, with_storage=_with_storage(draw, config), limited=limited)
        self.statistics = Statistics(draw, config, dedicated=dedicated, limited=limited)
        if pressed is not None:
            self.statistics.press(pressed)
        self.clock_seconds = 0
        self.timed = draw.pick("no", "no", "advancing", "standing")

    def scenario(self) -> Json:
        draw, many = self.draw, (12, 16, 25) if self.dense else (0, 1, 2, 3, 4, 5, 8)
        pods = [self.pods.pod() for _ in range(draw.pick(*many))]
        made: Json = {
            "apiVersion": "reactor/v1alpha1",
            "kind": "Scenario",
            "name": self.name,
            "kubeletConfiguration": self.config,
            "filesystems": {"dedicatedImageFs": self.dedicated, "splitImageFs": False},
            "pods": pods,
            "images": [],
            "steps": [],
        }
        at_seconds = 0.0
        for index in range(draw.pick(1, 2) if self.dense else draw.pick(1, 2, 3, 4, 5, 6, 8, 10)):
            if index:
                at_seconds += draw.pick(*_PAUSES_SECONDS)
            step: Json = {"at": self._duration(at_seconds)}
            if index and draw.chance(0.3):
                pods = [pod for pod in pods if draw.chance(0.7)]
                draw.random.shuffle(pods)
                pods += [self.pods.pod() for _ in range(draw.pick(0, 0, 1))]
                step["pods"] = pods
            made["steps"].append(step | self._step(index, pods, pods_are_new="pods" in step))
        return made

    def _step(self, index: int, pods: list[Json], *, pods_are_new: bool) -> Json:
        draw, time = self.draw, self._time()
        made: Json = {}
        needed = pods_are_new and needs_all_pods(draw, self.config)
        if needed or not (draw.chance(0.12) and (index or draw.chance(0.3))):
            made["summary"] = self.statistics.summary(pods, time)
            after = {
                kind: self.statistics.summary(pods, time, calm=draw.chance(0.5), after=True)
                for kind in ("containers", "images")
                if draw.chance(0.6)
            }
            if after and draw.chance(0.4):
                made["afterReclaim"] = after
        if draw.chance(0.05):
            made["statsError"] = True
        if draw.chance(0.08):
            made["reclaimError"] = draw.pick(["images"], ["containers"], ["images", "containers"])
        if draw.chance(0.3):
            made["admit"] = [self.pods.pod() for _ in range(draw.pick(1, 2, 3))]
        return made

    def _time(self) -> str | None:
        """Return when the next statistics were taken, None where they don't tell."""
        draw = self.draw
        if self.timed == "advancing":
            self.clock_seconds += draw.pick(1, 10)
        elif self.timed == "standing":
            self.clock_seconds += draw.pick(0, 0, 0, 1, -1, 10)
        return None if self.timed == "no" or draw.chance(0.1) else stamp(self.clock_seconds)

    def _duration(self, seconds: float) -> str:
        if seconds != int(seconds):
            return f"{seconds}s"
        if seconds >= 60 and self.draw.chance(0.5):
            return f"{int(seconds) // 60}m{int(seconds) % 60}s"
        return f"{int(seconds)}s"


def _with_storage(draw: Draw, config: Json) -> bool:
    """Return whether pods may request ephemeral storage; beside inodes that is an area of its own."""
    if watched(config) & INODES and "inode-request" not in draw.areas:
        return False
    return config.get("localStorageCapacityIsolation", True) or "isolation-off" in draw.areas
