from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reactor.model.decisions import RankedPod
from reactor.model.pods import ContainerUsage, FilesystemUsage, Pod, PodUsage, Volume
from reactor.model.signals import Layout, Resource, Signal
from reactor.policy import rank
from reactor.policy.usage import usage

from . import strategies as draw

SIGNALS = st.sampled_from(Signal)
LAYOUTS = st.sampled_from(Layout)
USED = st.dictionaries(st.sampled_from([f"uid-{n}" for n in range(5)]), draw.pod_usages)


def _pod(name: str, *, priority: int = 0, memory: int = 0, critical: str | None = None) -> Pod:
    return Pod(
        name=name,
        namespace="n",
        uid=name,
        priority=priority,
        requests={Resource.MEMORY: memory},
        critical_because=critical,
    )


def _names(places: tuple[RankedPod, ...]) -> list[str]:
    return [place.pod.name for place in places]


@given(draw.pods(), USED, SIGNALS, LAYOUTS)
def test_ranking_is_a_permutation(
    pods: tuple[Pod, ...], used: dict[str, PodUsage], signal: Signal, layout: Layout
) -> None:
    ranking = rank(pods, used, signal, layout)
    assert sorted(pod.uid for pod in pods) == sorted(place.pod.uid for place in ranking)


@given(draw.pods(), USED, SIGNALS, LAYOUTS)
def test_ranking_is_one_total_order_whatever_subset_of_pods_is_asked_for(
    pods: tuple[Pod, ...], used: dict[str, PodUsage], signal: Signal, layout: Layout
) -> None:
    whole = rank(pods, used, signal, layout)
    assert whole == rank(pods, used, signal, layout)
    for one in pods:
        rest = tuple(pod for pod in pods if pod is not one)
        expected = tuple(place for place in whole if place.pod is not one)
        assert expected == rank(rest, used, signal, layout)


@given(draw.pods(), USED, SIGNALS, LAYOUTS)
def test_critical_pods_come_last(
    pods: tuple[Pod, ...], used: dict[str, PodUsage], signal: Signal, layout: Layout
) -> None:
    evictable = [place.evictable for place in rank(pods, used, signal, layout)]
    assert sorted(evictable, reverse=True) == evictable


@given(draw.pods(), USED, SIGNALS, LAYOUTS)
def test_unobserved_pods_come_before_observed_ones(
    pods: tuple[Pod, ...], used: dict[str, PodUsage], signal: Signal, layout: Layout
) -> None:
    observed = [place.usage is not None for place in rank(pods, used, signal, layout) if place.evictable]
    assert sorted(observed) == observed


def test_memory_goes_by_request_exceeded_then_priority_then_excess() -> None:
    pods = [
        _pod("below", memory=100),
        _pod("important", priority=5, memory=1),
        _pod("little", memory=10),
        _pod("much", memory=10),
        _pod("system", critical="priority 2000000000"),
        _pod("unseen", priority=9),
    ]
    used = {
        name: PodUsage(memory_working_set_bytes=amount)
        for name, amount in (("below", 90), ("important", 999), ("little", 20), ("much", 30), ("system", 999))
    }
    ranking = rank(pods, used, Signal.MEMORY_AVAILABLE, Layout.SINGLE)
    assert ["unseen", "much", "little", "important", "below", "system"] == _names(ranking)
    assert (30, 10, True) == (ranking[1].usage, ranking[1].request, ranking[1].exceeds_request)
    assert (None, None) == (ranking[0].usage, ranking[0].exceeds_request)


def test_processes_go_by_priority_then_number() -> None:
    pods = [_pod("important", priority=1), _pod("few"), _pod("many")]
    used = {name: PodUsage(process_count=n) for name, n in (("important", 99), ("few", 1), ("many", 2))}
    ranking = rank(pods, used, Signal.PID_AVAILABLE, Layout.SINGLE)
    assert ["many", "few", "important"] == _names(ranking)
    assert ranking[0].exceeds_request is None


_POD = replace(_pod("p"), volumes=(Volume(name="local"), Volume(name="claim", is_local=False)))
_USED = PodUsage(
    containers=(
        ContainerUsage(
            name="c",
            rootfs=FilesystemUsage(used_bytes=1, inodes_used=10),
            logs=FilesystemUsage(used_bytes=20, inodes_used=200),
        ),
        ContainerUsage(name="d"),
    ),
    volumes={
        "local": FilesystemUsage(used_bytes=300, inodes_used=3000),
        "claim": FilesystemUsage(used_bytes=9999, inodes_used=9999),
        "gone": FilesystemUsage(used_bytes=9999, inodes_used=9999),
    },
)


@pytest.mark.parametrize(
    ("layout", "nodefs", "imagefs", "containerfs"),
    [
        (Layout.SINGLE, 321, 321, 321),
        (Layout.DEDICATED, 320, 1, 1),
        (Layout.SPLIT, 321, 0, 321),
    ],
)
def test_disk_is_charged_by_where_it_lies(
    layout: Layout, nodefs: int, imagefs: int, containerfs: int
) -> None:
    space = (Signal.NODEFS_AVAILABLE, Signal.IMAGEFS_AVAILABLE, Signal.CONTAINERFS_AVAILABLE)
    inodes = (Signal.NODEFS_INODES_FREE, Signal.IMAGEFS_INODES_FREE, Signal.CONTAINERFS_INODES_FREE)
    charged = (nodefs, imagefs, containerfs)
    assert charged == tuple(usage(_POD, _USED, signal, layout) for signal in space)
    assert tuple(10 * n for n in charged) == tuple(usage(_POD, _USED, signal, layout) for signal in inodes)


def test_usage_of_disk_is_unknown_without_any_filesystem_statistic_and_nothing_where_nothing_is_charged() -> (
    None
):
    bare = PodUsage(memory_working_set_bytes=1)
    assert usage(_POD, bare, Signal.NODEFS_AVAILABLE, Layout.SINGLE) is None
    assert usage(_POD, None, Signal.NODEFS_AVAILABLE, Layout.SINGLE) is None
    assert usage(_POD, bare, Signal.IMAGEFS_AVAILABLE, Layout.SPLIT) == 0
    unmeasured = PodUsage(containers=(ContainerUsage(name="c", logs=FilesystemUsage()),))
    assert usage(_POD, unmeasured, Signal.NODEFS_AVAILABLE, Layout.SINGLE) == 0
