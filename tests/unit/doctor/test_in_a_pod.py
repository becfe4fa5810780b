from __future__ import annotations

import pytest

from reactor.doctor.in_a_pod import is_in_a_pod, with_remedy_in_a_pod
from reactor.kernel import features
from reactor.kernel.features import Feature


def test_the_kubelet_tells_every_container_where_the_api_server_is() -> None:
    assert is_in_a_pod({"KUBERNETES_SERVICE_HOST": "10.0.0.1"})
    assert not is_in_a_pod({"HOME": "/"})


@pytest.mark.parametrize("name", [name for name, _, _ in features._PROBES])
def test_no_remedy_in_a_pod_speaks_of_a_unit_to_be_given_anything(name: str) -> None:
    remedies = {one: remedy for one, remedy, _ in features._PROBES}
    for remedy in (features._ROOT, remedies[name]):
        _check(name, remedy)


def _check(name: str, remedy: str) -> None:
    found = with_remedy_in_a_pod(Feature(name=name, available=False, detail="", remedy=remedy))
    assert "the unit" not in found.remedy
    assert bool(found.remedy) == bool(remedy)


def test_what_is_there_needs_no_remedy() -> None:
    there = Feature(name="realtime", available=True, detail="granted")
    assert there == with_remedy_in_a_pod(there)
