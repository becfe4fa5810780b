import os
import threading
from pathlib import Path

import pytest

from reactor.kernel.ready_write import ReadyWrite, padded
from tests.support.this_machine import open_descriptors
from tests.support.waiting import eventually


@pytest.fixture
def control(tmp_path: Path) -> Path:
    path = tmp_path / "memory.high"
    path.write_bytes(padded("max"))
    return path


def test_what_is_asked_for_is_written_and_looked_at_afterwards(control: Path) -> None:
    looks: list[bytes] = []
    file = ReadyWrite(control, lambda: looks.append(control.read_bytes().strip()))
    assert b"max" == file.read()
    for text in ("1048576", "max", "4096"):
        file.write(text)
    eventually(lambda: len(looks) == 3)
    assert b"4096" == file.read() == looks[-1]
    assert not file.is_writing
    file.close()
    file.join(30)


def test_what_was_asked_for_before_the_end_is_still_written(control: Path) -> None:
    file = ReadyWrite(control, lambda: None)
    for number in range(5):
        file.write(str(number))
    file.close()
    file.close()
    file.join(30)
    assert padded("4") == control.read_bytes()


def test_a_file_that_can_not_be_spliced_into_is_written_all_the_same(control: Path) -> None:
    file = ReadyWrite(control, lambda: None)
    flags = os.O_WRONLY | os.O_APPEND  # splice(2) refuses such
    appending = os.open(control, flags)
    os.dup2(appending, file._fd)
    os.close(appending)
    file.write("4096")
    eventually(lambda: not file.is_writing)
    assert control.read_bytes().endswith(padded("4096"))
    file.close()
    file.join(30)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"memory\.high"):
        ReadyWrite(tmp_path / "memory.high", lambda: None)


def test_nothing_is_left_open_and_no_thread(control: Path) -> None:
    before = open_descriptors()
    for _ in range(10):
        file = ReadyWrite(control, lambda: None)
        file.write("4096")
        file.close()
        file.join(30)
    assert before == open_descriptors()
    assert "reactor-ready-write" not in {thread.name for thread in threading.enumerate()}
