from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from reactor.cli import main
from reactor.config.documents import Layers, Named, drop_in_paths, load_document, load_documents
from reactor.config.pod import pod_from_document
from reactor.config.settings import load_configuration, load_settings, settings_from_text
from reactor.errors import ConfigError, Problem
from reactor.guard.start import configuration_to_start_with
from reactor.guard.state import last_good_file

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)

_JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.text(max_size=3)),
    lambda inner: st.one_of(st.lists(inner, max_size=2), st.dictionaries(st.sampled_from("abc"), inner)),
    max_leaves=10,
)


def _told(read: Callable[[], object]) -> tuple[Problem, ...]:
    """Return what a reader complains of; any other exception than ConfigError fails the test."""
    try:
        read()
    except ConfigError as error:
        return error.problems
    return ()


def _problems(text: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load_document(text, "file")
    return [problem.path for problem in caught.value.problems]


@given(JSON)
def test_json_is_read_as_it_was_written(value: object) -> None:
    assert {"a": value} == load_document(json.dumps({"a": value}), "file")


@pytest.mark.parametrize(
    "form", ["evictionHard: {memory.available: %s}", '{"evictionHard": {"memory.available": %s}}']
)
@pytest.mark.parametrize("amount", ["1e9", "1.5E9", "1000000.50"])
def test_a_number_that_is_not_quoted_is_a_threshold_as_it_was_written(form: str, amount: str) -> None:
    settings = settings_from_text(form % amount, "file")
    assert f"memory.available<{amount}" == str(settings.eviction.thresholds[0])


@pytest.mark.parametrize("uid", ["7120", "7e20", "71E20", "1.50"])
def test_a_uid_that_yaml_takes_for_a_number_is_text_as_it_was_written(uid: str) -> None:
    text = f"{{metadata: {{name: {uid}, uid: {uid}}}}}"
    pod = pod_from_document(load_document(text, "file"))
    assert (uid, uid) == (pod.name, pod.uid)


@pytest.mark.parametrize(("text", "value"), [("1_000.5", 1000.5), (".inf", float("inf")), ("-.5", -0.5)])
def test_a_number_of_any_form_that_yaml_has_is_a_number(text: str, value: float) -> None:
    assert value == load_document(f"a: {text}", "file")["a"]


@pytest.mark.parametrize("text", ["2026-01-31", "2026-01-31T12:00:00Z", "2026-01-31 12:00:00 +01:00"])
def test_a_date_that_is_not_quoted_is_text(text: str) -> None:
    assert {"name": text} == load_document(f"name: {text}", "x")


@given(st.text(alphabet=st.characters(codec="utf-8")))
@example("a: &a [*a]")
@example("[" * 1000)  # as deep as any recursion goes; what follows costs the square of its length
@example("{" * 1000)
@example("- " * 3000)
@example('{"a": 1' + "0" * 5000 + "}")
@example("a: 1" + "0" * 5000)
@example("!!int x")
@example("!!timestamp 9999-99-99")
@example("{? [1]: 2}")
@example("? {a: 1}\n: 2")
@example("%YAML 9.9\n---\na")
@example("\ufeff{}")
@example("a: !!binary x")
@example("<<: 1")
@example("!!omap [a]")
@example("!!set {a: 1}")
def test_any_text_is_a_list_of_documents_or_a_config_error(text: str) -> None:
    assert all(
        problem.path and problem.got and problem.accepted
        for problem in _told(lambda: load_documents(text, "file"))
    )


@given(st.binary())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_bytes_are_settings_or_a_config_error(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "config.yaml"
    path.write_bytes(content)
    assert all(
        problem.path and problem.got and problem.accepted for problem in _told(lambda: load_settings(path))
    )


@given(JSON)
@example([])
@example({"kind": []})
@example({"reactor": {"metrics": []}})
@example({"evictionSoft": {"memory.available": []}})
@example({"evictionHard": {"memory.available": {"a": 1}}})
@example({"reactor": {"pods": {"parents": [1, None]}}})
def test_any_document_is_settings_or_a_config_error(value: object) -> None:
    assert all(problem.path for problem in _told(lambda: settings_from_text(json.dumps(value), "file")))


@pytest.mark.parametrize(
    "text",
    [
        'a: 1\nb: {c.d: 1, "c.d": 2}\nl: [{x: 1, x: 2}, {x: 3}]\na: 3\na: 4\n',
        '{"a": 1, "b": {"c.d": 1, "c.d": 2}, "l": [{"x": 1, "x": 2}, {"x": 3}], "a": 3, "a": 4}',
    ],
    ids=["yaml", "json"],
)
def test_every_key_given_twice_is_reported_once_by_its_path(text: str) -> None:
    assert ["a", 'b["c.d"]', "l[0].x"] == sorted(_problems(text))


def test_a_merged_key_may_be_given_again() -> None:
    assert {"a": {"x": 1}, "b": {"x": 2}} == load_document("a: &a {x: 1}\nb: {<<: *a, x: 2}\n", "file")


def test_keys_that_are_the_same_only_once_read_are_reported_by_line() -> None:
    assert ["file:2:1"] == _problems("1: a\n1.0: b\n")


@pytest.mark.parametrize("value", ["*nowhere", "!!bool maybe", "!!int many"])
def test_text_that_cannot_be_read_is_reported_by_line_and_column(value: str) -> None:
    assert ["file:2:4"] == _problems(f"a: 1\nb: {value}\n")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[" * 5000, "file:1:101: got more than 100 levels; accepted: lists and mappings nested less"),
        ("- " * 5000, "file:1:201: got more than 100 levels; accepted: lists and mappings nested less"),
        (
            "a0: &a0 {b: 1, c: 2}\n"
            + "".join(f"a{i + 1}: &a{i + 1} {{<<: [{', '.join([f'*a{i}'] * 4)}]}}\n" for i in range(30)),
            "file:9:10: got merges (<<) of more than 100000 keys; accepted: YAML 1.2 or JSON",
        ),
        (
            "a: x\n" * (2 << 20),
            "file: got 10240 KiB; accepted: YAML of up to 1024 KiB, or JSON, which is read a hundred ",
        ),
        ('{"a": [' + "1," * (5 << 20), "file:1:10485768: got Expecting value; accepted: JSON"),
        (
            "a0: &a0 [x]\n"
            + "".join(f"a{i + 1}: &a{i + 1} [{', '.join([f'*a{i}'] * 9)}]\n" for i in range(30)),
            "file: got aliases (*) for more than 5000000 values; accepted: fewer of them",
        ),
        ("a: 1" + "0" * 5000, "file:1:4: got Exceeds the limit (4300 digits)"),
        ("a: !" + "b" * 1000 + " c", "file:1:4: got could not determine a constructor for the tag '!bbb"),
        ("a: !%1b c", "file:1:4: got could not determine a constructor for the tag '!\\x1b'; accepted"),
    ],
    ids=["flow", "block", "merges", "size", "half of a recording", "aliases", "number", "long tag", "escape"],
)
def test_text_that_would_take_all_time_or_memory_is_refused_in_one_short_line(
    text: str, expected: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        load_document(text, "file")
    assert str(caught.value).startswith(expected)
    assert len(str(caught.value)) < 400


def test_json_that_goes_wrong_after_a_key_given_twice_is_reported_for_what_is_wrong() -> None:
    assert 1 == len(_problems('{"a": {"x": 1, "x": 2}, ]'))


@pytest.mark.parametrize("text", ["", "---\n---\n", "a: 1\n---\nb: 2\n"])
def test_one_document_is_neither_none_nor_two(text: str) -> None:
    assert ["file"] == _problems(text)


def test_a_file_that_is_not_there_or_not_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    for name in ("missing", "binary", "."):
        with pytest.raises(ConfigError) as caught:
            load_settings(tmp_path / name)
        assert [str(tmp_path / name)] == [problem.path for problem in caught.value.problems]


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


@pytest.mark.parametrize(
    ("text", "keys"),
    [
        ("evictionHard: {memory.available: null}", ['evictionHard["memory.available"]']),
        ("evictionHard: {nodefs.available: , pid.available: }", ['evictionHard["nodefs.available"]']),
        ("reactor: {dryRun: null, pods: {avoid: null}}", ["reactor.dryRun", "reactor.pods.avoid"]),
        ("evictionSoft:\nreactor: {socket: /s}", ["evictionSoft"]),
        ("evictionHard: {pid.available: null}", []),
    ],
)
def test_a_null_that_removes_nothing_is_named_with_its_file(
    config: Path, directory: Path, text: str, keys: list[str]
) -> None:
    (directory / "10.conf").write_text("evictionHard: {pid.available: 5%}")
    (directory / "20.conf").write_text(text)

    warnings = load_settings(config, directory).warnings

    why = "null has no effect: no earlier drop-in has it"
    assert [f"{directory / '20.conf'}: {key}: {why}" for key in keys] == [
        one for one in warnings if "null" in one
    ]


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
        ("", ": got an empty file"),
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
    kept = last_good_file(state, config)
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
