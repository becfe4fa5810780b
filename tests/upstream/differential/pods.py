"""Random pods."""

from __future__ import annotations

from typing import Final

from tests.upstream.differential.draw import Draw
from tests.upstream.differential.words import Json

_CLASSES: Final = ("besteffort", "burstable", "burstable", "guaranteed", "mixed")
_ANNOTATIONS: Final = (
    {"kubernetes.io/config.source": "file"},
    {"kubernetes.io/config.source": "http"},
    {"kubernetes.io/config.source": "api"},
    {"kubernetes.io/config.mirror": "abc"},
    {"other": "x"},
)
_PRIORITIES: Final = (-10, 0, 0, 0, 5, 5, 100, 1999999999, 2000000000, 2000001000)
_VOLUMES: Final[tuple[Json, ...]] = (
    {"emptyDir": {}},
    {"emptyDir": {}},
    {"emptyDir": {"medium": "Memory"}},
    {"hostPath": {"path": "/x"}},
    {"configMap": {"name": "m"}},
    {"gitRepo": {"repository": "r"}},
    {"secret": {"secretName": "s"}},
    {"persistentVolumeClaim": {"claimName": "p"}},
    {},
)


class Pods:
    """Makes pods with names of their own.

    `with_storage`: they may request and limit ephemeral storage. `limited`: many do, so that several limits
    break at once.
    """

    def __init__(self, draw: Draw, *, with_storage: bool, limited: bool = False) -> None:
        """Start at the first name."""
        self.draw = draw
        self.with_storage = with_storage
        self.limited = limited
        self._made = 0

    def pod(self) -> Json:
        """Return a random pod."""
        draw = self.draw
        self._made += 1
        kind = draw.pick(*_CLASSES)
        metadata = {
            "name": f"p{self._made}",
            "namespace": draw.pick("default", "shop"),
            "uid": f"u{self._made}",
        }
        spec: Json = {"containers": [self._container(f"c{i}", kind) for i in range(draw.pick(1, 1, 1, 2, 3))]}
        if draw.chance(0.8):
            spec["priority"] = draw.pick(*_PRIORITIES)
        if draw.chance(0.7):
            spec["terminationGracePeriodSeconds"] = draw.pick(0, 1, 4, 5, 6, 30, 60, 700)
        if draw.chance(0.3):
            spec["initContainers"] = self._init_containers()
        if draw.seeks("pod-level", 0.6):
            # More than what the containers may ask for: upstream refuses less.
            spec["resources"] = {
                "requests": {n: v for n, v in (("cpu", "16"), ("memory", "8Gi")) if draw.chance(0.7)}
            }
        self._limit_storage(spec)
        if draw.chance(0.15):
            spec["overhead"] = self._overhead()
        volumes = [self._volume(f"v{i}") for i in range(draw.pick(0, 0, 1, 2, 3))]
        if volumes:
            spec["volumes"] = volumes
        if draw.chance(0.25):
            spec["tolerations"] = [self._toleration() for _ in range(draw.pick(1, 2))]
        made: Json = {"metadata": metadata, "spec": spec}
        if draw.chance(0.15):
            made["metadata"] = {**metadata, "annotations": dict(draw.pick(*_ANNOTATIONS))}
        return made

    def _container(self, name: str, kind: str) -> Json:
        own = self.draw.pick("besteffort", "burstable", "guaranteed") if kind == "mixed" else kind
        return {"name": name, "image": "x", "resources": self._resources(own)}

    def _init_containers(self) -> list[Json]:
        made = [self._container(f"i{i}", "mixed") for i in range(self.draw.pick(1, 2))]
        for container in made:
            if self.draw.seeks("sidecar", 0.6):
                container["restartPolicy"] = "Always"
        return made

    def _quantity(self, resource: str) -> str:
        if resource == "cpu":
            return self.draw.pick("100m", "0.1", "1", "250m", "0")
        if self.draw.seeks("fraction", 0.4):
            return self.draw.pick("1048576500m", "500m", "1m")
        return self.draw.pick("64Mi", "128Mi", "100M", "1Gi", "0.5Gi", "0", "65536Ki", "134217728", "1")

    def _resources(self, kind: str) -> Json:
        draw = self.draw
        if kind == "besteffort":
            return {}
        names = [name for name in ("cpu", "memory") if draw.chance(0.8)]
        if kind == "guaranteed":
            limits = {name: self._quantity(name) for name in ("cpu", "memory")}
            return {"limits": limits} if draw.chance(0.5) else {"limits": limits, "requests": dict(limits)}
        made: Json = {"requests": {name: self._quantity(name) for name in names}}
        if draw.chance(0.4):
            made["limits"] = {name: self._quantity(name) for name in names if draw.chance(0.6)}
        return made

    def _limit_storage(self, spec: Json) -> None:
        draw = self.draw
        if not self.with_storage:
            return
        for container in (*spec["containers"], *spec.get("initContainers", ())):
            for part in ("requests", "limits"):
                if draw.chance(0.6 if self.limited else 0.2):
                    of = container["resources"].setdefault(part, {})
                    of["ephemeral-storage"] = self._quantity("ephemeral-storage")
        if draw.chance(0.15) and len(spec["containers"]) > 1:
            # One container's limit breaks before the pod's.
            for container, limit in zip(spec["containers"], ("64Mi", "10Gi"), strict=False):
                container["resources"].setdefault("limits", {})["ephemeral-storage"] = limit

    def _overhead(self) -> Json:
        draw = self.draw
        names = ("memory", "ephemeral-storage") if self.with_storage else ("memory",)
        return {"cpu": "10m", **{name: draw.pick("16Mi", "1M", "0") for name in names if draw.chance(0.7)}}

    def _volume(self, name: str) -> Json:
        draw = self.draw
        source: Json = dict(draw.pick(*_VOLUMES))
        if draw.seeks("hugepages", 0.5):
            source = {"emptyDir": {"medium": "HugePages"}}
        if "emptyDir" in source and draw.chance(0.7 if self.limited else 0.3):
            source["emptyDir"] = {**source["emptyDir"], "sizeLimit": draw.pick("64Mi", "100M", "0", "1Gi")}
        return {"name": name, **source}

    def _toleration(self) -> Json:
        draw = self.draw
        made: Json = {}
        if draw.chance(0.8):
            pressure = "node.kubernetes.io/memory-pressure"
            made["key"] = draw.pick(pressure, pressure, "node.kubernetes.io/disk-pressure", "other")
        if draw.chance(0.6):
            made["operator"] = draw.pick("Exists", "Equal", "In")
        if draw.chance(0.3):
            made["value"] = draw.pick("", "x")
        if draw.chance(0.6):
            made["effect"] = draw.pick("NoSchedule", "NoExecute", "PreferNoSchedule", "")
        return made
