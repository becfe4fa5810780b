"""Nodes, pods and observations as hypothesis draws them: mostly plausible, now and then absurd."""

from collections.abc import Callable
from fractions import Fraction
from typing import TypeVar

from hypothesis import strategies as st

from reactor.model.decisions import Snapshot
from reactor.model.pod_lists import Preference
from reactor.model.pods import ContainerUsage, FilesystemUsage, Pod, PodUsage, QosClass, Volume
from reactor.model.quantity import parse_quantity
from reactor.model.settings import EvictionSettings
from reactor.model.signals import Layout, Resource, Signal
from reactor.model.thresholds import Observation, Threshold, ThresholdValue

_Built = TypeVar("_Built")

SMALL = st.integers(0, 100)


def amount(value: int) -> ThresholdValue:
    return ThresholdValue(text=str(value), amount=Fraction(value))


def percent(value: int) -> ThresholdValue:
    return ThresholdValue(text=f"{value}%", percent=Fraction(value))


values = st.one_of(st.builds(amount, SMALL), st.builds(percent, SMALL))
thresholds = st.builds(
    Threshold,
    signal=st.sampled_from(Signal),
    value=values,
    grace_period_seconds=st.sampled_from([0.0, 0.0, 5.0, 30.0]),
    minimum_reclaim=st.none() | values,
)
plausible = st.builds(
    lambda capacity, share: Observation(available=capacity * share // 100, capacity=capacity),
    st.integers(1, 200),
    SMALL,
)
absurd = st.one_of(
    st.builds(Observation, available=SMALL, capacity=st.integers(-5, 0)),
    st.builds(Observation, available=st.integers(-1000, -1), capacity=SMALL),
    st.builds(Observation, available=st.integers(101, 1000), capacity=SMALL),
)
MAYBE = st.integers(-100, 100).map(lambda number: None if number < 0 else number)
filesystem_usages = st.builds(FilesystemUsage, used_bytes=MAYBE, inodes_used=MAYBE)
container_usages = st.builds(
    ContainerUsage,
    name=st.sampled_from(["main", "other"]),
    memory_working_set_bytes=MAYBE,
    rootfs=st.none() | filesystem_usages,
    logs=st.none() | filesystem_usages,
)
pod_usages = st.builds(
    PodUsage,
    memory_working_set_bytes=MAYBE,
    process_count=MAYBE,
    ephemeral_storage_bytes=MAYBE,
    containers=st.lists(container_usages, max_size=2).map(tuple),
    volumes=st.dictionaries(st.just("scratch"), filesystem_usages),
    unreadable=st.frozensets(st.sampled_from(Resource), max_size=1),
)


# Built once and drawn in one go: a strategy that is built within a draw takes most of its time.
_LIMITS = st.sampled_from([None, parse_quantity("50")])
_PODS = st.tuples(
    st.integers(-2, 2),
    st.sampled_from(QosClass),
    st.sampled_from([None, None, None, "static pod"]),
    SMALL,
    st.dictionaries(st.sampled_from([Resource.MEMORY, Resource.EPHEMERAL_STORAGE]), SMALL),
    _LIMITS,
    _LIMITS,
)
_PREFERENCES = st.sampled_from(Preference)


@st.composite
def pods(
    draw: st.DrawFn, *, with_preferences: bool = False, least: int = 0, most: int = 5
) -> tuple[Pod, ...]:
    made = []
    for index in range(draw(st.integers(least, most))):
        priority, qos_class, critical_because, grace_seconds, requests, limit, of_volume = draw(_PODS)
        made.append(
            Pod(
                name=f"pod-{index}",
                namespace="test",
                uid=f"uid-{index}",
                priority=priority,
                qos_class=qos_class,
                critical_because=critical_because,
                preference=draw(_PREFERENCES) if with_preferences else Preference.NONE,
                termination_grace_period_seconds=grace_seconds,
                requests=requests,
                ephemeral_storage_limit=limit,
                volumes=(Volume(name="scratch", size_limit=of_volume),),
            )
        )
    return tuple(made)


def built(kind: Callable[..., _Built], **fields: st.SearchStrategy[object]) -> st.SearchStrategy[_Built]:
    """Draw a named tuple; `st.builds` would draw all its other fields, too."""
    return st.fixed_dictionaries(fields).map(lambda drawn: kind(**drawn))


_USED = st.dictionaries(st.sampled_from([f"uid-{n}" for n in range(5)]), pod_usages)


def snapshots(observations: st.SearchStrategy[Observation] = plausible) -> st.SearchStrategy[Snapshot]:
    signals = st.dictionaries(st.sampled_from(Signal), observations, max_size=5)
    return built(Snapshot, signals=signals, pods=_USED)


settings = st.builds(
    EvictionSettings,
    thresholds=st.lists(thresholds, max_size=6, unique=True).map(tuple),
    layout=st.sampled_from(Layout),
    pressure_transition_period_seconds=st.sampled_from([1.0, 60.0]),
    max_pod_grace_period_seconds=st.integers(-1, 60),
    local_storage_capacity_isolation=st.booleans(),
    evictions_per_minute=st.sampled_from([None, 1, 3]),
)
