"""Pods by themselves: QoS class, requests, limit, score for the kernel's OOM killer, who is critical."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from reactor.config.pod import pod_from_document
from reactor.model.signals import Resource
from reactor.policy.admission import oom_score_adj
from tests.upstream.differential.compare import Difference
from tests.upstream.differential.draw import Draw
from tests.upstream.differential.oracle import EVICTION, ask
from tests.upstream.differential.pods import Pods
from tests.upstream.differential.words import GIB, Json

# Upstream's scores of 1.20 to those of newer versions: Guaranteed, and the least of a Burstable container's.
_NEWER_SCORES: Final = {-998: -997, 2: 3}


def pod_differences(oracle: Path, seeds: Sequence[int]) -> list[tuple[Json, list[Difference]]]:
    """Return each seed's pod and how what the project makes of it differs from what upstream does."""
    asked: list[Json] = []
    for seed in seeds:
        draw = Draw(seed, frozenset())
        pod = Pods(draw, with_storage=True).pod()
        capacity_bytes = draw.pick(GIB // 2, GIB, 16 * GIB, 1234567890)
        asked.append({"op": "pod", "id": str(seed), "pod": pod, "capacityBytes": capacity_bytes})
    answers = ask(oracle, EVICTION, asked)
    return [
        (line["pod"], _differences(line["pod"], line["capacityBytes"], answer["pod"]))
        for line, answer in zip(asked, answers, strict=True)
    ]


def _differences(document: Json, capacity_bytes: int, theirs: Json) -> list[Difference]:
    theirs = {
        **theirs,
        "oomScoreAdjust": [_NEWER_SCORES.get(score, score) for score in theirs["oomScoreAdjust"]],
    }
    mine = _described(document, capacity_bytes)
    return [
        Difference(step=0, kind=f"pod:{key}", text=f"{mine[key]} here, {theirs[key]} upstream")
        for key in theirs
        if mine[key] != theirs[key]
    ]


def _described(document: Json, capacity_bytes: int) -> Json:
    """Return what the project makes of a pod, in the oracle's words."""
    pod = pod_from_document(document)
    regular = pod.containers[: len(document["spec"]["containers"])]
    limit = pod.ephemeral_storage_limit
    return {
        "qos": str(pod.qos_class),
        "critical": pod.critical_because is not None,
        "memory": pod.requests.get(Resource.MEMORY, 0),
        "storage": pod.requests.get(Resource.EPHEMERAL_STORAGE, 0),
        "storageLimit": None if limit is None else limit.value,
        "oomScoreAdjust": [
            oom_score_adj(
                pod.qos_class,
                asked.value if (asked := container.requests.get(Resource.MEMORY)) is not None else 0,
                capacity_bytes,
                # 1.20 spares every critical pod, newer versions node-critical ones alone.
                node_critical=pod.critical_because is not None,
            )
            for container in regular
        ],
        "grace": pod.termination_grace_period_seconds,
        "priority": pod.priority,
    }
