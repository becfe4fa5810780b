from __future__ import annotations

import json
import os

import pytest

from reactor.errors import ConfigError
from reactor.guard.start import configuration_to_start_with
from reactor.guard.state import last_good_file

RIGHT = "evictionHard: {memory.available: 123Mi}\n"
NAME = "last-good-config.json"


@pytest.fixture
def state_path(tmp_path):
    return tmp_path / "run" / "state.json"


@pytest.fixture
def config(tmp_path, state_path):
    path = tmp_path / "config.yaml"
    path.write_text(wrong(state_path))
    return path


def wrong(state_path) -> str:
    return f"evictionHard: {{memory.available: 1Xi}}\nreactor: {{stateFile: {state_path}}}\n"


def kept(state_path, config, text=RIGHT):
    file = last_good_file(state_path, config)
    file.show(text)
    file.flush()
    assert file.problem is None
    return state_path.with_name(NAME)


def thresholds(start) -> list[str]:
    return [str(one) for one in start.settings.eviction.thresholds]


def test_a_right_file_is_what_is_started_with(config, state_path):
    kept(state_path, config)
    config.write_text("evictionHard: {memory.available: 5Mi}\n")
    start = configuration_to_start_with(config)
    assert (thresholds(start), start.refused) == (["memory.available<5Mi"], None)


@pytest.mark.parametrize("path", ["absolute", "relative"])
def test_a_wrong_file_is_replaced_by_the_last_good_one_and_the_reason_is_kept(
    config, state_path, path, monkeypatch
):
    file = kept(state_path, config)
    assert file.stat().st_mode & 0o777 == 0o600
    monkeypatch.chdir(config.parent)
    start = configuration_to_start_with(config if path == "absolute" else config.relative_to(config.parent))
    assert thresholds(start) == ["memory.available<123Mi"]
    assert start.refused is not None
    assert "1Xi" in str(start.refused)


@pytest.mark.parametrize("quote", ["", "'", '"'])
def test_a_file_that_is_no_yaml_is_replaced_too_though_its_state_file_stands_nowhere_else(
    config, state_path, quote
):
    kept(state_path, config)
    config.write_text(
        f"evictionHard: {{memory.available: 1Gi\nreactor:\n  stateFile: {quote}{state_path}{quote} # s\n"
    )
    start = configuration_to_start_with(config)
    assert thresholds(start) == ["memory.available<123Mi"]
    assert start.refused is not None


def test_a_fifo_in_the_place_of_the_file_is_refused_and_not_waited_for(config):
    config.unlink()
    os.mkfifo(config)
    with pytest.raises(ConfigError, match="not a regular file"):
        configuration_to_start_with(config)


def test_a_wrong_file_without_a_last_good_one_is_refused(config):
    with pytest.raises(ConfigError, match="1Xi"):
        configuration_to_start_with(config)


def test_a_wrong_file_from_another_path_is_refused(config, state_path, tmp_path):
    kept(state_path, tmp_path / "other.yaml")
    with pytest.raises(ConfigError, match="1Xi"):
        configuration_to_start_with(config)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda file: file.chmod(0o660),
        lambda file: file.chmod(0o602),
        lambda file: os.chown(file, 12345, -1),
        lambda file: file.write_text("{"),
        lambda file: file.write_bytes(b"\xff" * (5 << 20)),
        lambda file: file.write_text(json.dumps({"version": 2, "path": "/x", "text": RIGHT})),
        lambda file: file.write_text(json.dumps([RIGHT])),
        lambda file: file.rename(file.with_name("else")) and file.symlink_to(file.with_name("else")),
        lambda file: (file.unlink(), os.mkfifo(file, 0o600)),
    ],
    ids=["group", "others", "owner", "cut", "huge", "version", "list", "link", "fifo"],
)
def test_a_last_good_one_that_others_may_have_written_or_that_is_none_is_not_used(config, state_path, spoil):
    spoil(kept(state_path, config))
    with pytest.raises(ConfigError, match="1Xi"):
        configuration_to_start_with(config)


def test_a_last_good_one_that_this_version_refuses_is_not_used(config, state_path):
    kept(state_path, config, "evictionHard: {memory.available: 2Xi}\n")
    with pytest.raises(ConfigError, match="1Xi"):
        configuration_to_start_with(config)


def test_a_disk_that_refuses_is_a_problem_and_no_more(config, state_path):
    state_path.parent.write_text("in the way")
    file = last_good_file(state_path, config)
    file.show(RIGHT)
    file.flush()
    assert file.problem is not None
