"""What `config check` says of notifications that can't be given here."""

from __future__ import annotations

from pathlib import Path

import pytest

from reactor.cli import main


@pytest.fixture
def config(tmp_path: Path) -> Path:
    return tmp_path / "config.yaml"


def _told(config: Path, capsys: pytest.CaptureFixture[str]) -> str:
    assert 0 == main(["config", "check", str(config)])
    return capsys.readouterr().err


def test_commands_that_can_not_be_run_are_named_by_their_key(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plain = config.with_name("plain")
    plain.write_text("#!/bin/sh\n")
    plain.chmod(0o644)
    config.write_text(
        f"reactor: {{onEviction: [[/bin/true], [/nowhere/x]], onOOMKill: [{plain}], onSourceLost: [/tmp]}}\n"
    )
    told = _told(config, capsys)

    assert "reactor.onEviction: on this machine /nowhere/x: No such file or directory" in told
    assert f"reactor.onOOMKill: on this machine {plain} has mode 0644: it can't be executed" in told
    assert "reactor.onSourceLost: on this machine /tmp is not a regular file" in told


def test_files_of_a_webhook_that_can_not_be_used_or_are_open_to_all_are_named(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    token, authority = config.with_name("token"), config.with_name("ca")
    token.write_text("secret\n")
    token.chmod(0o644)
    authority.write_text("nothing\n")
    files = f"tokenFile: {token}, caFile: {authority}"
    config.write_text(f"reactor: {{webhook: {{urlFile: /nowhere/url, {files}}}}}\n")
    told = _told(config, capsys)

    assert "reactor.webhook.urlFile: on this machine /nowhere/url: No such file or directory" in told
    assert f"reactor.webhook.tokenFile: on this machine {token} has mode 0644: every user may read it" in told
    assert f"reactor.webhook.caFile: on this machine {authority}: " in told
    assert "secret" not in told


def test_commands_that_can_be_run_are_not_mentioned(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config.write_text("reactor: {onEviction: [/bin/true, -x]}\n")
    assert "onEviction" not in _told(config, capsys)


def test_a_desktop_without_a_system_bus_is_named(
    config: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    bus = config.with_name("bus")
    monkeypatch.setenv("DBUS_SYSTEM_BUS_ADDRESS", f"unix:path={bus}")
    config.write_text("reactor: {desktop: true}\n")
    assert f"reactor.desktop: on this machine no system bus at {bus}" in _told(config, capsys)
    bus.touch()
    assert "reactor.desktop" not in _told(config, capsys)
