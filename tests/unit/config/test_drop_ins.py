"""Drop-ins beside the configuration: their order, how they are merged, and whose errors are whose."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reactor.cli import main
from reactor.config.drop_ins import Layers, Named, drop_in_paths
from reactor.config.settings import load_configuration, load_settings, settings_from_text
from reactor.errors import ConfigError
from reactor.guard.last_good import LastGoodFile
from reactor.guard.start import configuration_to_start_with

_JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.text(max_size=3)),
    lambda inner: st.one_of(st.lists(inner, max_size=2), st.dictionaries(st.sampled_from("abc"), inner)),
    max_leaves=10,
)


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "etc" / "config.yaml"
    path.parent.mkdir(mode=0o755)
    path.write_text("evictionHard: {memory.available: 1Gi}\n")
    return path


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    path = tmp_path / "config.d"
    path.mkdir(mode=0o755)
    return path


def _thresholds(config: Path, directory: Path) -> list[str]:
    eviction = load_settings(config, directory).eviction
    return [str(threshold) for threshold in eviction.thresholds if threshold.is_hard]


def test_drop_ins_go_by_name_and_those_of_a_subdirectory_in_its_place(directory: Path) -> None:
    for name in ("20-b.conf", "10-a.conf", "15/z.conf", "30.yaml", "Z.conf", ".conf", "40.conf~"):
        (directory / name).parent.mkdir(exist_ok=True)
        (directory / name).touch()
    (directory / "link").symlink_to(directory / "15")
    (directory / "50-link.conf").symlink_to(directory / "30.yaml")
    names = [str(path.relative_to(directory)) for path in drop_in_paths(directory)]
    assert [".conf", "10-a.conf", "15/z.conf", "20-b.conf", "50-link.conf", "Z.conf"] == names


def test_a_later_drop_in_wins_key_by_key(config: Path, directory: Path) -> None:
    (directory / "10.conf").write_text("evictionHard: {memory.available: 2Gi, pid.available: 5%}")
    (directory / "20.conf").write_text("evictionHard: {memory.available: 3Gi}\nreactor: {dryRun: true}")
    assert ["memory.available<3Gi", "pid.available<5%"] == _thresholds(config, directory)
    assert load_settings(config, directory).dry_run


def test_lists_are_replaced_as_a_whole(config: Path, directory: Path) -> None:
    config.write_text("reactor: {pods: {parents: [/a, /b]}}")
    (directory / "10.conf").write_text("reactor: {pods: {parents: [/c]}}")
    assert ("/c",) == load_settings(config, directory).pod_parents


def test_null_takes_back_what_an_earlier_drop_in_said_but_not_what_the_file_says(
    config: Path, directory: Path
) -> None:
    (directory / "10.conf").write_text("evictionHard: {memory.available: 2Gi, pid.available: 5%}")
    (directory / "20.conf").write_text("evictionHard: {memory.available: null}")
    assert ["memory.available<1Gi", "pid.available<5%"] == _thresholds(config, directory)


def test_a_drop_ins_thresholds_join_the_defaults_where_the_file_has_none(
    config: Path, directory: Path
) -> None:
    config.write_text("reactor: {kubernetes: {}}")
    (directory / "10.conf").write_text("evictionHard: {memory.available: 2Gi}")
    found = _thresholds(config, directory)
    assert "memory.available<2Gi" in found
    assert {"nodefs.available<10%", "imagefs.available<15%"} <= set(found)
    config.write_text("evictionHard: {}")
    assert ["memory.available<2Gi"] == _thresholds(config, directory)


def test_an_empty_directory_and_a_drop_in_with_nothing_in_it_change_nothing(
    config: Path, directory: Path
) -> None:
    before = load_settings(config)
    assert before == load_settings(config, directory)
    (directory / "10.conf").write_text("{}")
    assert before == load_settings(config, directory)


def test_every_problem_names_the_file_that_the_value_is_from(config: Path, directory: Path) -> None:
    config.write_text("evictionHard: {nodefs.available: soon}\nevictionSoft: {memory.available: 2Gi}")
    first, second = directory / "10.conf", directory / "20.conf"
    first.write_text("imageGCHighThresholdPercent: 500\nevictionHard: {pid.available: often}")
    second.write_text("evictionHard: {pid.available: never}\nreactor: {dryRun: 7, pods: {parents: [a]}}")
    with pytest.raises(ConfigError) as refused:
        load_settings(config, directory)
    paths = {problem.path for problem in refused.value.problems}
    assert {
        f'{config}: evictionHard["nodefs.available"]',
        f'{config}: evictionSoft["memory.available"]',
        f"{first}: imageGCHighThresholdPercent",
        f'{second}: evictionHard["pid.available"]',
        f"{second}: reactor.dryRun",
        f"{second}: reactor.pods.parents[0]",
    } == paths


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("", ": got 0 documents"),
        ("[1]", ""),
        ("a: 1\na: 2", ": a"),
        ("a: [", ":1:"),
        ("kind: Pod", ": kind"),
    ],
)
def test_a_drop_in_that_is_no_configuration_is_refused_by_its_name(
    config: Path, directory: Path, text: str, where: str
) -> None:
    (directory / "10.conf").write_text(text)
    with pytest.raises(ConfigError) as refused:
        load_settings(config, directory)
    assert str(refused.value).startswith(f"{directory / '10.conf'}{where}")


def test_a_directory_that_is_not_there_and_a_drop_in_that_can_not_be_read_are_refused(
    config: Path, directory: Path
) -> None:
    with pytest.raises(ConfigError, match=r"nowhere: got No such file"):
        load_settings(config, directory / "nowhere")
    (directory / "10.conf").symlink_to(directory / "gone")
    with pytest.raises(ConfigError, match=r"10\.conf: got No such file"):
        load_settings(config, directory)
    (directory / "10.conf").unlink()
    (directory / "10.conf").write_bytes(b"\xff")
    with pytest.raises(ConfigError, match=r"10\.conf: got .*utf-8"):
        load_settings(config, directory)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to give files away: run as root")
@pytest.mark.parametrize("how", ["file's mode", "file's owner", "directory's mode", "subdirectory"])
def test_commands_are_refused_where_others_may_write_a_drop_in(
    config: Path, directory: Path, how: str
) -> None:
    config.write_text("reactor: {reclaim: {nodefs: [/bin/true]}}")
    sub = directory / "sub"
    sub.mkdir(mode=0o755)
    drop_in = sub / "10.conf"
    drop_in.write_text("{}")
    drop_in.chmod(0o644)
    assert load_configuration(config, directory, may_run_commands=True).settings.reclaim.commands
    if how == "file's mode":
        drop_in.chmod(0o666)
    elif how == "file's owner":
        os.chown(drop_in, 12345, -1)
    else:
        (directory if how == "directory's mode" else sub).chmod(0o777)
    with pytest.raises(ConfigError, match=r"reactor\.reclaim: got .*(mode 0|uid 12345)") as refused:
        load_configuration(config, directory, may_run_commands=True)
    assert str(directory) in str(refused.value)


def test_the_text_of_all_is_one_configuration_again(config: Path, directory: Path) -> None:
    (directory / "10.conf").write_text("evictionSoft: {memory.available: 2Gi}")
    (directory / "20.conf").write_text("evictionSoftGracePeriod: {memory.available: 1m30s}")
    found = load_configuration(config, directory)
    assert found.settings == settings_from_text(found.text, "kept")


def test_the_last_good_one_is_found_where_a_drop_in_has_become_wrong(
    config: Path, directory: Path, tmp_path: Path
) -> None:
    drop_in = directory / "10.conf"
    state = tmp_path / "run" / "state.json"
    state.parent.mkdir()
    (directory / "00.conf").write_text(json.dumps({"reactor": {"stateFile": str(state)}}))
    drop_in.write_text("evictionHard: {memory.available: 2Gi}")
    good = configuration_to_start_with(config, directory)
    assert good.refused is None
    kept = LastGoodFile(state, config)
    kept.show(good.text)
    kept.flush()
    drop_in.write_text("evictionHard: {memory.available: soon}")
    start = configuration_to_start_with(config, directory)
    assert f"{drop_in}: evictionHard" in str(start.refused)
    assert good.settings == start.settings


def test_config_check_takes_drop_ins(
    config: Path, directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (directory / "10.conf").write_text("evictionHard: {memory.available: 3Gi}")
    assert main(["config", "check", str(config), "--config-dir", str(directory)]) == 0
    assert "memory.available<3Gi" in capsys.readouterr().out
    (directory / "10.conf").write_text("evictionHard: {memory.available: soon}")
    assert main(["config", "check", str(config), "--config-dir", str(directory)]) == 2
    assert f"{directory / '10.conf'}: evictionHard" in capsys.readouterr().err


@given(
    st.dictionaries(st.sampled_from("abc"), _JSON), st.lists(st.dictionaries(st.sampled_from("abc"), _JSON))
)
def test_merging_never_fails_and_drop_ins_say_the_same_twice(main: object, drop_ins: list[object]) -> None:
    named = [Named(f"{place}", one) for place, one in enumerate(drop_ins)]
    once = Layers(Named("main", main), named).document
    assert once == Layers(Named("main", once), named).document or "evictionHard" in once
