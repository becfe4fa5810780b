"""What pods use of memory and processes, and what they take of filesystems, put together."""

from __future__ import annotations

from reactor.model.pods import ContainerUsage, FilesystemUsage, Pod, PodUsage
from reactor.model.signals import Resource
from reactor.observe.storage import with_storage


def test_storage_joins_memory_and_processes() -> None:
    taken = PodUsage(ephemeral_storage_bytes=5)
    used = PodUsage(memory_working_set_bytes=1, process_count=2)
    pods = [Pod(name=name, namespace="n", uid=name) for name in "abc"]
    both = with_storage({"a": used, "c": used, "d": used}, {"a": taken, "b": taken}, pods)
    assert {
        "a": used._replace(ephemeral_storage_bytes=5),
        "b": taken._replace(unreadable=frozenset({Resource.MEMORY, Resource.PIDS})),
        "c": used._replace(unreadable=frozenset({Resource.EPHEMERAL_STORAGE, Resource.INODES})),
        "d": used,
    } == both


def test_what_a_container_uses_of_memory_and_what_it_takes_of_disks_come_together() -> None:
    taken = FilesystemUsage(used_bytes=5)
    both = with_storage(
        {"u": PodUsage(containers=(ContainerUsage(name="a", memory_working_set_bytes=1),))},
        {
            "u": PodUsage(
                containers=(ContainerUsage(name="b", logs=taken), ContainerUsage(name="a", rootfs=taken))
            )
        },
        [Pod(name="u", namespace="n", uid="u")],
    )
    assert {
        "a": ContainerUsage(name="a", memory_working_set_bytes=1, rootfs=taken),
        "b": ContainerUsage(name="b", logs=taken),
    } == {one.name: one for one in both["u"].containers}
