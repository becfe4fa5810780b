from dataclasses import replace

import pytest

from reactor.model.decisions import RankedPod
from reactor.model.pods import Container, ContainerUsage, FilesystemUsage, Pod, PodUsage
from reactor.model.quantity import parse_quantity
from reactor.model.signals import Resource, Signal
from reactor.model.thresholds import Observation, Threshold, ThresholdValue
from reactor.policy.messages import node_message

from . import strategies as draw

POD = Pod(
    name="web",
    namespace="shop",
    uid="u",
    containers=(
        Container(name="app", requests={Resource.MEMORY: parse_quantity("64Mi")}),
        Container(name="mesh"),
    ),
)
MI = 1 << 20


def _message(signal: Signal, used: PodUsage | None, usage: int | None) -> tuple[str, dict[str, str]]:
    threshold = Threshold(signal=signal, value=draw.percent(10))
    place = RankedPod(pod=POD, usage=usage, request=64 * MI, exceeds_request=True)
    return node_message(threshold, Observation(available=MI, capacity=100 * MI), place, used)


def test_the_message_names_threshold_available_usage_and_request() -> None:
    used = PodUsage(
        containers=(
            ContainerUsage(name="app", memory_working_set_bytes=65 * MI),
            ContainerUsage(name="mesh", memory_working_set_bytes=1),
            ContainerUsage(name="unmeasured"),
            ContainerUsage(name="app", memory_working_set_bytes=None),
        )
    )
    message, annotations = _message(Signal.MEMORY_AVAILABLE, used, 65 * MI + 1)
    assert message == (
        "The node was low on resource: memory. Threshold quantity: 10Mi, available: 1Mi. "
        "Container app was using 65Mi, request is 64Mi, has larger consumption of memory. "
        "Container mesh was using 1, request is 0, has larger consumption of memory. "
        "Pod web was using 68157441, request is 64Mi."
    )
    assert annotations == {
        "offending_containers": "app,mesh",
        "offending_containers_usage": "65Mi,1",
        "starved_resource": "memory",
    }


def test_a_container_at_its_request_does_not_offend() -> None:
    used = PodUsage(containers=(ContainerUsage(name="app", memory_working_set_bytes=64 * MI),))
    message, annotations = _message(Signal.ALLOCATABLE_MEMORY_AVAILABLE, used, 64 * MI)
    assert "Container" not in message
    assert "" == annotations["offending_containers"]


def test_a_pod_without_statistics_used_an_unknown_amount() -> None:
    message, annotations = _message(Signal.PID_AVAILABLE, None, None)
    assert message.startswith("The node was low on resource: pids. ")
    assert message.endswith("Pod web was using an unknown amount, request is 67108864.")
    assert "pids" == annotations["starved_resource"]


@pytest.mark.parametrize(
    ("rootfs", "logs", "offends"),
    [
        (FilesystemUsage(used_bytes=2), FilesystemUsage(used_bytes=1), True),
        (FilesystemUsage(used_bytes=0), FilesystemUsage(used_bytes=0), False),
        (FilesystemUsage(used_bytes=2), None, False),
        (None, FilesystemUsage(used_bytes=2), False),
        (FilesystemUsage(), FilesystemUsage(used_bytes=2), False),
        (FilesystemUsage(used_bytes=2), FilesystemUsage(), False),
    ],
)
def test_a_containers_disk_is_its_layer_and_its_logs(
    rootfs: FilesystemUsage | None, logs: FilesystemUsage | None, *, offends: bool
) -> None:
    used = PodUsage(containers=(ContainerUsage(name="mesh", rootfs=rootfs, logs=logs),))
    message, _ = _message(Signal.NODEFS_AVAILABLE, used, 3)
    assert offends is ("Container mesh was using 3, request is 0" in message)


def test_inodes_are_counted_not_measured_in_bytes() -> None:
    used = PodUsage(containers=(ContainerUsage(name="mesh", rootfs=FilesystemUsage(inodes_used=5)),))
    message, _ = _message(Signal.NODEFS_INODES_FREE, used, 5000)
    assert "low on resource: inodes." in message
    assert "Pod web was using 5k" in message


def test_a_pod_that_requests_memory_as_a_whole_is_named_as_upstream_names_it() -> None:
    pod = replace(POD, own_memory_request=parse_quantity("65536Ki"))
    threshold = Threshold(signal=Signal.MEMORY_AVAILABLE, value=draw.percent(10))
    place = RankedPod(pod=pod, usage=65 * MI, request=64 * MI, exceeds_request=True)
    used = PodUsage(
        memory_working_set_bytes=65 * MI,
        containers=(ContainerUsage(name="mesh", memory_working_set_bytes=2),),
    )
    message, annotations = node_message(threshold, Observation(available=MI, capacity=100 * MI), place, used)
    assert message == (
        "The node was low on resource: memory. Threshold quantity: 10Mi, available: 1Mi. "
        "Pod web was using 65Mi, request is 64Mi, has larger consumption of memory. "
        "Container mesh was using 2, request is 0, has larger consumption of memory. "
    )
    assert annotations == {
        "offending_pod": "web",
        "offending_pod_usage": "65Mi",
        "offending_containers": "mesh",
        "offending_containers_usage": "2",
        "starved_resource": "memory",
    }
    bare, _ = node_message(threshold, Observation(available=MI, capacity=100 * MI), place, PodUsage())
    assert "larger consumption" not in bare


@pytest.mark.parametrize(
    ("written", "printed"), [("500M", "500M"), ("1Ki", "1Ki"), ("0.5Gi", "512Mi"), ("1024", "1024")]
)
def test_a_threshold_prints_in_its_authors_format(written: str, printed: str) -> None:
    value = ThresholdValue(text=written, amount=parse_quantity(written).amount)
    threshold = Threshold(signal=Signal.PID_AVAILABLE, value=value)
    place = RankedPod(pod=POD, usage=3, request=0, exceeds_request=None)
    message, _ = node_message(threshold, Observation(available=1000, capacity=32768), place, PodUsage())
    assert f"Threshold quantity: {printed}, available: 1k. " in message


def test_a_share_of_process_ids_prints_with_binary_suffixes() -> None:
    threshold = Threshold(signal=Signal.PID_AVAILABLE, value=draw.percent(50))
    place = RankedPod(pod=POD, usage=3, request=0, exceeds_request=None)
    message, _ = node_message(threshold, Observation(available=1, capacity=32768), place, PodUsage())
    assert "Threshold quantity: 16Ki, available: 1. " in message
