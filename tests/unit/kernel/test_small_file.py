import json
import logging
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from reactor.kernel import small_file
from reactor.kernel.small_file import KeptFile

_LOG = logging.getLogger("reactor.test")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "kept.json"


@pytest.fixture
def kept(path: Path) -> KeptFile[list[int]]:
    return numbers(path)


def numbers(path: Path, **more: Any) -> KeptFile[list[int]]:
    return KeptFile(
        path, lambda one: {"n": one}, lambda document: list(document["n"]), "numbers: not saved", _LOG, **more
    )


def left(path: Path, **more: Any) -> list[int] | str | None:
    """Return what a later run loads, or what its problem is."""
    kept = numbers(path, **more)
    found = kept.load()
    return kept.problem if found is None else found


def test_a_file_is_replaced_as_a_whole_and_nothing_is_left_beside_it(path: Path) -> None:
    small_file.replace(path, {"a": 1})
    small_file.replace(path, {"b": 2})
    assert json.loads(path.read_bytes()) == {"b": 2}
    assert list(path.parent.iterdir()) == [path]
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_fifo_in_its_place_is_not_waited_for(path: Path) -> None:
    path.parent.mkdir()
    os.mkfifo(path, 0o600)
    assert "mode prw-------; accepted: a file" in str(left(path))


@pytest.mark.parametrize(
    "spoil",
    [
        lambda path: path.chmod(0o620),
        lambda path: path.chmod(0o602),
        lambda path: os.chown(path, 12345, -1),
        lambda path: path.rename(path.with_name("else")).touch() or path.symlink_to("else"),
    ],
    ids=["group", "others", "owner", "link"],
)
def test_what_another_user_may_have_written_is_a_problem_and_not_believed(
    path: Path, spoil: Callable[[Path], object]
) -> None:
    numbers(path).save([1])
    spoil(path)
    assert str(left(path)).startswith(f"{path}: started without it: ")


def test_no_file_is_neither_content_nor_a_problem(path: Path) -> None:
    assert left(path) is None


def test_a_file_that_says_something_else_is_a_problem_with_its_path(path: Path) -> None:
    small_file.write(path, "{")
    assert str(left(path)).startswith(f"{path}: started without it: JSONDecodeError")


def test_of_another_boot_nothing_is_left_and_that_is_no_problem(path: Path) -> None:
    boot_id = path.with_name("boot_id")
    boot_id.parent.mkdir()
    boot_id.write_text("one\n")
    numbers(path, boot_id=boot_id).save([1])
    assert [1] == left(path, boot_id=boot_id)
    boot_id.write_text("two\n")
    assert left(path, boot_id=boot_id) is None


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b'{"version": 2}', "not a document of version 1"),
        (b"[1]", "not a document of version 1"),
        (b'{"version": 1, "since": NaN}', "NaN is no number"),
        (b'{"version": 1}' + b" " * 100, "more than 100 bytes"),
    ],
)
def test_what_no_such_version_wrote_is_refused(content: bytes, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        small_file.document_of(content, version=1, max_bytes=100)


def test_a_document_of_the_version_is_returned() -> None:
    document = {"version": 1, "a": [1.5]}
    assert document == small_file.document_of(json.dumps(document).encode(), version=1, max_bytes=100)


async def test_what_was_shown_last_is_saved(
    kept: KeptFile[list[int]], path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(kept.run)
        kept.show([1])
        kept.show([1, 2])
        await trio.sleep(1)
        nursery.cancel_scope.cancel()
    assert [1, 2] == left(path)


async def test_what_is_shown_in_the_very_moment_of_the_end_is_saved_by_the_flush(
    kept: KeptFile[list[int]], path: Path
) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(kept.run)
        await trio.testing.wait_all_tasks_blocked()
        kept.show([1])  # which it is woken by, to find itself cancelled before it has a thread
        nursery.cancel_scope.cancel()

    kept.flush()

    assert [1] == left(path)


def test_flush_saves_what_was_shown_and_nothing_where_nothing_was(
    kept: KeptFile[list[int]], path: Path
) -> None:
    kept.flush()
    assert not path.exists()
    kept.show([3])
    kept.flush()
    assert {"version": 1, "n": [3]} == json.loads(path.read_bytes())


def test_a_disk_that_refuses_is_reported_once_and_forgotten_when_it_takes_again(
    kept: KeptFile[list[int]], path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path.parent.write_text("in the way")
    for number in range(2):
        kept.show([number])
        kept.flush()
    assert kept.problem is not None
    assert str(path.parent) in kept.problem
    assert [record.getMessage() for record in caplog.records] == [f"numbers: not saved: {kept.problem}"]
    path.parent.unlink()
    kept.flush()
    assert kept.problem is None
    assert [1] == left(path)


async def test_who_waits_until_what_was_shown_is_saved_goes_on_then_and_where_it_can_not_be(
    kept: KeptFile[list[int]], path: Path, nursery: trio.Nursery
) -> None:
    await kept.wait_saved()  # nothing was shown
    nursery.start_soon(kept.run)
    kept.show([1])
    await kept.wait_saved()
    assert [1] == left(path)
    shutil.rmtree(path.parent)
    path.parent.write_text("in the way")
    kept.show([2])
    await kept.wait_saved()
    assert kept.problem is not None
