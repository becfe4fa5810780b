from __future__ import annotations

from pathlib import Path

from reactor.cluster.kubelet_soft import soft_resources
from reactor.model.signals import Resource

_SOFT = """
evictionHard: {memory.available: 100Mi}
evictionSoft: {nodefs.available: 15%, nodefs.inodesFree: 10%}
evictionSoftGracePeriod: {nodefs.available: 1m, nodefs.inodesFree: 1m}
"""


def test_what_the_kubelet_evicts_softly_for_is_in_its_configuration(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(_SOFT)
    assert {Resource.EPHEMERAL_STORAGE, Resource.INODES} == soft_resources(str(path))


def test_a_kubelet_whose_configuration_cannot_be_read_is_not_known_to_evict_softly(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    assert frozenset() == soft_resources(str(path))
    for text in ("", "evictionSoft: {memory.available: 1Gi}", "[", "\x00"):
        path.write_text(text)
        assert frozenset() == soft_resources(str(path))
    path.write_bytes(b"\xff")
    assert frozenset() == soft_resources(str(path))
