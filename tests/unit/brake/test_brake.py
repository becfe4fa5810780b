import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import trio

from reactor.brake.brake import Brake, put_back_abandoned, unavailable_because
from reactor.brake.braking import Braking, braked_bytes
from reactor.kernel.cgroup import CgroupTree
from reactor.kernel.cgroup_files import CgroupVersion
from reactor.kernel.memory_high import BorrowedHigh, BorrowedHighs
from reactor.kernel.ready_write import ReadyWrite
from tests.support.waiting import until

MIB = 1 << 20
LEVEL = 400 * MIB
BRAKED = str(braked_bytes(LEVEL))


class FakeNode:
    """Cgroups /node and /other as directories of files; whoever writes them is the kernel."""

    def __init__(self, root: Path) -> None:
        self.tree = CgroupTree(version=CgroupVersion.V2, memory_root=root)
        for name in ("node", "other"):
            (root / name).mkdir()
            self.set_high(f"/{name}", "max")
        try:
            os.setxattr(root / "node", "user.reactor.probe", b"")
        except OSError:
            pytest.skip("needs a temporary directory with user extended attributes (pytest --basetemp)")

    def high(self, cgroup: str = "/node") -> str:
        return (self.tree.path(cgroup) / "memory.high").read_text().strip()

    def set_high(self, cgroup: str, text: str) -> None:
        # Of one length, and never cut off: a file of the kernel's is not found half written either.
        fd = os.open(self.tree.path(cgroup) / "memory.high", os.O_WRONLY | os.O_CREAT)
        os.write(fd, f"{text:<20}\n".encode())
        os.close(fd)


@pytest.fixture
def node(tmp_path: Path) -> FakeNode:
    return FakeNode(tmp_path)


@pytest.fixture(params=["prepared", "unprepared"])
def make_brake(node: FakeNode, request: pytest.FixtureRequest) -> Iterator[Callable[..., Brake]]:
    """Brakes that have been armed before their first crossing, or have not."""
    made: list[Brake] = []

    def make(deadline_seconds: float = 600.0, own_cgroup: str = "/system.slice/reactor.service") -> Brake:
        proc_cgroup = node.tree.memory_root / "proc-self-cgroup"
        proc_cgroup.write_text(f"0::{own_cgroup}\n")
        brake = Brake(node.tree, deadline_seconds=deadline_seconds, proc_cgroup=proc_cgroup)
        brake.start()
        made.append(brake)
        if request.param == "prepared":
            make_pass(brake)
            time.sleep(0.05)
        return brake

    yield make
    for brake in made:
        brake.close()
    for thread in threading.enumerate():
        if thread.name.startswith("reactor-"):
            thread.join(30)
            assert not thread.is_alive()
    for cgroup in ("/node", "/other"):
        assert "user.reactor.memory_high" not in os.listxattr(node.tree.path(cgroup))


def make_pass(brake: Brake, **crossed: int) -> tuple[Braking, ...]:
    """Do what the loop does in a pass with these cgroups crossed, and return what is on."""
    on = brake.heed({f"/{name}": level for name, level in crossed.items()})
    brake.arm({"/node": LEVEL, "/other": LEVEL // 2})
    return on


async def test_a_crossing_pulls_memory_high_down_and_its_end_puts_it_back(node: FakeNode, make_brake) -> None:
    node.set_high("/node", str(900 * MIB))
    brake = make_brake()
    (braking,) = make_pass(brake, node=LEVEL)
    await until(lambda: node.high() == BRAKED)
    assert braking.engaged_ns is not None
    assert (braking,) == make_pass(brake, node=LEVEL)
    assert () == make_pass(brake)
    with trio.fail_after(90):
        await braking.released.wait()
    assert str(900 * MIB) == node.high()
    assert braking.released_ns > braking.engaged_ns
    assert "not crossed any more" in braking.released_because


async def test_nothing_is_engaged_where_nothing_is_crossed(node: FakeNode, make_brake) -> None:
    brake = make_brake()
    assert () == make_pass(brake)
    assert "max" == node.high()
    assert (0, 0.0) == (brake.reading().times, brake.reading().seconds)


async def test_each_cgroup_is_braked_and_released_by_itself(node: FakeNode, make_brake) -> None:
    brake = make_brake()
    make_pass(brake, node=LEVEL, other=LEVEL // 2)
    await until(lambda: "max" not in {node.high(), node.high("/other")})
    make_pass(brake, other=LEVEL // 2)
    await until(lambda: node.high() == "max")
    assert ["/other"] == [one.cgroup for one in brake.reading().on]
    assert "max" != node.high("/other")


async def test_it_is_released_at_its_deadline_without_being_asked(node: FakeNode, make_brake) -> None:
    brake = make_brake(deadline_seconds=0.05)
    (braking,) = make_pass(brake, node=LEVEL)
    with trio.fail_after(90):
        await braking.released.wait()
    assert "max" == node.high()
    assert "its longest time was over" == braking.released_because


async def test_a_crossing_that_outlasts_the_deadline_is_not_braked_again_but_the_next_one_is(
    node: FakeNode, make_brake
) -> None:
    brake = make_brake(deadline_seconds=0.05)
    (first,) = make_pass(brake, node=LEVEL)
    with trio.fail_after(90):
        await first.released.wait()
    assert () == make_pass(brake, node=LEVEL)
    await trio.sleep(0.05)
    assert "max" == node.high()
    make_pass(brake)
    (second,) = make_pass(brake, node=LEVEL)
    with trio.fail_after(90):
        await second.released.wait()
    await until(lambda: brake.reading().times == 2)


async def test_what_was_prepared_is_written_without_the_thread_that_prepares(
    node: FakeNode, tmp_path: Path
) -> None:
    high = BorrowedHigh(node.tree.path("/node"), owner="1:1")
    file = ReadyWrite(high.path, high.look_again)
    high.prepare(LEVEL)
    high.want(LEVEL, "brake")
    assert high.hurry("brake", file)
    await until(lambda: node.high() == str(LEVEL))
    assert high.make_true()
    high.put_back("brake")
    assert "max" == node.high()
    node.set_high("/node", str(900 * MIB))
    high.want(LEVEL, "brake")
    assert not high.hurry("brake", file)  # the operator's value is another one now
    high.want(None, "brake")
    high.prepare(LEVEL)
    high.want(LEVEL, "brake")
    assert high.hurry("brake", file)
    await until(lambda: node.high() == str(LEVEL))
    high.want(LEVEL - MIB, "brake")
    assert not high.hurry("brake", file)  # another value than the prepared one
    high.put_back("brake")
    assert str(900 * MIB) == node.high()
    assert not high.hurry("brake", file)  # wanted no more
    file.close()


async def test_a_crash_after_what_was_prepared_was_written_is_undone(node: FakeNode) -> None:
    node.set_high("/node", str(900 * MIB))
    high = BorrowedHigh(node.tree.path("/node"), owner="1:1")
    file = ReadyWrite(high.path, high.look_again)
    for level in (LEVEL + MIB, LEVEL):
        high.prepare(level)
    high.want(LEVEL, "brake")
    assert high.hurry("brake", file)
    await until(lambda: node.high() == str(LEVEL))
    assert 1 == len(BorrowedHighs().put_back_abandoned(node.tree.memory_root))
    assert str(900 * MIB) == node.high()
    file.close()


async def test_a_crash_with_nothing_but_preparations_leaves_nothing_to_tell(node: FakeNode) -> None:
    BorrowedHigh(node.tree.path("/node"), owner="1:1").prepare(LEVEL)
    assert [] == BorrowedHighs().put_back_abandoned(node.tree.memory_root)
    assert [] == [name for name in os.listxattr(node.tree.path("/node")) if "memory_high" in name]
    assert "max" == node.high()


async def test_a_recreated_cgroup_is_braked_as_the_one_before(node: FakeNode, make_brake) -> None:
    brake = make_brake()
    directory = node.tree.path("/node")
    (directory / "memory.high").unlink()
    node.set_high("/node", "max")
    make_pass(brake, node=LEVEL)
    await until(lambda: node.high() == BRAKED)
    make_pass(brake)
    await until(lambda: node.high() == "max")


async def test_a_release_that_comes_late_does_not_take_the_next_brake_away(
    node: FakeNode, make_brake
) -> None:
    brake = make_brake()
    for _ in range(20):
        make_pass(brake, node=LEVEL)
        make_pass(brake)
    make_pass(brake, node=LEVEL)
    await until(lambda: node.high() == BRAKED)
    await trio.sleep(0.05)
    assert BRAKED == node.high()
    make_pass(brake)
    await until(lambda: node.high() == "max")


async def test_at_the_end_what_is_braked_is_put_back(node: FakeNode, make_brake) -> None:
    brake = make_brake()
    make_pass(brake, node=LEVEL)
    await until(lambda: node.high() == BRAKED)
    brake.close()
    assert "max" == node.high()
    assert () == brake.reading().on


async def test_a_value_that_the_operator_sets_during_the_brake_stays(node: FakeNode, make_brake) -> None:
    brake = make_brake()
    (braking,) = make_pass(brake, node=LEVEL)
    await until(lambda: node.high() == BRAKED)
    await trio.sleep(0.1)  # the brake's thread looks once more at what it has written
    node.set_high("/node", str(700 * MIB))
    make_pass(brake)
    with trio.fail_after(90):
        await braking.released.wait()
    assert str(700 * MIB) == node.high()


async def test_a_lower_value_of_the_operators_is_left_alone_and_that_is_no_engagement(
    node: FakeNode, make_brake
) -> None:
    node.set_high("/node", str(100 * MIB))
    brake = make_brake()
    (braking,) = make_pass(brake, node=LEVEL)
    with trio.fail_after(90):
        await braking.released.wait()
    assert str(100 * MIB) == node.high()
    assert "as low" in braking.problem
    assert 0 == brake.reading().times


async def test_a_cgroup_that_is_gone_is_a_problem_and_the_others_are_braked(
    node: FakeNode, make_brake
) -> None:
    brake = make_brake()
    braking = make_pass(brake, gone=LEVEL)[0]
    with trio.fail_after(90):
        await braking.released.wait()
    assert "gone" in braking.problem
    assert "gone" in brake.reading().problem
    make_pass(brake, gone=LEVEL, node=LEVEL)
    await until(lambda: node.high() == BRAKED)
    await until(lambda: brake.reading().problem is None)


async def test_the_cgroup_that_reactor_lives_in_is_never_braked(node: FakeNode, make_brake) -> None:
    brake = make_brake(own_cgroup="/node/system/reactor.service")
    assert () == make_pass(brake, node=LEVEL)
    assert "reactor itself runs in it" in brake.reading().problem
    make_pass(brake, node=LEVEL, other=LEVEL)
    await until(lambda: node.high("/other") == BRAKED)
    assert "max" == node.high()


async def test_a_brake_that_was_never_started_does_nothing(node: FakeNode) -> None:
    brake = Brake(node.tree)
    assert () == make_pass(brake, node=LEVEL)
    brake.close()
    assert "max" == node.high()


async def test_on_cgroup_v1_it_says_why_it_does_nothing(tmp_path: Path, caplog) -> None:
    tree = CgroupTree(version=CgroupVersion.V1, memory_root=tmp_path)
    assert "v1" in unavailable_because(tree)
    brake = Brake(tree)
    brake.start()
    assert () == make_pass(brake, node=LEVEL)
    assert "v1" in brake.reading().problem
    assert "v1" in caplog.text
    brake.close()


async def test_what_a_killed_daemon_left_is_put_back_and_logged(node: FakeNode, caplog) -> None:
    BorrowedHigh(node.tree.path("/node"), owner="1:1").set(100 * MIB, "brake")
    with caplog.at_level(logging.WARNING):
        await put_back_abandoned(node.tree, BorrowedHighs())
    assert "max" == node.high()
    assert "is max again, as before a crash" in caplog.text
