from dataclasses import replace

import pytest

from reactor.model.pods import (
    Container,
    ContainerUsage,
    FilesystemUsage,
    Pod,
    PodUsage,
    StorageKind,
    StoragePlace,
    Volume,
)
from reactor.model.quantity import parse_quantity
from reactor.model.signals import Layout, LimitSignal
from reactor.policy.decide import storage_limit_evictions

LIMIT = parse_quantity("10")
BARE = Pod(name="p", namespace="n", uid="u")
EMPTY_DIR = replace(BARE, volumes=(Volume(name="v", is_local=False, size_limit=LIMIT), Volume(name="w")))
LIMITED = replace(
    BARE,
    ephemeral_storage_limit=parse_quantity("100"),
    containers=(Container(name="c", ephemeral_storage_limit=LIMIT), Container(name="free")),
)


def _volume(used_bytes: int | None) -> PodUsage:
    return PodUsage(volumes={"v": FilesystemUsage(used_bytes=used_bytes)})


def _container(rootfs: int | None, logs: int | None, *, name: str = "c") -> PodUsage:
    return PodUsage(
        containers=(
            ContainerUsage(
                name=name,
                rootfs=FilesystemUsage(used_bytes=rootfs),
                logs=None if logs is None else FilesystemUsage(used_bytes=logs),
            ),
        )
    )


def _signals(pod: Pod, used: PodUsage, layout: Layout = Layout.SINGLE) -> list[str]:
    return [eviction.signal for eviction in storage_limit_evictions([pod], {"u": used}, layout)]


@pytest.mark.parametrize(("used_bytes", "is_evicted"), [(11, True), (10, False), (None, False)])
def test_an_empty_dir_above_its_limit_evicts_its_pod(used_bytes: int | None, *, is_evicted: bool) -> None:
    assert ([LimitSignal.EMPTY_DIR] if is_evicted else []) == _signals(EMPTY_DIR, _volume(used_bytes))


def test_an_empty_dir_in_memory_is_held_to_its_mounts_size_and_not_to_a_wish() -> None:
    """KEP-6030: the spec was made smaller than what is used, and the mount can't be."""
    place = StoragePlace(kind=StorageKind.VOLUME, name="v", path="/v", is_sized=True)
    resized = replace(EMPTY_DIR, storage=(place,))
    assert [] == _signals(resized, _volume(99))
    of_another = (
        replace(place, name="w"),
        replace(place, kind=StorageKind.LOGS),
        replace(place, is_sized=False),
    )
    assert [LimitSignal.EMPTY_DIR] == _signals(replace(EMPTY_DIR, storage=of_another), _volume(99))


def test_an_empty_dir_with_a_limit_of_zero_or_without_statistics_has_none() -> None:
    unlimited = replace(BARE, volumes=(Volume(name="v", size_limit=parse_quantity("0")),))
    assert [] == _signals(unlimited, _volume(99))
    assert [] == _signals(EMPTY_DIR, PodUsage())


@pytest.mark.parametrize(("used_bytes", "is_evicted"), [(101, True), (100, False), (None, False)])
def test_a_pod_above_the_total_of_its_limits_is_evicted(used_bytes: int | None, *, is_evicted: bool) -> None:
    used = PodUsage(ephemeral_storage_bytes=used_bytes)
    assert ([LimitSignal.POD] if is_evicted else []) == _signals(LIMITED, used)
    assert [] == _signals(BARE, used)


@pytest.mark.parametrize(
    ("layout", "rootfs", "logs", "is_evicted"),
    [
        (Layout.SINGLE, 6, 5, True),
        (Layout.SINGLE, 5, 5, False),
        (Layout.SINGLE, 11, None, True),
        (Layout.SINGLE, None, 11, True),
        (Layout.DEDICATED, 99, 10, False),
        (Layout.DEDICATED, 0, 11, True),
        (Layout.SPLIT, 99, 10, False),
    ],
)
def test_a_container_above_its_limit_evicts_its_pod(
    layout: Layout, rootfs: int | None, logs: int | None, *, is_evicted: bool
) -> None:
    found = _signals(LIMITED, _container(rootfs, logs), layout)
    assert ([LimitSignal.CONTAINER] if is_evicted else []) == found


def test_a_limit_is_found_wherever_it_stands_and_without_one_no_pod_is_evicted() -> None:
    free, limited = Container(name="free"), Container(name="c", ephemeral_storage_limit=LIMIT)
    last_container = replace(BARE, volumes=(Volume(name="w"),), containers=(free, limited))
    last_volume = replace(BARE, volumes=(Volume(name="w"), Volume(name="v", size_limit=LIMIT)))
    unlimited = replace(BARE, volumes=(Volume(name="v"),), containers=(free, Container(name="c")))

    assert [LimitSignal.CONTAINER] == _signals(last_container, _container(11, 0))
    assert [LimitSignal.EMPTY_DIR] == _signals(last_volume, _volume(11))
    assert [] == _signals(unlimited, _container(11, 0)._replace(volumes=_volume(11).volumes))


def test_containers_without_a_limit_or_unknown_ones_evict_no_pod() -> None:
    zero = replace(BARE, containers=(Container(name="c", ephemeral_storage_limit=parse_quantity("0")),))
    assert [] == _signals(LIMITED, _container(99, 99, name="free"))
    assert [] == _signals(LIMITED, _container(99, 99, name="stranger"))
    assert [] == _signals(zero, _container(99, 99))


def test_a_pod_is_evicted_once_for_the_first_limit_it_breaks() -> None:
    pod = replace(LIMITED, volumes=EMPTY_DIR.volumes)
    used = _container(99, 99)._replace(ephemeral_storage_bytes=999, volumes=_volume(99).volumes)
    (eviction,) = storage_limit_evictions([pod], {"u": used}, Layout.SINGLE)
    assert LimitSignal.EMPTY_DIR == eviction.signal
    assert 0 == eviction.grace_period_seconds
    assert eviction.threshold is None
    assert 'Usage of EmptyDir volume "v" exceeds the limit "10". ' == eviction.message


def test_messages_say_which_limit() -> None:
    total = storage_limit_evictions([LIMITED], {"u": PodUsage(ephemeral_storage_bytes=101)}, Layout.SINGLE)
    one = storage_limit_evictions([LIMITED], {"u": _container(11, 0)}, Layout.SINGLE)
    assert ["Pod ephemeral local storage usage exceeds the total limit of containers 100. "] == [
        eviction.message for eviction in total
    ]
    assert ['Container c exceeded its local ephemeral storage limit "10". '] == [
        eviction.message for eviction in one
    ]


def test_critical_and_unobserved_pods_stay() -> None:
    critical = replace(EMPTY_DIR, critical_because="mirror pod")
    assert [] == _signals(critical, _volume(99))
    assert () == storage_limit_evictions([EMPTY_DIR], {}, Layout.SINGLE)


def test_a_pod_of_the_system_partition_is_held_to_its_own_limits_and_a_critical_one_is_not() -> None:
    used = PodUsage(ephemeral_storage_bytes=101)
    of_partition = replace(LIMITED, critical_because="in it", partition="/kubepods/system")
    assert [LimitSignal.POD] == _signals(of_partition, used)
    assert [] == _signals(replace(LIMITED, critical_because="priority 2000001000"), used)
