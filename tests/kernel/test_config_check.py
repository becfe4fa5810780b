"""`reactor config check` on what this machine has."""

from __future__ import annotations

from pathlib import Path

import pytest

from reactor.cli import main
from reactor.kernel.cgroup_files import CgroupVersion
from tests.support.this_machine import cgroup_tree


def test_a_brake_that_this_machine_can_not_have_is_warned_of_and_no_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "config.yaml"
    config.write_text("reactor: {nodeCgroup: /node, brake: hard}\n")

    assert main(["config", "check", str(config)]) == 0

    told = "reactor.brake: has no effect on this machine" in capsys.readouterr().err
    assert told is (cgroup_tree().version is CgroupVersion.V1)


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
