from __future__ import annotations

import pytest

from reactor.doctor.doctor import Place, each_once, fitting, this_place
from reactor.kernel import features
from reactor.kernel.features import Feature

REMEDIES = {name: remedy for name, remedy, _ in features._PROBES}


def test_the_kubelet_shows_every_container_where_the_api_server_is(tmp_path) -> None:
    assert this_place(tmp_path, {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}) is Place.POD
    assert this_place(tmp_path, {"HOME": "/"}) is Place.WITHOUT_SYSTEMD


def test_a_container_and_a_node_with_systemd_are_distinguished(tmp_path) -> None:
    (tmp_path / "run/systemd/system").mkdir(parents=True)
    assert this_place(tmp_path, {}) is Place.NODE
    assert this_place(tmp_path, {"container": "lxc"}) is Place.CONTAINER
    for file in (".dockerenv", "run/.containerenv"):
        (tmp_path / file).touch()
        assert this_place(tmp_path, {}) is Place.CONTAINER
        (tmp_path / file).unlink()


@pytest.mark.parametrize("place", [place for place in Place if place is not Place.NODE])
@pytest.mark.parametrize("name", REMEDIES)
def test_no_remedy_away_from_a_unit_speaks_of_a_unit_to_be_given_anything(name: str, place: Place) -> None:
    for remedy in (features._ROOT, REMEDIES[name]):
        found = fitting(Feature(name=name, available=False, detail="", remedy=remedy), place)
        assert "the unit" not in found.remedy
        assert "Delegate=" not in found.remedy
        assert bool(found.remedy) == bool(remedy)
        if place is not Place.WITHOUT_SYSTEMD:
            assert not found.remedy.startswith("boot ")


@pytest.mark.parametrize("place", Place)
def test_what_is_there_needs_no_remedy(place: Place) -> None:
    there = Feature(name="realtime", available=True, detail="granted")
    assert there == fitting(there, place)


def test_a_pod_that_may_not_be_real_time_is_shown_what_can_be_had() -> None:
    refused = Feature(name="realtime", available=False, detail="", remedy=REMEDIES["realtime"])
    remedy = fitting(refused, Place.POD).remedy
    for way in ("SYS_NICE", "as a unit of the node", "rt_group_sched=0", "cpu.rt_runtime_us", "fifoPriority"):
        assert way in remedy


def test_each_remedy_is_reported_once_with_all_that_it_is_for() -> None:
    def feature(name: str, remedy: str, *, available: bool = False) -> Feature:
        return Feature(name=name, available=available, detail="", remedy=remedy)

    told = each_once(
        [feature("a", "x"), feature("b", "y"), feature("c", "x"), feature("d", "x", available=True)]
    )
    assert {"x": ("a", "c"), "y": ("b",)} == told
