"""An eBPF object that can't be had costs one line, whatever the reason."""

from __future__ import annotations

from pathlib import Path

import pytest

from reactor.errors import BpfError
from reactor.kernel.bpf import _libbpf_build
from reactor.kernel.bpf.loaders import open_warrant_probe
from reactor.kernel.bpf.objects import OBJECTS, BpfObject
from reactor.kernel.bpf.probes import MemoryProbe
from reactor.model.settings import EbpfLoader
from tests.support.this_machine import needs_libbpf


def test_generated_declarations_are_those_that_are_declared(tmp_path: Path) -> None:
    """`python -m reactor.kernel.bpf._libbpf_build` brings the generated module up to date."""
    _libbpf_build.generate(tmp_path / "generated.py")
    assert (tmp_path / "generated.py").read_text() == _libbpf_build.GENERATED.read_text()


def test_missing_library_is_named_with_its_package() -> None:
    with pytest.raises(BpfError, match=r"libbpf\.so\.99: not found: Debian's package libbpf1 has it"):
        MemoryProbe(library="libbpf.so.99")


def test_warrants_are_not_made_by_bcc() -> None:
    why = "warrants: .*they are made by libbpf alone"
    with pytest.raises(BpfError, match=why) as caught:
        open_warrant_probe(EbpfLoader.BCC)
    assert "\n" not in str(caught.value)


@needs_libbpf
def test_object_that_was_not_installed_says_how_to_get_it(tmp_path: Path) -> None:
    how = r"memory\.bpf\.o: not in this installation: .*Debian package.*`make wheel`.*`make bpf`"
    with pytest.raises(BpfError, match=how):
        MemoryProbe(directory=tmp_path)


@needs_libbpf
@pytest.mark.parametrize("content", [b"", b"\x7fELF", bytes(4096), b"\x7fELF\x02\x01\x01" + bytes(4000)])
def test_corrupted_object_is_refused_in_one_line(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "memory.bpf.o").write_bytes(content)
    with pytest.raises(
        BpfError, match="eBPF object memory: is not an eBPF object that libbpf can read"
    ) as caught:
        MemoryProbe(directory=tmp_path)
    assert "\n" not in str(caught.value)


@needs_libbpf
def test_object_that_was_cut_off_is_refused_in_one_line(tmp_path: Path) -> None:
    whole = OBJECTS / "memory.bpf.o"
    if not whole.exists():
        pytest.skip("no eBPF objects: make bpf (apt-get install clang libbpf-dev bpftool)")
    raw = whole.read_bytes()
    for size in range(0, len(raw), 997):
        (tmp_path / "memory.bpf.o").write_bytes(raw[:size])
        with pytest.raises(BpfError) as caught:
            BpfObject("memory", directory=tmp_path)
        assert "\n" not in str(caught.value)


@needs_libbpf
def test_unreadable_object_is_named(tmp_path: Path) -> None:
    (tmp_path / "memory.bpf.o").mkdir()
    with pytest.raises(BpfError, match=r"memory\.bpf\.o: Is a directory"):
        MemoryProbe(directory=tmp_path)
