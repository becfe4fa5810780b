"""How the image is built, but for its content."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.waiting import eventually

CHECKOUT = Path(__file__).resolve().parents[3]


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, as the build does: sudo -E .venv/bin/pytest")
def test_a_build_that_is_terminated_leaves_nothing_behind(tmp_path: Path) -> None:
    programs, scratch, begun = (tmp_path / name for name in ("bin", "scratch", "begun"))
    programs.mkdir()
    scratch.mkdir()
    (programs / "mmdebstrap").write_text(f"#!/bin/sh\ntouch {begun}\nexec sleep 100\n")
    (programs / "mmdebstrap").chmod(0o755)
    command = [sys.executable, str(CHECKOUT / "deploy/image/build.py"), "--archive", str(tmp_path / "image")]
    environment = {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}", "TMPDIR": str(scratch)}
    with subprocess.Popen(command, env=environment) as build:
        eventually(begun.exists, "the build is under way")
        assert ["root"] == [path.name for made in scratch.iterdir() for path in made.iterdir()]
        build.send_signal(signal.SIGTERM)
        assert 1 == build.wait(30)
    assert [] == list(scratch.iterdir())
