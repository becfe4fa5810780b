from pathlib import Path

import pytest

from reactor.kernel.directories import DirectoryChanges
from tests.support.this_machine import open_descriptors


def test_what_is_added_or_removed_is_reported_once_and_nothing_else_is(tmp_path: Path) -> None:
    changes = DirectoryChanges()
    changes.watch(str(tmp_path))
    (tmp_path / "file").touch()
    assert [True, False] == [changes.happened(), changes.happened()]
    (tmp_path / "file").write_text("more")
    assert not changes.happened()
    (tmp_path / "pod").mkdir()
    assert changes.happened()
    (tmp_path / "pod" / "inner").mkdir()
    assert not changes.happened()
    (tmp_path / "pod" / "inner").rmdir()
    (tmp_path / "pod").rmdir()
    assert [True, False] == [changes.happened(), changes.happened()]
    changes.close()


def test_the_end_of_the_directory_itself_is_reported(tmp_path: Path) -> None:
    (tmp_path / "parent").mkdir()
    changes = DirectoryChanges()
    changes.watch(str(tmp_path / "parent"))
    (tmp_path / "parent").rmdir()
    assert changes.happened()
    changes.close()


def test_more_changes_than_the_queue_holds_are_a_change(tmp_path: Path) -> None:
    most = int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())
    changes = DirectoryChanges()
    changes.watch(str(tmp_path))
    for _ in range(most // 2 + 1):
        (tmp_path / "pod").mkdir()
        (tmp_path / "pod").rmdir()
    assert [True, False] == [changes.happened(), changes.happened()]
    changes.close()


def test_while_nothing_is_watched_anything_may_have_happened() -> None:
    assert DirectoryChanges().happened()


def test_a_directory_that_is_not_there_is_named(tmp_path: Path) -> None:
    changes = DirectoryChanges()
    with pytest.raises(FileNotFoundError, match="none"):
        changes.watch(str(tmp_path / "none"))
    changes.close()


def test_close_leaves_no_descriptor_and_may_be_repeated(tmp_path: Path) -> None:
    before = open_descriptors()
    changes = DirectoryChanges()
    changes.watch(str(tmp_path))
    changes.close()
    changes.close()
    assert before == open_descriptors()
