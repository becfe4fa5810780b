"""Pins are locked by who uses them, taken over from who was killed, and gone with who ends by itself."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from reactor.errors import BpfError
from reactor.kernel.bpf import pins as bpf_pins
from tests.support.this_machine import open_descriptors

# Any filesystem will do: bpffs has no names with a dot in them, and no regular files.
HOLDER = """
import sys, time
from pathlib import Path
from reactor.kernel.bpf import pins as bpf_pins
pins = bpf_pins.take(sys.argv[2], lambda path: (path / "map").touch(), root=Path(sys.argv[1]))
print(pins.path.name, flush=True)
sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def _nothing_kept() -> Iterator[None]:
    yield
    bpf_pins.remove_own()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "reactor"


def fill(path: Path) -> None:
    (path / "map").touch()


def never(path: Path) -> None:
    raise AssertionError(f"{path} was filled")


def holder(root: Path, name: str) -> tuple[subprocess.Popen[str], str]:
    """Return a process that has taken pins, and its directory's name."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, root, name], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    return process, process.stdout.readline().strip()


def ended(process: subprocess.Popen[str], *, by: int | None = None) -> None:
    with process:
        if by is not None:
            process.send_signal(by)


def names(root: Path) -> list[str]:
    return sorted(os.listdir(root))


def test_directory_has_its_final_name_once_it_is_filled_and_not_before(root: Path) -> None:
    seen: list[str] = []
    pins = bpf_pins.take("memory_1", lambda path: seen.append(path.name), root=root)
    assert seen[0].startswith("new_memory_1_")
    assert [pins.path.name] == names(root)
    assert pins.path.name.startswith("memory_1_")
    assert "." not in pins.path.name


def test_pins_that_are_let_go_serve_the_next_in_the_same_process(root: Path) -> None:
    first = bpf_pins.take("memory_1", fill, root=root)
    first.keep()
    second = bpf_pins.take("memory_1", never, root=root)
    assert second is first


def test_pins_in_use_serve_no_other_probe_in_the_same_process(root: Path) -> None:
    first = bpf_pins.take("memory_1", fill, root=root)
    second = bpf_pins.take("memory_1", fill, root=root)
    assert second.path != first.path
    assert 2 == len(names(root))


def test_pins_of_a_killed_process_are_taken_over(root: Path) -> None:
    process, name = holder(root, "memory_1")
    ended(process, by=signal.SIGKILL)
    assert [name] == names(root)
    assert name == bpf_pins.take("memory_1", never, root=root).path.name


def test_pins_of_a_killed_process_are_removed_where_they_are_of_other_programs(root: Path) -> None:
    process, _ = holder(root, "memory_1")
    ended(process, by=signal.SIGKILL)
    pins = bpf_pins.take("memory_2", fill, root=root)
    assert [pins.path.name] == names(root)


def test_pins_of_a_living_process_are_left_alone(root: Path) -> None:
    process, name = holder(root, "memory_1")
    pins = bpf_pins.take("memory_1", fill, root=root)
    assert sorted([name, pins.path.name]) == names(root)
    ended(process)
    assert [pins.path.name] == names(root)


def test_process_that_ends_by_itself_leaves_no_pins(root: Path) -> None:
    process, _ = holder(root, "memory_1")
    ended(process)
    assert [] == names(root)


def test_unfinished_directory_is_never_taken_over(root: Path) -> None:
    (root / "new_memory_1_00000000").mkdir(parents=True)
    pins = bpf_pins.take("memory_1", fill, root=root)
    assert [pins.path.name] == names(root)


def test_failure_while_filling_leaves_nothing(root: Path) -> None:
    def fail(path: Path) -> None:
        fill(path)
        raise BpfError("BCC programs memory", "refused")

    before = open_descriptors()
    with pytest.raises(BpfError, match="refused"):
        bpf_pins.take("memory_1", fail, root=root)
    assert [] == names(root)
    assert before == open_descriptors()


def test_removing_twice_is_harmless_and_leaves_no_descriptor(root: Path) -> None:
    before = open_descriptors()
    pins = bpf_pins.take("memory_1", fill, root=root)
    pins.remove()
    pins.remove()
    assert [] == names(root)
    assert before == open_descriptors()


def test_place_where_nothing_can_be_pinned_is_named_with_what_is_needed(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(BpfError, match=r"file/reactor: Not a directory; a bpf filesystem is needed"):
        bpf_pins.take("memory_1", fill, root=tmp_path / "file" / "reactor")
