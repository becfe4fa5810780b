import os
import random
import threading
from pathlib import Path

import pytest

from reactor.commands.daemon import restored_in
from reactor.kernel.cgroup import CgroupTree, CgroupVersion
from reactor.kernel.memory_control import BorrowedHigh, BorrowedHighs

MIB = 1 << 20
ATTRIBUTE = "user.reactor.memory_high"


def text(mib: int) -> str:
    return f"{mib * MIB}"


class FakeCgroup:
    """A cgroup as a directory; whoever writes its memory.high is the kernel or the operator."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        directory.mkdir(parents=True)
        try:
            os.setxattr(directory, "user.reactor.probe", b"")
        except OSError:
            pytest.skip("needs a temporary directory with user extended attributes (pytest --basetemp)")
        self.high = "max"

    @property
    def high(self) -> str:
        return (self.directory / "memory.high").read_text().strip()

    @high.setter
    def high(self, value: str) -> None:
        fd = os.open(self.directory / "memory.high", os.O_WRONLY | os.O_CREAT)
        os.write(fd, f"{value:<20}\n".encode())  # of one length: never found half written
        os.close(fd)

    @property
    def is_marked(self) -> bool:
        return ATTRIBUTE in os.listxattr(self.directory)


@pytest.fixture
def cgroup(tmp_path: Path) -> FakeCgroup:
    return FakeCgroup(tmp_path / "node")


@pytest.mark.parametrize("operators", ["max", text(900)])
def test_what_the_operator_had_is_back_to_the_letter(cgroup: FakeCgroup, operators: str) -> None:
    cgroup.high = operators
    high = BorrowedHigh(cgroup.directory)
    assert high.set(100 * MIB)
    assert (text(100), True) == (cgroup.high, cgroup.is_marked)
    high.restore()
    assert (operators, False) == (cgroup.high, cgroup.is_marked)


def test_a_lower_value_of_the_operators_stays_and_that_is_said(cgroup: FakeCgroup) -> None:
    cgroup.high = text(80)
    assert not BorrowedHigh(cgroup.directory).set(100 * MIB)
    assert (text(80), False) == (cgroup.high, cgroup.is_marked)


@pytest.mark.parametrize("theirs", ["max", text(700), text(40)])
def test_a_value_that_the_operator_sets_meanwhile_is_the_one_that_stays(
    cgroup: FakeCgroup, theirs: str
) -> None:
    cgroup.high = text(900)
    high = BorrowedHigh(cgroup.directory)
    high.set(100 * MIB)
    cgroup.high = theirs
    assert not high.stands()
    high.restore()
    assert (theirs, False) == (cgroup.high, cgroup.is_marked)


def test_a_value_that_the_operator_set_meanwhile_is_back_after_it_was_overwritten(cgroup: FakeCgroup) -> None:
    high = BorrowedHigh(cgroup.directory)
    high.set(100 * MIB)
    cgroup.high = text(700)
    high.set(90 * MIB)
    assert text(90) == cgroup.high
    high.restore()
    assert (text(700), False) == (cgroup.high, cgroup.is_marked)


def test_a_cgroup_that_is_gone_fails_at_set_and_not_at_restore(tmp_path: Path) -> None:
    high = BorrowedHigh(tmp_path / "gone")
    with pytest.raises(FileNotFoundError, match="gone"):
        high.set(100 * MIB)
    high.restore()


def test_threads_that_set_and_restore_at_once_leave_what_was_there(cgroup: FakeCgroup) -> None:
    cgroup.high = text(900)
    high = BorrowedHigh(cgroup.directory)
    seen: set[str] = set()

    def borrow(number: int) -> None:
        choose = random.Random(number)
        for _ in range(60):
            high.set(choose.randrange(100, 110) * MIB)
            seen.add(cgroup.high)
            high.restore()

    threads = [threading.Thread(target=borrow, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (text(900), False) == (cgroup.high, cgroup.is_marked)
    assert len(seen) > 1


def leave_behind(cgroup: FakeCgroup, owner: str) -> None:
    """Do what a daemon does that is killed while it has borrowed."""
    BorrowedHigh(cgroup.directory, owner=owner).set(100 * MIB)


def test_what_a_killed_daemon_left_anywhere_is_restored_and_reported(tmp_path: Path) -> None:
    left = [FakeCgroup(tmp_path / name) for name in ("a", "a/b/c", "d")]
    for one in left:
        one.high = text(900)
        leave_behind(one, f"{os.getpid()}:1")  # our number, but another process: it began at another time
    untouched = FakeCgroup(tmp_path / "e")
    untouched.high = text(100)
    told = BorrowedHighs().restore_abandoned(tmp_path)
    assert [(text(900), False)] * 3 == [(one.high, one.is_marked) for one in left]
    assert text(100) == untouched.high
    assert 3 == len(told)
    assert str(left[0].directory) in told[0]
    assert [] == BorrowedHighs().restore_abandoned(tmp_path)


def test_what_a_living_daemon_has_borrowed_is_left_to_it(cgroup: FakeCgroup) -> None:
    BorrowedHighs().of(cgroup.directory).set(100 * MIB)
    assert [] == BorrowedHighs().restore_abandoned(cgroup.directory)
    assert text(100) == cgroup.high


@pytest.mark.skipif(os.geteuid() != 0, reason="gives a directory to somebody else: run as root")
@pytest.mark.parametrize(
    ("uid", "mode"), [(12345, 0o755), (0, 0o775), (0, 0o757)], ids=["a tenant's", "a group's", "everyone's"]
)
def test_where_another_user_may_write_an_attribute_none_counts_and_nothing_is_borrowed(
    cgroup: FakeCgroup, uid: int, mode: int
) -> None:
    """Who owns a cgroup may not lift the limit that the operator has set on it."""
    cgroup.high = text(100)
    os.setxattr(cgroup.directory, ATTRIBUTE, f"max {text(100)} by=1:0".encode())
    os.chown(cgroup.directory, uid, 12345)
    cgroup.directory.chmod(mode)
    assert [] == BorrowedHighs().restore_abandoned(cgroup.directory)
    high = BorrowedHigh(cgroup.directory)
    high.restore()
    with pytest.raises(PermissionError, match="another user"):
        high.set(50 * MIB)
    high.restore()
    assert text(100) == cgroup.high


@pytest.mark.parametrize("nonsense", ["", "max", "much 104857600 by=1:1", "\xff\xff", "by=", "1 2 3 4 5"])
def test_nonsense_in_the_attribute_changes_nothing_and_stops_nothing(
    tmp_path: Path, cgroup: FakeCgroup, nonsense: str
) -> None:
    other = FakeCgroup(tmp_path / "other")
    leave_behind(other, "")
    cgroup.high = text(100)
    os.setxattr(cgroup.directory, ATTRIBUTE, nonsense.encode("latin-1"))
    BorrowedHighs().restore_abandoned(tmp_path)
    assert text(100) == cgroup.high
    assert "max" == other.high


def test_reactor_clean_restores_what_a_killed_daemon_has_left(cgroup: FakeCgroup, tmp_path: Path) -> None:
    cgroup.high = "max"
    tree = CgroupTree(version=CgroupVersion.V2, memory_root=tmp_path)
    BorrowedHigh(cgroup.directory, owner="1:0").set(100 * MIB)
    assert [f"{cgroup.directory}/memory.high is max again, as before a crash"] == restored_in(tree)
    assert ("max", False) == (cgroup.high, cgroup.is_marked)
    assert [] == restored_in(tree)
