"""`make bpf` says in one line what the build machine lacks."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[4]

needs_clang = pytest.mark.skipif(
    shutil.which("clang") is None or shutil.which("make") is None, reason="apt-get install clang make"
)


def make(directory: Path, **variables: str) -> str:
    """Return what `make bpf`, which has to fail, says; nothing is written but to `directory`."""
    settings = [f"{name}={value}" for name, value in {"BPF_BUILD": str(directory), **variables}.items()]
    done = subprocess.run(
        ["make", "-C", ROOT, "--silent", "--no-print-directory", "bpf", *settings],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode != 0
    return done.stderr


@needs_clang
def test_missing_bpftool_is_named_with_its_package(tmp_path: Path) -> None:
    text = make(tmp_path, BPFTOOL="/none/bpftool")
    assert "make bpf: /none/bpftool is missing (Debian: apt-get install bpftool)" in text


def test_missing_compiler_is_named_with_its_package(tmp_path: Path) -> None:
    assert "make bpf: none is missing (Debian: apt-get install clang)" in make(tmp_path, CLANG="none")


@needs_clang
def test_kernel_without_btf_is_reported_with_what_can_be_done(tmp_path: Path) -> None:
    text = make(tmp_path, BPFTOOL="true", VMLINUX_BTF="/none/vmlinux")
    assert "make bpf: no /none/vmlinux: this kernel has no BTF" in text
    assert "make bpf VMLINUX_BTF=FILE" in text


@needs_clang
def test_file_without_btf_is_reported(tmp_path: Path) -> None:
    text = make(tmp_path, VMLINUX_BTF="/dev/null", BPFTOOL=str(shutil.which("false")))
    assert "finds no BTF in /dev/null" in text
    assert not (tmp_path / "vmlinux.h").exists()
