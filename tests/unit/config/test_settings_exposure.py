"""Whose hands a configuration with commands may have been in."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from reactor.cli import main
from reactor.config.settings import load_configuration
from reactor.errors import ConfigError

COMMANDS = "reactor: {reclaim: {nodefs: [/bin/true]}}\n"

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root to give files away: run as root")


@pytest.fixture
def config(tmp_path: Path) -> Path:
    directory = tmp_path / "etc"
    directory.mkdir(mode=0o755)
    path = directory / "config.yaml"
    path.write_text(COMMANDS)
    path.chmod(0o644)
    return path


def _spoilt(config: Path, how: str) -> Path:
    """Return the configuration's name once others may write it in one way or another."""
    if how == "file's mode":
        config.chmod(0o664)
    elif how == "file's owner":
        os.chown(config, 12345, -1)
    elif how == "directory's mode":
        config.parent.chmod(0o757)
    elif how == "directory's owner":
        os.chown(config.parent, 12345, -1)
    else:  # by a link in a safe directory
        config.parent.chmod(0o777)
        safe = config.parent.with_name("safe")
        safe.mkdir(mode=0o755)
        (safe / "config.yaml").symlink_to(config)
        return safe / "config.yaml"
    return config


WAYS = ["file's mode", "file's owner", "directory's mode", "directory's owner", "target's directory"]


@pytest.mark.parametrize("how", WAYS)
def test_commands_that_others_may_write_are_refused_with_the_reason(config: Path, how: str) -> None:
    path = _spoilt(config, how)
    with pytest.raises(ConfigError, match=r"reactor\.reclaim: got .*(mode 0|uid 12345)") as told:
        load_configuration(path, may_run_commands=True)
    assert str(config.parent) in str(told.value)


@pytest.mark.parametrize("how", WAYS)
def test_without_commands_it_does_not_matter_who_may_write(config: Path, how: str) -> None:
    config.write_text("{}\n")
    loaded = load_configuration(_spoilt(config, how), may_run_commands=True)
    assert not loaded.settings.reclaim.commands


def test_commands_that_no_other_user_may_write_are_accepted(config: Path) -> None:
    assert load_configuration(config, may_run_commands=True).settings.reclaim.commands
    config.parent.chmod(0o1777)  # as /tmp is: nobody replaces a file of root there
    assert load_configuration(config, may_run_commands=True).settings.reclaim.commands


@pytest.mark.parametrize("key", ["onEviction", "onOOMKill", "onSourceLost"])
def test_commands_for_events_are_refused_likewise(config: Path, key: str) -> None:
    config.write_text(f"reactor: {{{key}: [/bin/true]}}\n")
    load_configuration(config, may_run_commands=True)
    with pytest.raises(ConfigError, match=rf"reactor\.{key}: got .*mode 0"):
        load_configuration(_spoilt(config, "file's mode"), may_run_commands=True)


def test_config_check_warns_of_them_and_stays_at_0(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert 0 == main(["config", "check", str(config)])
    assert "refuses" not in capsys.readouterr().err
    assert 0 == main(["config", "check", str(_spoilt(config, "file's mode"))])
    assert "reactor run refuses it here: reactor.reclaim: got" in capsys.readouterr().err
