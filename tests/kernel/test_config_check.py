"""`reactor config check` on what this machine has."""

from __future__ import annotations

from pathlib import Path

import pytest

from reactor.cli import main
from tests.support.this_machine import cgroup_tree


@pytest.mark.parametrize("signal", ["memory.available", "pid.available"])
def test_a_threshold_that_is_absurd_on_this_machine_is_warned_of_and_no_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], signal: str
) -> None:
    cgroup_tree()
    config = tmp_path / "config.yaml"
    config.write_text(f"evictionHard: {{{signal}: 8Ei}}\n")

    assert main(["config", "check", str(config)]) == 0

    told = capsys.readouterr().err
    assert f"threshold {signal}<8Ei: on this machine ignored: it is not below" in told
