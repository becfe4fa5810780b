from pathlib import Path

import pytest

from reactor.kernel.directories import CONTENTS, DirectoryChanges
from tests.support.this_machine import open_descriptors


def _happened(changes: DirectoryChanges) -> bool:
    """Return whether there was any change since the last call; True while that is not known."""
    changed = changes.changed()
    return changed is None or bool(changed)


def test_what_is_added_or_removed_is_reported_once_and_nothing_else_is(tmp_path: Path) -> None:
    changes = DirectoryChanges()
    changes.watch(str(tmp_path))
    (tmp_path / "file").touch()
    assert [True, False] == [_happened(changes), _happened(changes)]
    (tmp_path / "file").write_text("more")
    assert not _happened(changes)
    (tmp_path / "pod").mkdir()
    assert _happened(changes)
    (tmp_path / "pod" / "inner").mkdir()
    assert not _happened(changes)
    (tmp_path / "pod" / "inner").rmdir()
    (tmp_path / "pod").rmdir()
    assert [True, False] == [_happened(changes), _happened(changes)]
    changes.close()


def test_the_end_of_the_directory_itself_is_reported(tmp_path: Path) -> None:
    (tmp_path / "parent").mkdir()
    changes = DirectoryChanges()
    changes.watch(str(tmp_path / "parent"))
    (tmp_path / "parent").rmdir()
    assert _happened(changes)
    changes.close()


def test_more_changes_than_the_queue_holds_are_a_change(tmp_path: Path) -> None:
    most = int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())
    changes = DirectoryChanges()
    changes.watch(str(tmp_path))
    for _ in range(most // 2 + 1):
        (tmp_path / "pod").mkdir()
        (tmp_path / "pod").rmdir()
    assert [True, False] == [_happened(changes), _happened(changes)]
    changes.close()


def test_while_nothing_is_watched_anything_may_have_happened() -> None:
    assert _happened(DirectoryChanges())


def test_a_directory_that_is_not_there_is_named(tmp_path: Path) -> None:
    changes = DirectoryChanges()
    with pytest.raises(FileNotFoundError, match="none"):
        changes.watch(str(tmp_path / "none"))
    changes.close()


def test_a_directory_that_takes_the_path_of_one_that_was_watched_is_watched_again(tmp_path: Path) -> None:
    for is_moved in (True, False):
        path = tmp_path / "parent"
        path.mkdir()
        changes = DirectoryChanges()
        changes.watch(str(path))
        if is_moved:
            path.rename(tmp_path / "other")
        else:
            path.rmdir()
        path.mkdir()
        assert _happened(changes)
        changes.watch(str(path))
        (path / "pod").mkdir()
        assert [True, False] == [_happened(changes), _happened(changes)]
        (path / "pod").rmdir()
        path.rmdir()
        changes.close()


@pytest.mark.slow
def test_where_changes_were_lost_each_directory_is_watched_again(tmp_path: Path) -> None:
    """The end of one may be among them."""
    most = int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())
    for name in ("busy", "ended"):
        (tmp_path / name).mkdir()
    changes = DirectoryChanges()
    for name in ("busy", "ended"):
        changes.watch(str(tmp_path / name))
    for _ in range(most // 2 + 1):
        (tmp_path / "busy" / "pod").mkdir()
        (tmp_path / "busy" / "pod").rmdir()
    (tmp_path / "ended").rmdir()
    (tmp_path / "ended").mkdir()
    assert changes.changed() is None
    changes.watch(str(tmp_path / "ended"))
    (tmp_path / "ended" / "pod").mkdir()
    assert {str(tmp_path / "ended")} == changes.changed()
    changes.close()


def test_what_is_written_to_files_is_reported_by_name_and_what_is_read_is_not(tmp_path: Path) -> None:
    changes = DirectoryChanges(CONTENTS)
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "limit").write_text("max")
        changes.watch(str(tmp_path / name), f"pod {name}")
    assert "max" == (tmp_path / "one" / "limit").read_text()
    assert set() == changes.changed()
    (tmp_path / "one" / "limit").write_text("5")
    (tmp_path / "two").chmod(0o700)
    assert [{"pod one", "pod two"}, set()] == [changes.changed(), changes.changed()]
    changes.close()


def test_what_is_not_kept_is_reported_no_more(tmp_path: Path) -> None:
    changes = DirectoryChanges()
    for name in ("kept", "other"):
        (tmp_path / name).mkdir()
        changes.watch(str(tmp_path / name), name)
    changes.keep({"kept"})
    for name in ("kept", "other"):
        (tmp_path / name / "pod").mkdir()
    assert {"kept"} == changes.changed()
    changes.watch(str(tmp_path / "other"), "other")
    (tmp_path / "other" / "pod").rmdir()
    assert {"other"} == changes.changed()
    changes.close()


def test_a_directory_that_is_moved_there_and_back_is_watched_by_its_present_name(tmp_path: Path) -> None:
    changes = DirectoryChanges(CONTENTS)
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    for path, before in ((here, here), (there, here), (here, there)):
        before.rename(path)
        changes.watch(str(path), path.name)
        changes.keep({path.name})
        (path / "limit").write_text("5")
        assert {path.name} == changes.changed()
    changes.close()


def test_close_leaves_no_descriptor_and_may_be_repeated(tmp_path: Path) -> None:
    before = open_descriptors()
    changes = DirectoryChanges()
    changes.watch(str(tmp_path))
    changes.close()
    changes.close()
    assert before == open_descriptors()
