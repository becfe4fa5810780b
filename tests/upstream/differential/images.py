"""Random scenarios of image garbage collection alone: bands, ages, order."""

from __future__ import annotations

from tests.upstream.differential.draw import Draw
from tests.upstream.differential.words import MIB, Json

_NODEFS_BYTES = 10**11


def images_scenario(seed: int) -> Json:
    """Return a seed's scenario."""
    draw = Draw(seed, frozenset())
    low = draw.pick(0, 50, 79, 80)
    # In a band of one percent what is to be freed may round to nothing, on an odd capacity.
    is_narrow = low > 0 and draw.chance(0.25)
    high = (
        low + 1 if is_narrow else draw.pick(*(each for each in (51, 80, 81, 85, 90, 99, 100) if each > low))
    )
    minimum = draw.pick(0, 60, 120, 300)
    config: Json = {
        "evictionHard": {},
        "imageGCHighThresholdPercent": high,
        "imageGCLowThresholdPercent": low,
        "imageMinimumGCAge": f"{minimum}s",
    }
    if not is_narrow and draw.chance(0.2):
        del config["imageGCHighThresholdPercent"], config["imageGCLowThresholdPercent"]
        low, high = 80, 85
    reclaims = draw.chance(0.5)  # eviction asks for the unused images at times
    if reclaims:
        config["evictionHard"] = {"nodefs.available": "1Gi"}
    odd = (1001, 12345678901)
    capacity = draw.pick(*odd) if is_narrow else draw.pick(10**11, 100 * 2**30, 1000, *odd)
    return {
        "apiVersion": "reactor/v1alpha1",
        "kind": "Scenario",
        "name": f"images of seed {seed}",
        "kubeletConfiguration": config,
        "filesystems": {"dedicatedImageFs": False, "splitImageFs": False},
        "pods": [],
        "images": _images(draw, minimum or 120, capacity),
        "steps": _steps(draw, capacity, low, high, reclaims=reclaims),
    }


def _steps(draw: Draw, capacity: int, low: int, high: int, *, reclaims: bool) -> list[Json]:
    made, at_seconds = [], 0
    for index in range(draw.pick(1, 2, 3, 4)):
        at_seconds += draw.pick(0, 1, 30, 60, 120, 121, 300) if index else 0
        filesystem: Json = {
            "availableBytes": capacity - _used(draw, capacity, low, high),
            "capacityBytes": capacity,
        }
        if draw.chance(0.05):
            absurd: Json = {"availableBytes": capacity + 1, "capacityBytes": capacity}
            filesystem = draw.pick({}, absurd, {"availableBytes": 0, "capacityBytes": 0})
        node: Json = {"runtime": {"imageFs": filesystem}}
        if reclaims:
            node["fs"] = {
                "availableBytes": draw.pick(5 * MIB, 5 * 1024 * MIB),
                "capacityBytes": _NODEFS_BYTES,
            }
        step: Json = {"at": f"{at_seconds}s", "summary": {"node": node, "pods": []}}
        if draw.chance(0.05):
            step["statsError"] = True
        made.append(step)
    return made


def _used(draw: Draw, capacity: int, low: int, high: int) -> int:
    """Return how much is used: at the edge of a percentage, or away from it."""
    edge = capacity * high // 100
    at_low = capacity - capacity * (100 - low) // 100  # nothing is to be freed
    used: int = draw.pick(
        *(() if high > low + 1 else (at_low,) * 5),
        edge - 1,
        edge,
        edge + 1,
        capacity * (high - 1) // 100 + draw.pick(-1, 0, 1, 2),
        int(capacity * (high - draw.random.random()) / 100),
        capacity * max(0, low - 3) // 100,
        edge + capacity // 100 + 1,
        capacity,
    )
    return max(0, min(capacity, used))


def _images(draw: Draw, minimum: int, capacity: int) -> list[Json]:
    """Return images; with ties their sizes are one, since upstream's order among them is that of a Go map."""
    ties, seen, made = draw.chance(0.2), set(), []
    for index in range(draw.pick(0, 1, 3, 5, 8)):
        detected = draw.pick(
            None, *(-each for each in (minimum - 1, minimum, minimum + 1, 1000, 5000, 5000, 9000))
        )
        last_used = draw.pick(None, *(-each for each in (1, 5, 500, 600, 600, 700, 8000)), 0, 30, 200)
        if not ties and (detected, last_used) in seen:
            continue
        seen.add((detected, last_used))
        size = (
            capacity // 20
            if ties
            else draw.pick(capacity // 20, capacity // 10, capacity // 100 + 1, capacity // 3)
        )
        image: Json = {"id": f"sha256:{index}", "sizeBytes": size, "inUse": draw.chance(0.2), "pinned": False}
        if detected is not None:
            image["firstDetected"] = f"{detected}s"
        if last_used is not None:
            image["lastUsed"] = f"{last_used}s"
        made.append(image)
    return made
