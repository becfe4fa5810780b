"""How the image is built, but for its content."""

from __future__ import annotations

import os
import re
import shutil
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


@pytest.mark.parametrize("is_built", [True, False])
def test_image_without_ebpf_objects_is_not_built_in_silence(tmp_path: Path, *, is_built: bool) -> None:
    image, compiled = tmp_path / "deploy/image", tmp_path / "reactor/kernel/bpf/compiled"
    shutil.copytree(CHECKOUT / "deploy/image", image)
    shutil.copy(CHECKOUT / "deploy/pins.py", tmp_path / "deploy")
    compiled.mkdir(parents=True)
    (compiled / "memory.bpf.o" if is_built else compiled / "memory.bcc.c").touch()
    there = tmp_path / "root"  # for which the build ends before it begins
    there.mkdir()
    command = [sys.executable, str(image / "build.py"), "--root", str(there)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)

    assert 1 == done.returncode
    assert ("no eBPF objects" in done.stderr) is not is_built


def test_the_containerfile_installs_every_program_that_its_commands_need() -> None:
    text = (CHECKOUT / "deploy/image/Containerfile").read_text()
    (install,) = re.findall(r"apt-get install (.*?)\n(?!\s)", text, re.DOTALL)
    installed = {word for word in install.replace("\\\n", " ").split() if not word.startswith("-")}

    # What `make bpf` says that Debian calls what it lacks, and what the build of the image runs.
    of_bpf = set(re.findall(r"Debian: apt-get install ([a-z0-9-]+)", (CHECKOUT / "bpf/bpf.mk").read_text()))
    assert {"clang", "bpftool", "libbpf-dev"} <= of_bpf
    assert set() == of_bpf - installed
    assert set() == {"make", "python3", "python3-venv", "mmdebstrap"} - installed
    assert "make .venv/builds bpf" in text


def test_nothing_that_is_made_on_the_host_gets_into_the_build_of_the_image() -> None:
    ignored = set((CHECKOUT / ".dockerignore").read_text().split())
    made = {
        line.strip("/")
        for line in (CHECKOUT / ".gitignore").read_text().split()
        if line.startswith(("/", "."))
    }
    assert set() == {".git", "**/__pycache__", *made} - ignored
    # What the build reads is not ignored.
    for name in (
        "Makefile",
        "bpf",
        "constraints.txt",
        "constraints-dev.txt",
        "deploy",
        "pyproject.toml",
        "reactor",
        "README.md",
        "LICENSE",
    ):
        assert (CHECKOUT / name).exists()
        assert name not in ignored


def test_an_image_is_built_for_either_architecture_and_no_other() -> None:
    build = CHECKOUT / "deploy/image/build.py"
    command = [sys.executable, str(build), "--root", "/nonexistent/root", "--architecture", "s390x"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert 2 == done.returncode
    assert "invalid choice: 's390x' (choose from 'amd64', 'arm64')" in done.stderr
    text = build.read_text()
    assert "x86_64-linux-gnu" not in text
    assert text.count('"usr/lib/MACHINE-linux-gnu/') == 2
