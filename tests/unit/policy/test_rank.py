from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reactor.model.decisions import Measured, RankedPod
from reactor.model.pod_lists import Preference
from reactor.model.pods import ContainerUsage, FilesystemUsage, Pod, PodUsage, Volume
from reactor.model.signals import Layout, Resource, Signal
from reactor.policy.rank import rank, usage

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
def test_pods_without_statistics_come_first_and_unreadable_ones_last(
    pods: tuple[Pod, ...], used: dict[str, PodUsage], signal: Signal, layout: Layout
) -> None:
    places = [place for place in rank(pods, used, signal, layout) if place.evictable]
    assert sorted(place.unreadable for place in places) == [place.unreadable for place in places]
    if signal is not Signal.PID_AVAILABLE:
        known = [place.pod.uid in used for place in places if not place.unreadable]
        assert sorted(known) == known


@given(draw.pods(), USED, SIGNALS, LAYOUTS)
def test_a_number_that_cannot_be_read_never_makes_its_pod_an_earlier_victim(
    pods: tuple[Pod, ...], used: dict[str, PodUsage], signal: Signal, layout: Layout
) -> None:
    before = [place.pod.uid for place in rank(pods, used, signal, layout)]
    for uid, known in used.items():
        blind = {**used, uid: known._replace(unreadable=frozenset(Resource))}
        after = [place.pod.uid for place in rank(pods, blind, signal, layout)]
        assert [one for one in after if one != uid] == [one for one in before if one != uid]
        if uid in before:
            assert before.index(uid) <= after.index(uid)


@given(draw.pods(with_preferences=True), USED, SIGNALS, LAYOUTS)
def test_preferred_pods_come_before_the_others_and_avoided_ones_after_them_in_upstreams_order_each(
    pods: tuple[Pod, ...], used: dict[str, PodUsage], signal: Signal, layout: Layout
) -> None:
    ranking = rank(pods, used, signal, layout)
    plain = rank([replace(pod, preference=Preference.NONE) for pod in pods], used, signal, layout)

    groups = [(not place.evictable, place.unreadable, place.pod.preference) for place in ranking]
    assert sorted(groups) == groups
    order = [place.pod.uid for place in plain]
    for group in set(groups):
        uids = [place.pod.uid for place, of in zip(ranking, groups, strict=True) if of == group]
        assert sorted(uids, key=order.index) == uids


def test_avoided_hog_goes_after_a_small_pod_within_its_request_and_a_preferred_one_before_it() -> None:
    pods = [
        replace(_pod("hog"), preference=Preference.AVOID),
        _pod("within", memory=100),
        replace(_pod("preferred", memory=100, priority=9), preference=Preference.PREFER),
        replace(_pod("never", critical="never list"), preference=Preference.PREFER),
    ]
    used = {pod.name: PodUsage(memory_working_set_bytes=50) for pod in pods}
    used["hog"] = PodUsage(memory_working_set_bytes=9999)
    ranking = rank(pods, used, Signal.MEMORY_AVAILABLE, Layout.SINGLE)
    assert ["preferred", "within", "hog", "never"] == _names(ranking)


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


def test_a_pod_that_was_not_read_for_the_decision_goes_by_what_was_read_later_or_its_bound() -> None:
    pods = [_pod("read"), _pod("late"), _pod("gone")]
    used = {name: PodUsage(memory_working_set_bytes=held) for name, held in (("read", 9), ("late", 5))}

    ranking = rank(pods, used, Signal.MEMORY_AVAILABLE, Layout.SINGLE, bounds={"late": 8, "gone": 7})

    assert [(one.pod.name, one.usage, one.measured) for one in ranking] == [
        ("read", 9, Measured.AT_DECISION),
        ("gone", 7, Measured.BOUND),
        ("late", 5, Measured.AFTERWARDS),
    ]


def test_processes_go_by_priority_then_number() -> None:
    names = ("important", "few", "many", "unseen", "lacking", "unseen-important", "unreadable")
    pods = [_pod(name, priority=1 if "important" in name else 0) for name in names]
    used = {name: PodUsage(process_count=n) for name, n in (("important", 99), ("few", 1), ("many", 2))}
    used |= {"lacking": PodUsage(), "unreadable": PodUsage(unreadable=frozenset({Resource.PIDS}))}
    ranking = rank(pods, used, Signal.PID_AVAILABLE, Layout.SINGLE)
    expected = ["unseen", "many", "few", "lacking", "unseen-important", "important", "unreadable"]
    assert expected == _names(ranking)
    assert [None] * len(names) == [place.exceeds_request for place in ranking]


def test_who_uses_an_inode_is_above_its_request_and_who_uses_none_is_not() -> None:
    pods = [_pod("none"), _pod("important", priority=9), _pod("one"), _pod("unseen", priority=10)]
    used = {
        name: PodUsage(containers=(ContainerUsage(name="c", rootfs=FilesystemUsage(inodes_used=count)),))
        for name, count in (("none", 0), ("important", 5), ("one", 1))
    }
    ranking = rank(pods, used, Signal.NODEFS_INODES_FREE, Layout.SINGLE)
    assert ["unseen", "one", "important", "none"] == _names(ranking)
    assert [None, True, True, False] == [place.exceeds_request for place in ranking]


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


def test_a_number_that_the_statistics_lack_is_none_used_and_one_that_cannot_be_read_is_unknown() -> None:
    bare = PodUsage()
    unread = PodUsage(memory_working_set_bytes=1, process_count=1, unreadable=frozenset(Resource))
    for signal in Signal:
        assert 0 == usage(_POD, bare, signal, Layout.SINGLE)
        assert usage(_POD, None, signal, Layout.SINGLE) is None
        assert usage(_POD, unread, signal, Layout.SINGLE) is None
    assert 0 == usage(_POD, bare, Signal.IMAGEFS_AVAILABLE, Layout.SPLIT)
    unmeasured = PodUsage(containers=(ContainerUsage(name="c", logs=FilesystemUsage()),))
    assert 0 == usage(_POD, unmeasured, Signal.NODEFS_AVAILABLE, Layout.SINGLE)
