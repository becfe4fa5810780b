"""Who runs a race, what they run, and the reasons for not starting one."""

import json
from pathlib import Path

import pytest

from bench.race.command import Wanted, race
from bench.race.contestants import KERNEL, Programs, Role, limits, nohang_config, oomd_config, peers, reactors
from bench.race.heat import DEFAULT, FULL, Course
from reactor.errors import RefusedError
from reactor.kernel.cgroup import CgroupTree
from reactor.kernel.cgroup_directory import CgroupVersion

SHIPPED = "# fill_rate\nmin_sleep = 0.1\nmax_sleep = 3\nhard_threshold_min_mem = 2 %\n"


@pytest.fixture
def programs(tmp_path: Path) -> Programs:
    for name in ("usr/bin/earlyoom", "usr/bin/oomd", "usr/sbin/nohang"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    return Programs(directory=tmp_path)


def test_courses_have_names_of_their_own_and_the_default_are_some_of_them() -> None:
    names = [course.name for course in FULL]
    assert len(names) == len(set(names)) == 32
    assert {course.name for course in DEFAULT} <= set(names)
    assert "ramp-100-4-allocators-busy-cache" in names


def test_several_allocators_share_the_pace() -> None:
    assert 25 << 20 == Course(pace="100", allocators=4).rate_bytes
    assert 0 == Course(pace="max", allocators=4).rate_bytes
    assert 0 == Course(pace="step").prefill_bytes


def test_a_peer_that_is_missing_is_named_and_left_out(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("shutil.which", lambda *_, **__: None)
    taken, left_out = peers(CgroupVersion.V2, Programs())
    assert [] == taken
    assert {"earlyoom", "nohang", "oomd", "systemd-oomd"} == set(left_out)
    assert "make race fetches" in left_out["earlyoom"]


def test_peers_are_taken_from_where_their_packages_are_unpacked(programs: Programs) -> None:
    taken, left_out = peers(CgroupVersion.V2, programs)
    assert ["earlyoom", "nohang", "nohang-10ms", "oomd"] == [peer.name for peer in taken]
    assert {Role.PEER} == {peer.role for peer in taken}
    assert {"systemd-oomd"} == set(left_out)


def test_oomd_is_left_out_where_the_memory_is_on_cgroup_v1(programs: Programs) -> None:
    taken, left_out = peers(CgroupVersion.V1, programs)
    assert "oomd" not in [peer.name for peer in taken]
    assert "cgroup v2" in left_out["oomd"]


def test_nohang_is_told_the_threshold_and_keeps_the_rest_of_its_configuration() -> None:
    told = nohang_config(SHIPPED, {"hard_threshold_min_mem": "500 M", "min_sleep": "0.01"})
    assert ["# fill_rate", "min_sleep = 0.01", "max_sleep = 3", "hard_threshold_min_mem = 500 M"] == (
        told.splitlines()
    )


def test_a_nohang_with_other_keys_is_refused_and_the_key_named() -> None:
    with pytest.raises(RefusedError, match="'soft_threshold_min_mem'"):
        nohang_config(SHIPPED, {"soft_threshold_min_mem": "1 M"})


def test_oomds_ruleset_names_nothing_but_the_node() -> None:
    named = [part for part in json.dumps(oomd_config("reactor-race-1")).split('"') if "race" in part]
    assert ["reactor-race-1", "reactor-race-1/*"] == named


def test_the_kernel_alone_is_no_measure_where_there_is_page_cache() -> None:
    kernel = next(one for one in limits(CgroupVersion.V1) if one.name == KERNEL)
    assert kernel.runs(Course(pace="max"))
    assert not kernel.runs(Course(pace="max", has_cache=True))


def test_pressure_alone_is_no_contestant_and_the_reason_is_reported() -> None:
    taken, left_out = reactors(CgroupVersion.V1, everybody=True)
    names = ["reactor-memcg-eventfd", "reactor-memcg-eventfd-black-box"]
    assert names == [one.name for one in taken]
    assert "reclaim" in left_out["reactor-psi"]


@pytest.mark.parametrize(
    ("wanted", "problem"),
    [
        ({"only": ("earlyom",)}, "--only: 'earlyom' is none of"),
        ({"skip": ("c_floor",)}, "--skip: 'c_floor' is none of"),
        ({"only": ("c-floor",), "skip": ("c-floor",)}, "--only, --skip: no contestant is left\n"),
        ({"only": ("oomd",)}, "no contestant is left; oomd: "),
        ({"courses": ("steep",)}, "'steep' is none of step, ramp-100"),
    ],
)
def test_a_name_that_is_none_is_refused_with_those_that_are(
    wanted: dict[str, tuple[str, ...]],
    problem: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    tree = CgroupTree(version=CgroupVersion.V1, memory_root=tmp_path)
    monkeypatch.setattr("bench.race.command._prepared", lambda: (tree, tmp_path))
    assert 2 == race(Wanted(results=tmp_path, rounds=1, heats_a_turn=1, **wanted))
    assert problem in capsys.readouterr().err


def test_results_that_can_not_be_stored_are_not_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tree = CgroupTree(version=CgroupVersion.V1, memory_root=tmp_path)
    monkeypatch.setattr("bench.race.command._prepared", lambda: (tree, tmp_path))
    (tmp_path / "file").touch()
    assert 2 == race(Wanted(results=tmp_path / "file", rounds=1, heats_a_turn=1, only=("c-floor",)))
    assert f"reactor bench race: {tmp_path}/file: File exists" in capsys.readouterr().err


def test_without_root_it_says_so(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    assert 2 == race(Wanted(results=Path("none"), rounds=1, heats_a_turn=1))
    assert "needs root" in capsys.readouterr().err


def test_on_a_machine_without_room_it_refuses_and_says_why(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse() -> None:
        raise RefusedError("the machine has 1000 MiB of memory available")

    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setattr("bench.race.command.check_machine", refuse)
    assert 2 == race(Wanted(results=Path("none"), rounds=1, heats_a_turn=1))
    assert "1000 MiB of memory available" in capsys.readouterr().err
