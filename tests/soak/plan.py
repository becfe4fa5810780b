"""What happens in the soak, drawn from its seed: pods and rules, crossings, what else goes on meanwhile."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum, auto
from typing import Final

from tests.soak.falls import FallPlan, fall, grace_ns, save_seconds
from tests.soak.oracle import Rules, Spec

MIB: Final = 1 << 20
FAST_RATES: Final = frozenset({200 * MIB, 1000 * MIB})
_CRITICAL: Final = 2_000_000_000
_PRIORITIES: Final = (0, 0, 0, 0, 0, 0, 1, 10, 100, 100, 1000, 100_000, -10, _CRITICAL)
# What a pod's processes take beside what they are told to.
_OVERHEAD_BYTES: Final = MIB // 2
# See stage.c: anonymous, shared, tmpfs, page cache read once, read twice. How often pods hold and take it.
KINDS: Final = "astfF"
_HELD: Final = {"a": 70, "s": 10, "t": 10, "f": 9, "F": 1}
_TAKEN: Final = {"a": 80, "s": 10, "t": 10}
# With warrants: by several processes at once, too. What the others do meanwhile: grow, shrink, read a file.
_TAKEN_NEAR: Final = {"a": 50, "p": 30, "s": 10, "t": 10}
_COMPANY: Final = {"a": 40, "u": 15, "f": 45}
_NEAREST_BYTES: Final = MIB // 8
# Names of pods that may not be evicted, by the configuration, and of what grows beside all pods.
KEPT: Final = "kept-"
OUTSIDE: Final = "outside-"
_LEAKED: Final = {"a": 80, "s": 20}
_LEAK_RATES: Final = (0, 1000 * MIB, 200 * MIB, 50 * MIB)
_KEPT_BYTES: Final = MIB // 2
_LEFT_TO_LIMIT_BYTES: Final = 12 * MIB
_FARTHEST_BYTES: Final = 4 * MIB
# With soft evictions in time: from the soft threshold to the hard one; where falls begin, before the soft
# one; their share of what happens, the others cross; how often the pod that goes first is the one that grows.
_WAY_BYTES: Final = (12 * MIB, 32 * MIB)
BEFORE_FALL_BYTES: Final = 3 * MIB // 4
_FALLS: Final = 0.85
_FALLS_BY_FIRST: Final = 0.6
# Their specs come from manifests, which are there before the daemon is.
MANIFESTED: Final = {
    "unit-0": Spec(priority=0, request_bytes=0),
    "unit-1": Spec(priority=50, request_bytes=4 * MIB),
    "unit-2": Spec(priority=0, request_bytes=32 * MIB),
    "unit-3": Spec(priority=-5, request_bytes=0),
}


class Disturbance(StrEnum):
    """What else happens at a crossing."""

    STOP = auto()  # SIGSTOP, later SIGCONT
    RELOAD = auto()  # another valid configuration
    REFUSED = auto()  # an invalid one
    CRASH = auto()  # SIGKILL and a new daemon
    REUSE = auto()  # a pod is removed and made again under its name, while the daemon stands still
    CHURN = auto()  # one pod comes, another goes


# For how long the daemon stands still, in seconds at the most.
_LASTING: Final = {Disturbance.STOP: 0.04, Disturbance.REUSE: 0.02}


_WORKS: Final = 24  # of an in-time soak, whose pods come and go
_GENERATED: Final = "bcdfghjklmnpqrstvwxz2456789"


@dataclass(frozen=True, slots=True, kw_only=True)
class PodPlan:
    """A pod: what decides its place, and what it holds from the start (see stage.c for the kinds).

    At SIGTERM it needs so long to end.
    """

    name: str
    spec: Spec
    kind: str
    size_bytes: int
    save_seconds: float = 0.0

    @property
    def is_manifested(self) -> bool:
        """Tell whether a manifest has its spec, and not its cgroup."""
        return self.name in MANIFESTED

    @property
    def is_outside(self) -> bool:
        """Tell whether it is no pod: a cgroup of the node's beside them."""
        return self.name.startswith(OUTSIDE)


@dataclass(frozen=True, slots=True, kw_only=True)
class HogPlan:
    """Who grows, in which kind of memory, at which rate (0: as fast as it goes), and how far past the level.

    Past the level by more than the threshold: only the limit would stop it.
    """

    name: str
    kind: str
    rate_bytes: int
    past_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Disturbed:
    """A disturbance, so long after the last stretch began, or at the crossing itself (None)."""

    what: Disturbance
    after_seconds: float | None
    lasting_seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CompanyPlan:
    """What another pod does before the crossing and at it, so long after the lull began."""

    name: str
    kind: str
    size_bytes: int
    rate_bytes: int
    after_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LullPlan:
    """A time in which who grows rests, with so much left until the crossing, and others do not."""

    seconds: float
    left_bytes: int
    company: tuple[CompanyPlan, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CrossingPlan:
    """A crossing: who grows, and what else happens. `is_leak`: who grows may not be evicted.

    With a fall nobody else grows, and there may be no crossing.
    """

    hogs: tuple[HogPlan, ...]
    disturbed: tuple[Disturbed, ...]
    lull: LullPlan | None = None
    is_leak: bool = False
    fall: FallPlan | None = None


class Draw:
    """Draws rounds and crossings; the same seed draws the same. `kinds` of memory are held and taken.

    `lull_seconds`: where it is not 0, before most crossings there is a lull near the level, of that length at
    the most, for warrants; and who grows is more often than not the pod that goes first. `beside_bytes` is
    what other pods hold than those that are drawn. `often` is what disturbs more than half of the crossings.
    `in_time`: there always is a soft threshold, farther off, and most of what happens are falls past it.
    """

    def __init__(
        self,
        seed: int,
        kinds: str = KINDS,
        *,
        lull_seconds: float = 0.0,
        beside_bytes: int = 0,
        often: Disturbance | None = None,
        in_time: bool = False,
    ) -> None:
        self._random = random.Random(seed)
        self._in_time = in_time
        self._works: dict[str, float] = {}
        self._saves: dict[str, float] = {}
        self._often = often
        self._beside_bytes = beside_bytes
        self._lull_seconds = lull_seconds
        self._has_lulls = has_lulls = lull_seconds > 0
        self._held = {kind: weight for kind, weight in _HELD.items() if kind in kinds}
        taken = _TAKEN_NEAR if has_lulls else _TAKEN
        self._taken = {kind: weight for kind, weight in taken.items() if kind in kinds + "p"}
        self._names = 0

    def rules(self) -> Rules:
        """Draw the node's capacity and thresholds."""
        sizes = [112, 128, 128, 160] if self._has_lulls else [96, 96, 112, 128, 192]
        if self._in_time:
            sizes = [144, 160, 192]
        capacity_bytes = self._random.choice(sizes) * MIB + self._beside_bytes
        return self.other_rules(Rules(capacity_bytes=capacity_bytes, hard_bytes=0))

    def other_rules(self, rules: Rules) -> Rules:
        """Draw other thresholds for the same capacity."""
        hard_bytes = self._random.randrange(24 * MIB, 48 * MIB, 4096)
        # Where a soft threshold is met first, no warrant is given.
        has_soft = self._random.random() < (0.05 if self._has_lulls else 0.15)
        if self._in_time:
            return replace(
                rules,
                hard_bytes=hard_bytes,
                soft_bytes=hard_bytes + self._random.randrange(*_WAY_BYTES, 4096),
                soft_grace_ns=grace_ns(self._random),
                in_time=True,
            )
        return replace(
            rules,
            hard_bytes=hard_bytes,
            minimum_reclaim_bytes=self._random.choice((0, 0, 0, 0, 4 * MIB)),
            soft_bytes=hard_bytes + 3 * MIB if has_soft else None,
            soft_grace_ns=self._random.randrange(50, 150) * 1_000_000 if has_soft else 0,
        )

    def pods(self, rules: Rules) -> list[PodPlan]:
        """Draw a round's pods, with room for a hog's growth up to the level."""
        count = self._random.randint(3, 7 if self._has_lulls else 20)
        room_bytes = self._random.randrange(3 * MIB, 12 * MIB)
        if self._has_lulls:
            room_bytes += rules.capacity_bytes // 16  # not near all the time: then warrants are renewed
        soft_bytes = max(rules.hard_bytes, rules.soft_bytes or 0)
        held_bytes = soft_bytes + room_bytes + count * _OVERHEAD_BYTES + self._beside_bytes
        total = max(count * MIB // 8, rules.capacity_bytes - held_bytes)
        shares = [self._random.expovariate(1) for _ in range(count)]
        free = list(MANIFESTED)
        plans = []
        for share in shares:
            plan = self.pod(int(share / sum(shares) * total), manifested=free)
            if plan.spec.is_critical and not self._has_lulls:
                # More of it, after evictions in the round before, would look like what took their memory.
                plan = replace(plan, size_bytes=min(plan.size_bytes, _KEPT_BYTES))
            free = [name for name in free if name != plan.name]
            plans.append(plan)
        return plans

    def pod(
        self,
        size_bytes: int,
        *,
        manifested: Sequence[str] = (),
        name: str | None = None,
        may_be_kept: bool = True,
    ) -> PodPlan:
        """Draw a pod of that size, of that name where one is given, now and then one that is `manifested`.

        `may_be_kept`: also one that may not be evicted. One that comes soon after an eviction would look like
        what that eviction did not help against.
        """
        kind = self._one_of(self._held)
        if name is None and manifested and self._random.random() < 0.2:
            name = self._random.choice(manifested)
        if name in MANIFESTED:
            return PodPlan(
                name=name,
                spec=MANIFESTED[name],
                kind=kind,
                size_bytes=size_bytes,
                save_seconds=self._save_seconds(name),
            )
        if name is None and may_be_kept and not self._has_lulls and self._random.random() < 0.08:
            self._names += 1
            name = f"{KEPT}{self._names}"
        if name is not None and name.startswith((KEPT, OUTSIDE)):
            return PodPlan(name=name, spec=Spec(is_critical=True), kind=kind, size_bytes=size_bytes)
        self._names += 1
        name = name or (self._name_of_a_work() if self._in_time else f"pod-{self._names}")
        request_bytes = self._random.choice((0, 0, size_bytes // 2, size_bytes * 2 + 4 * MIB, 24 * MIB))
        priority = self._random.choice(_PRIORITIES)
        if priority >= _CRITICAL and not (may_be_kept or self._has_lulls):
            priority = 0
        return PodPlan(
            name=name,
            save_seconds=self._save_seconds(name),
            spec=Spec(
                priority=priority,
                request_bytes=request_bytes // 4096 * 4096,
                is_critical=priority >= _CRITICAL,
            ),
            kind=kind,
            size_bytes=size_bytes,
        )

    def _name_of_a_work(self) -> str:
        """Draw a name as the pods of a Deployment have: all that do the same differ in what is generated."""
        template, pod = (self._random.choices(_GENERATED, k=count) for count in (9, 5))
        return f"work-{self._random.randrange(_WORKS)}-{''.join(template)}-{''.join(pod)}"

    def _save_seconds(self, name: str) -> float:
        """Return how long a pod needs to end: its work's time, or a little less."""
        if not self._in_time:
            return 0.0
        if name not in self._saves:
            work = name if name in MANIFESTED else name.rsplit("-", 2)[0]
            if work not in self._works:
                self._works[work] = save_seconds(self._random)
            self._saves[name] = self._works[work] * self._random.uniform(0.8, 1.0)
        return self._saves[name]

    def crossing(self, names: list[str], rules: Rules, *, may_crash: bool, first: str) -> CrossingPlan:
        """Draw a crossing by some of these pods, of which `first` would go first now."""
        lull_seconds = 0.0
        if self._has_lulls and self._random.random() < 0.85:
            lull_seconds = self._random.uniform(0, self._lull_seconds)
        disturbed = tuple(self._disturbances(may_crash=may_crash, within_seconds=lull_seconds + 0.03))
        is_bounded = bool(disturbed) or self._random.random() < 0.5
        most_bytes = rules.hard_bytes - 12 * MIB
        count = 2 if len(names) > 3 and self._random.random() < 0.2 else 1
        chosen = self._random.sample(names, count)
        if self._has_lulls and first not in chosen and self._random.random() < 0.85:
            chosen[0] = first
        hogs = tuple(
            HogPlan(
                name=name,
                kind=self._one_of(self._taken),
                rate_bytes=self._rate(),
                past_bytes=self._random.randrange(MIB, most_bytes // count)
                if is_bounded
                else 2 * rules.capacity_bytes,
            )
            for name in chosen
        )
        others = [name for name in names if name not in chosen]
        lull = self._lull(lull_seconds, others) if lull_seconds else None
        return CrossingPlan(hogs=hogs, disturbed=disturbed, lull=lull)

    def fall(self, names: Sequence[str], rules: Rules, *, first: str) -> CrossingPlan | None:
        """Draw, mostly, a fall by one of these, or by the one that would go first now."""
        if rules.soft_bytes is None or not self._in_time or self._random.random() >= _FALLS:
            return None
        name = first if self._random.random() < _FALLS_BY_FIRST else self._random.choice(list(names))
        plan = fall(
            self._random,
            name,
            rules.soft_bytes,
            rules.hard_bytes,
            rules.soft_grace_ns / 1e9,
            BEFORE_FALL_BYTES,
        )
        return CrossingPlan(hogs=(), disturbed=(), fall=plan)

    def leak(self, names: Sequence[str], rules: Rules) -> CrossingPlan | None:
        """Draw, now and then, a crossing by one of these, which may not be evicted."""
        room_bytes = rules.hard_bytes - _LEFT_TO_LIMIT_BYTES
        if self._has_lulls or rules.soft_bytes is not None or self._random.random() >= 0.2:
            return None
        hog = HogPlan(
            name=self._random.choice(names),
            kind=self._one_of(_LEAKED),
            rate_bytes=self._random.choice(_LEAK_RATES),
            past_bytes=self._random.randrange(room_bytes // 2, room_bytes),
        )
        return CrossingPlan(hogs=(hog,), disturbed=(), is_leak=True)

    def is_disk_full(self) -> bool:
        """Draw whether a disk is full on which no pod holds anything."""
        return not self._has_lulls and self._random.random() < 0.3

    def _lull(self, seconds: float, others: Sequence[str]) -> LullPlan:
        count = min(len(others), self._random.choice((0, 0, 1, 1, 2, 4)))
        return LullPlan(
            seconds=seconds,
            left_bytes=int(self._random.triangular(_NEAREST_BYTES, _FARTHEST_BYTES, MIB)),
            company=tuple(
                CompanyPlan(
                    name=name,
                    kind=(kind := self._one_of(_COMPANY)),
                    size_bytes=self._random.randrange(MIB // 16, (8 if kind == "f" else 1) * MIB),
                    rate_bytes=self._random.choice((2, 10, 50, 200)) * MIB,
                    after_seconds=self._random.uniform(0, seconds + 0.02),
                )
                for name in self._random.sample(list(others), count)
            ),
        )

    def seconds(self, most_seconds: float) -> float:
        """Draw a span of time."""
        return self._random.uniform(0, most_seconds)

    def _one_of(self, weights: Mapping[str, int]) -> str:
        return self._random.choices(list(weights), weights=list(weights.values()))[0]

    def _rate(self) -> int:
        mib = self._random.choices((0, 1000, 200, 50, 10, 1), weights=(46, 20, 18, 10, 5, 1))[0]
        return mib * MIB

    def _disturbances(self, *, may_crash: bool, within_seconds: float) -> list[Disturbed]:
        found = []
        if self._often is not None and self._random.random() < 0.6:
            found.append((self._often, _LASTING.get(self._often, 0.0)))
        elif self._random.random() < 0.10:
            found.append((Disturbance.STOP, 0.4 if self._has_lulls else _LASTING[Disturbance.STOP]))
        elif self._random.random() < (0.01 if self._has_lulls else 0.04):
            found.append((Disturbance.RELOAD, 0.0))
        elif self._random.random() < 0.03:
            found.append((Disturbance.REFUSED, 0.0))
        elif self._random.random() < 0.06:
            found.append((Disturbance.REUSE, _LASTING[Disturbance.REUSE]))
        elif may_crash and self._random.random() < 0.02:
            found.append((Disturbance.CRASH, 0.0))
        if self._random.random() < 0.10:
            found.append((Disturbance.CHURN, 0.0))
        return [
            Disturbed(
                what=what,
                after_seconds=None
                if self._random.random() < 0.5
                else self._random.uniform(0, within_seconds),
                lasting_seconds=self._random.uniform(0.0005, lasting) if lasting else 0.0,
            )
            for what, lasting in found
        ]
