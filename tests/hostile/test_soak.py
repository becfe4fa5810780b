"""A short soak: every crossing is judged by an oracle that shares no code with the daemon."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.soak.__main__ import main
from tests.support.daemon import with_leak_at_each_kill
from tests.support.trials import Trial

pytestmark = pytest.mark.suite("soak")


@pytest.mark.usefixtures("tool")
@pytest.mark.parametrize(("crossings", "more"), [(100, []), (30, ["--in-time"])])
def test_no_wrong_victim_and_no_missed_crossing_with_everything_at_once(
    trial: Trial, tmp_path: Path, capsys: pytest.CaptureFixture[str], crossings: int, more: list[str]
) -> None:
    status = main(["--time", "10m", "--crossings", str(crossings), "--output", str(tmp_path), *more])

    printed = capsys.readouterr().out
    (stored,) = tmp_path.glob("soak-*.json")
    figures = json.loads(stored.read_text())
    trial.rounds = figures["crossings"]
    trial.add(
        evictions=figures["kills"],
        wrong_victims=figures["wrong_victims"],
        guard_ends=figures["unexplained_daemon_deaths"],
    )
    assert (status, figures["wrong_victims"], figures["missed_crossings"]) == (0, 0, 0), printed
    assert figures["crossings"] >= crossings
    assert figures["kills"] > 0
    assert figures["unexplained_daemon_deaths"] == 0
    assert figures["left_behind"] == []


@pytest.mark.timeout(600)
@pytest.mark.usefixtures("tool")
def test_a_descriptor_that_leaks_at_each_kill_is_found(
    trial: Trial, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first minute of a daemon's life is no part of what is judged, and one more is."""
    with_leak_at_each_kill(tmp_path, monkeypatch)

    status = main(["--time", "3m", "--output", str(tmp_path)])

    printed = capsys.readouterr().out
    (stored,) = tmp_path.glob("soak-*.json")
    figures = json.loads(stored.read_text())
    trial.rounds = figures["crossings"]
    trial.add(
        evictions=figures["kills"],
        wrong_victims=figures["wrong_victims"],
        guard_ends=figures["unexplained_daemon_deaths"],
    )
    assert (status, figures["wrong_victims"], figures["missed_crossings"]) == (1, 0, 0), printed
    assert not figures["slopes"]["descriptors"]["is_flat"], printed
