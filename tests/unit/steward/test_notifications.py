"""`reactor notify --test`: each way that is configured has one event, and says what went wrong."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from reactor.cli import main


@pytest.fixture
def config(tmp_path: Path) -> Path:
    return tmp_path / "config.yaml"


def write(config: Path, section: dict[str, object]) -> list[str]:
    config.write_text(json.dumps({"reactor": {"journald": False, **section}}))
    return ["notify", "--test", "--config", str(config)]


def keeping(path: Path) -> list[str]:
    return ["/bin/sh", "-c", f"cat >> {path}; echo >> {path}"]


def test_each_command_gets_one_event_that_is_marked_as_a_test(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told, others = tmp_path / "told", tmp_path / "others"
    section = {"onEviction": keeping(told), "onOOMKill": [keeping(told), keeping(others)]}
    assert 0 == main(write(config, section))
    assert 2 == capsys.readouterr().out.count(": sent")
    for path in (told, others):
        event = json.loads(path.read_text())
        assert ("test", True) == (event["event"], event["test"])
        assert "no pod was evicted" in event["text"]


def test_what_is_not_sent_says_why_and_fails(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    section = {
        "onEviction": ["/bin/false"],
        "webhook": {"url": "http://127.0.0.1:1/x"},
        "notifyTimeout": "5s",
    }
    assert 1 == main(write(config, section))
    told = capsys.readouterr().err
    assert "command /bin/false: " in told
    assert "webhook: " in told


def test_without_a_way_to_notify_it_says_so_and_without_the_option_what_it_takes(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert 1 == main(write(config, {}))
    assert "no webhook and no command is configured" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        main(["notify"])
    assert "--test" in capsys.readouterr().err
