"""Files that are written in one step."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from reactor.kernel.small_file import write


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "etc" / "kept.yaml"


def test_the_content_is_on_the_disk_before_the_name_is_and_the_name_at_the_end(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []
    fsync = os.fsync

    def noted(fd: int) -> None:
        name = os.readlink(f"/proc/self/fd/{fd}")
        seen.append(f"{Path(name).name}, {'named' if path.exists() else 'not named'}")
        if name.endswith(".new"):
            assert "one\n" == Path(name).read_text()
        fsync(fd)

    monkeypatch.setattr(os, "fsync", noted)
    write(path, "one\n")
    assert seen == [".kept.yaml.new, not named", "etc, named"]


@pytest.mark.parametrize("umask", [0o000, 0o077])
def test_modes_are_those_asked_for(path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        write(path, "one\n", mode=0o644, directory_mode=0o755)
    finally:
        os.umask(before)
    assert 0o644 == path.stat().st_mode & 0o777
    assert 0o755 & ~umask == path.parent.stat().st_mode & 0o777


def test_a_file_is_never_replaced_unless_that_is_asked_for(path: Path) -> None:
    write(path, "one\n", replace=False)
    with pytest.raises(FileExistsError):
        write(path, "two\n", replace=False)
    assert ("one\n", ["kept.yaml"]) == (path.read_text(), os.listdir(path.parent))
    write(path, "two\n")
    assert ("two\n", ["kept.yaml"]) == (path.read_text(), os.listdir(path.parent))


def test_what_lies_beside_the_file_is_replaced_and_a_link_not_followed(path: Path, tmp_path: Path) -> None:
    path.parent.mkdir()
    (path.parent / ".kept.yaml.new").symlink_to(tmp_path / "elsewhere")
    write(path, "one\n")
    assert ("one\n", ["kept.yaml"]) == (path.read_text(), os.listdir(path.parent))
    assert not (tmp_path / "elsewhere").exists()


def test_a_file_that_can_not_be_written_stays_and_nothing_is_left_beside_it(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(path, "one\n")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write(path, "two\n")
    assert ("one\n", ["kept.yaml"]) == (path.read_text(), os.listdir(path.parent))


def test_an_error_names_the_file_and_not_the_one_beside_it(path: Path) -> None:
    path.mkdir(parents=True)
    with pytest.raises(IsADirectoryError) as refused:
        write(path, "one\n")
    assert str(path) == refused.value.filename
    assert ["kept.yaml"] == os.listdir(path.parent)
