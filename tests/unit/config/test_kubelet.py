from typing import Any

import pytest

from reactor.config.decode import decode
from reactor.config.kubelet import KubeletConfiguration
from reactor.errors import ConfigError
from reactor.model.settings import EvictionSettings
from reactor.model.signals import Layout

DEFAULTS = [
    "memory.available<100Mi",
    "nodefs.available<10%",
    "nodefs.inodesFree<5%",
    "imagefs.available<15%",
    "imagefs.inodesFree<5%",
    "allocatableMemory.available<100Mi",
    "containerfs.available<10%",
    "containerfs.inodesFree<5%",
]


def _settings(layout: Layout = Layout.SINGLE, **keys: Any) -> EvictionSettings:
    return decode(keys, KubeletConfiguration).eviction_settings(
        layout, evictions_per_minute=None, in_flight_deadline_seconds=0.0
    )


def _thresholds(layout: Layout = Layout.SINGLE, **keys: Any) -> list[str]:
    return [str(threshold) for threshold in _settings(layout, **keys).thresholds]


def _problems(**keys: Any) -> dict[str, str]:
    with pytest.raises(ConfigError) as caught:
        decode(keys, KubeletConfiguration)
    return {problem.path: problem.accepted for problem in caught.value.problems}


def test_an_empty_configuration_has_upstreams_defaults() -> None:
    settings = _settings()
    assert DEFAULTS == [str(threshold) for threshold in settings.thresholds]
    assert all(threshold.is_hard for threshold in settings.thresholds)
    assert 300.0 == settings.pressure_transition_period_seconds
    assert (85, 80, 120.0, 0.0) == (
        settings.image_gc.high_threshold_percent,
        settings.image_gc.low_threshold_percent,
        settings.image_gc.minimum_age_seconds,
        settings.image_gc.maximum_age_seconds,
    )


def test_soft_settings_alone_keep_the_hard_defaults() -> None:
    soft = _thresholds(evictionSoft={"pid.available": 5}, evictionSoftGracePeriod={"pid.available": "1m"})
    assert set(DEFAULTS) | {"pid.available<5"} == set(soft)


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({"evictionHard": {}}, []),
        ({"evictionHard": None}, DEFAULTS),
        ({"evictionHard": {"pid.available": "1k"}}, ["pid.available<1k"]),
        ({"evictionHard": {"pid.available": "0%", "imagefs.available": "100%"}}, []),
        (
            {"evictionHard": {"memory.available": "0%"}, "mergeDefaultEvictionSettings": True},
            [text for text in DEFAULTS if "emory" not in text],
        ),
        (
            {"evictionHard": {"memory.available": "1Gi"}, "enforceNodeAllocatable": ["none"]},
            ["memory.available<1Gi"],
        ),
        (
            {"evictionHard": {"memory.available": "1Gi"}, "enforceNodeAllocatable": []},
            ["memory.available<1Gi"],
        ),
        (
            {
                "evictionHard": {"memory.available": "1Gi"},
                "enforceNodeAllocatable": ["kube-reserved", "pods"],
            },
            ["memory.available<1Gi", "allocatableMemory.available<1Gi"],
        ),
    ],
)
def test_hard_thresholds_replace_the_defaults_unless_merged(
    keys: dict[str, Any], expected: list[str]
) -> None:
    assert expected == _thresholds(**keys)


def test_a_dropped_soft_threshold_needs_no_grace_period_and_another_does() -> None:
    assert [] == _thresholds(evictionHard={}, evictionSoft={"pid.available": "0%"})
    assert ['evictionSoft["pid.available"]'] == list(_problems(evictionSoft={"pid.available": "1%"}))


@pytest.mark.parametrize(
    ("layout", "expected"),
    [(Layout.SINGLE, "10%"), (Layout.SPLIT, "10%"), (Layout.DEDICATED, "20%")],
)
def test_containerfs_goes_by_the_filesystem_of_writable_layers(layout: Layout, expected: str) -> None:
    configuration = {
        "evictionHard": {
            "nodefs.available": "10%",
            "imagefs.available": "20%",
            "containerfs.available": "90%",
        },
        "evictionMinimumReclaim": {"nodefs.available": "10%", "imagefs.available": "20%"},
    }
    derived = [
        threshold
        for threshold in _settings(layout, **configuration).thresholds
        if threshold.signal == "containerfs.available"
    ]
    assert [f"containerfs.available<{expected}"] == [str(threshold) for threshold in derived]
    assert [expected] == [
        threshold.minimum_reclaim.text for threshold in derived if threshold.minimum_reclaim
    ]
    (warning,) = decode(configuration, KubeletConfiguration).warnings
    assert warning.startswith("containerfs.available: ignored")


def test_containerfs_comes_in_the_order_of_what_it_is_derived_from_hard_before_soft() -> None:
    thresholds = _thresholds(
        evictionHard={"nodefs.inodesFree": "10%", "nodefs.available": "10%"},
        evictionSoft={"nodefs.available": "50%"},
        evictionSoftGracePeriod={"nodefs.available": "10s"},
    )
    derived = ["inodesFree<10%", "available<10%", "available<50%"]
    assert [f"containerfs.{one}" for one in derived] == thresholds[-3:]


def test_the_allocatable_threshold_is_the_hard_one_again() -> None:
    settings = _settings(
        evictionHard={"memory.available": "1Gi"},
        evictionSoft={"memory.available": "2Gi"},
        evictionSoftGracePeriod={"memory.available": "1m"},
        evictionMinimumReclaim={"memory.available": "500Mi"},
    )
    hard, soft, allocatable = settings.thresholds
    assert ("memory.available<2Gi", 60.0) == (str(soft), soft.grace_period_seconds)
    assert (hard.value, hard.minimum_reclaim) == (allocatable.value, allocatable.minimum_reclaim)
    assert allocatable.is_hard


@pytest.mark.parametrize(
    "value", ["", "0", "-1Mi", "101%", "-1%", "%", "ten%", "1.0.0%", "9" * 5000 + "%", True, [], {}, "1 Gi"]
)
def test_a_threshold_is_more_than_nothing_or_a_share(value: object) -> None:
    assert ['evictionHard["pid.available"]'] == list(_problems(evictionHard={"pid.available": value}))


@pytest.mark.parametrize("value", ["-1", "0%", "-5%", "much", f"1{60 * '0'}%"])
def test_a_minimum_reclaim_is_not_negative_and_a_share_not_zero(value: str) -> None:
    wrong = {"nodefs.available": value}
    assert ['evictionMinimumReclaim["nodefs.available"]'] == list(_problems(evictionMinimumReclaim=wrong))
    _settings(evictionMinimumReclaim={"nodefs.available": "0", "pid.available": "120%"})


@pytest.mark.parametrize(
    ("keys", "path"),
    [
        ({"imageGCLowThresholdPercent": 85}, "imageGCLowThresholdPercent"),
        ({"imageGCHighThresholdPercent": 101}, "imageGCHighThresholdPercent"),
        ({"imageMaximumGCAge": "2m"}, "imageMaximumGCAge"),
        ({"imageMaximumGCAge": "1h", "imageMinimumGCAge": "1h"}, "imageMaximumGCAge"),
        ({"shutdownGracePeriodCriticalPods": "10s"}, "shutdownGracePeriodCriticalPods"),
        ({"shutdownGracePeriod": "500ms"}, "shutdownGracePeriod"),
        (
            {"shutdownGracePeriod": "30s", "shutdownGracePeriodCriticalPods": "999ms"},
            "shutdownGracePeriodCriticalPods",
        ),
        ({"shutdownGracePeriod": "-1s"}, "shutdownGracePeriod"),
        (
            {
                "shutdownGracePeriod": "30s",
                "shutdownGracePeriodByPodPriority": [{"priority": 0, "shutdownGracePeriodSeconds": 10}],
            },
            "shutdownGracePeriodByPodPriority",
        ),
        (
            {"shutdownGracePeriodByPodPriority": [{"priority": 2**31, "shutdownGracePeriodSeconds": 1}]},
            "shutdownGracePeriodByPodPriority[0].priority",
        ),
        (
            {"shutdownGracePeriodByPodPriority": [{"shutdownGracePeriodSeconds": "10s"}]},
            "shutdownGracePeriodByPodPriority[0].shutdownGracePeriodSeconds",
        ),
        ({"shutdownGracePeriodByPodPriority": {"priority": 0}}, "shutdownGracePeriodByPodPriority"),
        ({"enforceNodeAllocatable": ["pod"]}, "enforceNodeAllocatable[0]"),
        ({"enforceNodeAllocatable": [5]}, "enforceNodeAllocatable[0]"),
        ({"enforceNodeAllocatable": ["none", "pods"]}, "enforceNodeAllocatable"),
        ({"evictionHard": {"nodefs.inodes": "5%"}}, 'evictionHard["nodefs.inodes"]'),
        ({"evictionSoftGracePeriod": {"pid.available": "-1s"}}, 'evictionSoftGracePeriod["pid.available"]'),
        ({"kubeReserved": {"memory": "much"}}, "kubeReserved.memory"),
        ({"evictionMaxPodGracePeriod": "60"}, "evictionMaxPodGracePeriod"),
        ({"evictionMaxPodGracePeriod": 2**31}, "evictionMaxPodGracePeriod"),
        ({"localStorageCapacityIsolation": "no"}, "localStorageCapacityIsolation"),
    ],
)
def test_what_upstream_refuses_is_refused(keys: dict[str, Any], path: str) -> None:
    assert [path] == list(_problems(**keys))


def test_checks_between_keys_are_reported_beside_those_of_single_keys() -> None:
    found = _problems(
        evictionHard={"memory.available": "lots"},
        evictionSoft={"pid.available": "5%"},
        imageGCLowThresholdPercent=90,
        evictionPressureTransitionPeriod="soon",
    )
    assert {
        'evictionHard["memory.available"]',
        'evictionSoft["pid.available"]',
        "imageGCLowThresholdPercent",
        "evictionPressureTransitionPeriod",
    } == set(found)


def test_reservations_are_what_pods_may_not_use() -> None:
    keys = {"kubeReserved": {"memory": "1Gi", "cpu": "500m"}, "systemReserved": {"memory": "512Mi"}}
    assert 1536 << 20 == decode(keys, KubeletConfiguration).reserved_memory_bytes
    assert 0 == decode({}, KubeletConfiguration).reserved_memory_bytes


def _groups(**keys: Any) -> list[tuple[int, int]]:
    groups = decode(keys, KubeletConfiguration).shutdown_groups
    return [(group.priority, group.seconds) for group in groups]


def _item(priority: int, seconds: int) -> dict[str, int]:
    return {"priority": priority, "shutdownGracePeriodSeconds": seconds}


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({}, []),
        ({"shutdownGracePeriod": "0s", "shutdownGracePeriodByPodPriority": []}, []),
        ({"shutdownGracePeriod": "30s"}, [(0, 30), (2_000_000_000, 0)]),
        (
            {"shutdownGracePeriod": "30s", "shutdownGracePeriodCriticalPods": "10s"},
            [(0, 20), (2_000_000_000, 10)],
        ),
        # Cut to whole seconds, each for itself.
        (
            {"shutdownGracePeriod": "30500ms", "shutdownGracePeriodCriticalPods": "10s"},
            [(0, 20), (2_000_000_000, 10)],
        ),
        (
            {"shutdownGracePeriodByPodPriority": [_item(1000, 20), _item(0, 10)]},
            [(1000, 20), (0, 10)],
        ),
        ({"shutdownGracePeriodByPodPriority": [_item(0, 0), _item(1000, 0)]}, []),
        ({"shutdownGracePeriodByPodPriority": [_item(0, -7), _item(1, 1)]}, [(0, 0), (1, 1)]),
        ({"shutdownGracePeriod": "9999h"}, [(0, 86_400), (2_000_000_000, 0)]),
        (
            {
                "shutdownGracePeriod": "0s",
                "shutdownGracePeriodByPodPriority": [_item(0, 5)],
            },
            [(0, 5)],
        ),
    ],
)
def test_both_kinds_of_shutdown_keys_come_down_to_groups(
    keys: dict[str, Any], expected: list[tuple[int, int]]
) -> None:
    assert expected == _groups(**keys)


def test_both_kinds_of_shutdown_keys_at_once_are_refused_in_upstreams_words() -> None:
    found = _problems(shutdownGracePeriod="1m", shutdownGracePeriodByPodPriority=[_item(0, 5)])
    assert (
        "Cannot specify both shutdownGracePeriodByPodPriority and shutdownGracePeriod at the same time"
        in found["shutdownGracePeriodByPodPriority"]
    )


@pytest.mark.parametrize(
    ("items", "warning"),
    [
        ([_item(0, 0)], "no effect"),
        ([_item(0, -1), _item(1, 5)], "-1 counts as 0"),
        ([_item(0, 10**12)], "counts as 86400"),
        ([_item(7, 1), _item(7, 2)], "has no pods"),
    ],
)
def test_what_of_a_shutdown_is_taken_otherwise_than_written_is_a_warning(
    items: list[dict[str, int]], warning: str
) -> None:
    (found,) = decode({"shutdownGracePeriodByPodPriority": items}, KubeletConfiguration).warnings
    assert warning in found


def test_usual_shutdown_keys_bring_no_warning() -> None:
    assert () == decode({"shutdownGracePeriod": "30s"}, KubeletConfiguration).warnings
