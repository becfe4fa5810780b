"""Nodes, pods and observations as hypothesis draws them: mostly plausible, now and then absurd."""

from fractions import Fraction

from hypothesis import strategies as st

from reactor.model.decisions import Snapshot
from reactor.model.pod_lists import Preference
from reactor.model.pods import ContainerUsage, FilesystemUsage, Pod, PodUsage, QosClass, Volume
from reactor.model.quantity import parse_quantity
from reactor.model.settings import EvictionSettings
from reactor.model.signals import Layout, Resource, Signal
from reactor.model.thresholds import Observation, Threshold, ThresholdValue

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
filesystem_usages = st.builds(FilesystemUsage, used_bytes=st.none() | SMALL, inodes_used=st.none() | SMALL)
container_usages = st.builds(
    ContainerUsage,
    name=st.sampled_from(["main", "other"]),
    memory_working_set_bytes=st.none() | SMALL,
    rootfs=st.none() | filesystem_usages,
    logs=st.none() | filesystem_usages,
)
pod_usages = st.builds(
    PodUsage,
    memory_working_set_bytes=st.none() | SMALL,
    process_count=st.none() | SMALL,
    ephemeral_storage_bytes=st.none() | SMALL,
    containers=st.lists(container_usages, max_size=2).map(tuple),
    volumes=st.dictionaries(st.just("scratch"), filesystem_usages),
    unreadable=st.frozensets(st.sampled_from(Resource), max_size=1),
)


@st.composite
def pods(
    draw: st.DrawFn, *, with_preferences: bool = False, least: int = 0, most: int = 5
) -> tuple[Pod, ...]:
    return tuple(
        Pod(
            name=f"pod-{index}",
            namespace="test",
            uid=f"uid-{index}",
            priority=draw(st.integers(-2, 2)),
            qos_class=draw(st.sampled_from(QosClass)),
            critical_because=draw(st.sampled_from([None, None, None, "static pod"])),
            preference=draw(st.sampled_from(Preference)) if with_preferences else Preference.NONE,
            termination_grace_period_seconds=draw(SMALL),
            requests=draw(
                st.dictionaries(st.sampled_from([Resource.MEMORY, Resource.EPHEMERAL_STORAGE]), SMALL)
            ),
            ephemeral_storage_limit=draw(st.none() | st.just(parse_quantity("50"))),
            volumes=(Volume(name="scratch", size_limit=draw(st.none() | st.just(parse_quantity("50")))),),
        )
        for index in range(draw(st.integers(least, most)))
    )


@st.composite
def snapshots(draw: st.DrawFn, observations: st.SearchStrategy[Observation] = plausible) -> Snapshot:
    return Snapshot(
        signals=draw(st.dictionaries(st.sampled_from(Signal), observations, max_size=5)),
        pods=draw(st.dictionaries(st.sampled_from([f"uid-{n}" for n in range(5)]), pod_usages)),
    )


settings = st.builds(
    EvictionSettings,
    thresholds=st.lists(thresholds, max_size=6, unique=True).map(tuple),
    layout=st.sampled_from(Layout),
    pressure_transition_period_seconds=st.sampled_from([1.0, 60.0]),
    max_pod_grace_period_seconds=st.integers(-1, 60),
    local_storage_capacity_isolation=st.booleans(),
    evictions_per_minute=st.sampled_from([None, 1, 3]),
)
