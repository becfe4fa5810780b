"""The pods of a heat, and who of them is the policy's first by the kernel's counters."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Final

MIB = 1 << 20
_LEAST_MIB: Final = 12  # of a pod: an interpreter alone takes 5
_CLEAR_BYTES: Final = 4 * MIB  # a difference below this is no difference: counters lag behind
_DRAWN_CLEAR_BYTES: Final = 12 * MIB
_HOG_IS_FIRST: Final = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnPod:
    """What a pod holds before one of them grows, and what it asks for."""

    name: str
    mib: int
    request_mib: int
    priority: int

    def kubelet_score(self, capacity_mib: int) -> int:
        """Return the oom_score_adj that a kubelet gives it: BestEffort, or Burstable by its request."""
        if not self.request_mib:
            return 1000
        return min(max(1000 - 1000 * self.request_mib // capacity_mib, 3), 999)


def draw(random: Random, total_mib: int) -> tuple[DrawnPod, ...]:
    """Return three to five pods that hold so much together, the last of which will grow.

    One is large and keeps within what it requests.

    It is clear who of them is first, whatever their interpreters take: half of the time the one that grows.
    """
    while True:
        pods = _drawn(random, total_mib)
        first = first_of(pods, {pod.name: pod.mib * MIB for pod in pods}, _DRAWN_CLEAR_BYTES)
        if first is not None:
            break
    if random.random() < _HOG_IS_FIRST:
        return tuple(sorted(pods, key=lambda pod: pod.name == first))
    return pods


def _drawn(random: Random, total_mib: int) -> tuple[DrawnPod, ...]:
    large = DrawnPod(
        name="large", mib=random.randint(80, 100), request_mib=random.randint(160, 200), priority=0
    )
    count = random.randint(2, 4)
    left_mib = total_mib - large.mib - count * _LEAST_MIB
    cuts = sorted(random.sample(range(left_mib), count - 1))
    sizes = [high - low + _LEAST_MIB for low, high in zip((0, *cuts), (*cuts, left_mib), strict=True)]
    others = (
        DrawnPod(
            name=f"pod-{number}",
            mib=mib,
            request_mib=random.choice((0, mib // 2, mib + random.randint(20, 120))),
            priority=random.choice((0, 0, 0, 1000)),
        )
        for number, mib in enumerate(sizes)
    )
    pods = [large, *others]
    random.shuffle(pods)
    return tuple(pods)


def first_of(
    pods: Sequence[DrawnPod], used_bytes: Mapping[str, int], clear_bytes: int = _CLEAR_BYTES
) -> str | None:
    """Return who is to go first, None where that is not clear by what was read.

    Who is over its request goes before who is not, then the lower priority, then who is farthest above.
    """

    def excess_bytes(pod: DrawnPod) -> int:
        return used_bytes[pod.name] - pod.request_mib * MIB

    if any(pod.request_mib and abs(excess_bytes(pod)) < clear_bytes for pod in pods):
        return None
    ranked = sorted(pods, key=lambda pod: (excess_bytes(pod) <= 0, pod.priority, -excess_bytes(pod)))
    first, second = ranked[:2]
    is_tied = (excess_bytes(first) > 0, first.priority) == (excess_bytes(second) > 0, second.priority)
    if is_tied and excess_bytes(first) - excess_bytes(second) < clear_bytes:
        return None
    return first.name


def innocents_among(
    died: Collection[str], pods: Iterable[DrawnPod], used_bytes: Mapping[str, int]
) -> set[str]:
    """Return which of these died though another pod was first; none from where that is not clear.

    Those that died at one time are taken in the order in which they would have been first.
    """
    left, living = set(died), list(pods)
    while left:
        first = living[0].name if len(living) == 1 else first_of(living, used_bytes)
        if first is None:
            return set()
        if first not in left:
            return left
        left.remove(first)
        living = [pod for pod in living if pod.name != first]
    return set()
