"""Seeded choices, and the areas that a scenario may go into."""

from __future__ import annotations

import random
from collections.abc import Set as AbstractSet
from typing import Final, TypeVar

_T = TypeVar("_T")

# An area is where a difference is known, or was once: most scenarios stay out of it, so that what differs in
# them is news in any case, and those that seek it may only differ by what known.py lists.
AREAS: Final = {
    "absurd-statistics": "numbers of the node that can't be true",
    "absurd-thresholds": "thresholds at or above the capacity",
    "default-inodes": "few inodes left on the image filesystem, and no evictionHard",
    "fraction": "requests and thresholds of less than a byte",
    "hugepages": "emptyDir volumes in huge pages",
    "imagefs-inodes": "inodes of the image filesystem without its bytes",
    "inode-request": "requests of ephemeral storage while inodes are short",
    "inode-zero": "pods without an inode of their own",
    "isolation-off": "requests of ephemeral storage with localStorageCapacityIsolation off",
    "merge": "mergeDefaultEvictionSettings",
    "negative-grace": "evictionMaxPodGracePeriod below zero",
    "own-allocatable": "thresholds for allocatableMemory.available of the user's own",
    "partial-statistics": "statistics of a pod that lack a part",
    "percent": "shares of a capacity at their very edge",
    "pid-statistics": "pods without statistics while process ids are short",
    "pod-level": "requests of a pod as a whole",
    "same-value": "soft thresholds without a grace period, or with the hard one's value",
    "sidecar": "init containers that stay",
    "storage-told": "a pod's ephemeral storage that is not the sum of its parts",
}


class Draw:
    """Choices from one seed."""

    def __init__(self, seed: int, areas: AbstractSet[str]) -> None:
        """Take the choices of this seed in these areas."""
        self.random = random.Random(f"{seed}/{sorted(areas)}")
        self.areas = frozenset(areas)

    def chance(self, probability: float) -> bool:
        """Return whether it comes to pass."""
        return self.random.random() < probability

    def pick(self, *of: _T) -> _T:
        """Return one of these."""
        return self.random.choice(of)

    def seeks(self, area: str, probability: float = 1.0) -> bool:
        """Return whether to go into an area here, with this probability where it is sought."""
        if area not in AREAS:
            raise ValueError(f"{area!r} is no area; accepted: {', '.join(AREAS)}")
        return area in self.areas and self.chance(probability)
