import json
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from reactor.config.documents import load_document, load_documents
from reactor.config.settings import load_settings, settings_from_text
from reactor.errors import ConfigError, Problem

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
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


@given(st.text(alphabet=st.characters(codec="utf-8")))
@example("a: &a [*a]")
@example("[" * 5000)
@example("{" * 5000)
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
def test_every_key_given_twice_is_told_once_by_its_path(text: str) -> None:
    assert ["a", 'b["c.d"]', "l[0].x"] == sorted(_problems(text))


def test_a_merged_key_may_be_given_again() -> None:
    assert {"a": {"x": 1}, "b": {"x": 2}} == load_document("a: &a {x: 1}\nb: {<<: *a, x: 2}\n", "file")


def test_keys_that_are_the_same_only_once_read_are_told_by_line() -> None:
    assert ["file:2:1"] == _problems("1: a\n1.0: b\n")


def test_text_that_cannot_be_read_is_told_by_line_and_column() -> None:
    assert ["file:2:4"] == _problems("a: 1\nb: *nowhere\n")


def test_json_that_goes_wrong_after_a_key_given_twice_is_told_for_what_is_wrong() -> None:
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
