import trio
import trio.testing

from reactor.model.signals import Signal
from reactor.model.wakes import SourceHealth, SourceState, Wake, WakeKind
from reactor.sources.catalogue import SourceBoard
from reactor.sources.wakes import Wakes


def wake(source: str, kind: WakeKind = WakeKind.MEMORY, at_ns: int = 0) -> Wake:
    return Wake(source=source, kind=kind, at_ns=at_ns, signal=Signal.MEMORY_AVAILABLE)


async def test_wakes_of_one_source_and_kind_become_the_earliest_of_them() -> None:
    wakes = Wakes()
    for at_ns in (5, 6, 7):
        wakes.notify(wake("psi", at_ns=at_ns))
    assert (wake("psi", at_ns=5),) == await wakes.wait()


async def test_wakes_of_other_sources_or_kinds_are_kept_apart_in_order_of_arrival() -> None:
    wakes = Wakes()
    expected = (wake("psi"), wake("ticker", WakeKind.HOUSEKEEPING), wake("ticker", WakeKind.MEMORY))
    for each in expected:
        wakes.notify(each)
    assert expected == await wakes.wait()


async def test_wait_blocks_until_something_new_arrives(autojump_clock: trio.testing.MockClock) -> None:
    wakes = Wakes()
    wakes.notify(wake("psi"))
    await wakes.wait()
    with trio.move_on_after(1) as scope:
        await wakes.wait()
    assert scope.cancelled_caught
    wakes.notify(wake("psi", at_ns=9))
    assert (wake("psi", at_ns=9),) == await wakes.wait()


async def test_a_cancelled_wait_loses_no_wake() -> None:
    wakes = Wakes()
    with trio.move_on_after(1) as scope:
        scope.cancel()
        wakes.notify(wake("psi"))
        await wakes.wait()
    assert (wake("psi"),) == await wakes.wait()


async def test_memory_wakes_are_attended_to_at_once_with_all_that_is_pending() -> None:
    wakes, attended = Wakes(), []
    wakes.notify(wake("ticker", WakeKind.HOUSEKEEPING))
    wakes.run_memory_pass_inline(attended.append)
    wakes.notify(wake("processes", WakeKind.PROCESSES))
    assert [] == attended
    wakes.notify(wake("psi"), wake("ebpf"))
    expected = (
        wake("ticker", WakeKind.HOUSEKEEPING),
        wake("processes", WakeKind.PROCESSES),
        wake("psi"),
        wake("ebpf"),
    )
    assert [expected] == attended
    assert () == await wakes.wait()


async def test_a_wake_that_comes_of_attending_to_another_waits_for_the_loop() -> None:
    wakes, attended = Wakes(), []

    def attend(taken: tuple[Wake, ...]) -> None:
        attended.append(taken)
        wakes.notify(wake("memory-high"))

    wakes.run_memory_pass_inline(attend)
    wakes.notify(wake("psi"))
    assert [(wake("psi"),)] == attended
    assert (wake("memory-high"),) == await wakes.wait()
    wakes.notify(wake("psi", at_ns=7))
    assert (wake("psi", at_ns=7),) == attended[1]


async def test_a_memory_wake_that_is_left_waits_for_the_loop() -> None:
    wakes, attended = Wakes(), []
    wakes.run_memory_pass_inline(attended.append)
    wakes.leave(wake("warrant"))
    assert [] == attended
    assert (wake("warrant"),) == await wakes.wait()


async def test_other_wakes_are_left_for_the_loop() -> None:
    wakes, attended = Wakes(), []
    wakes.run_memory_pass_inline(attended.append)
    wakes.notify(wake("ticker", WakeKind.HOUSEKEEPING))
    assert (wake("ticker", WakeKind.HOUSEKEEPING),) == await wakes.wait()
    assert [] == attended


def test_board_keeps_counts_when_the_health_changes() -> None:
    board = SourceBoard()
    board.count_wake("processes")
    board.set("processes", SourceHealth.ARMED, "one in 8")
    board.count_lost("processes", 3)
    board.set("processes", SourceHealth.FAILED, "gone")
    expected = SourceState(name="processes", health=SourceHealth.FAILED, detail="gone", wakes=1, lost=3)
    assert (expected,) == board.states()
    assert expected == board.state("processes")


def test_a_source_that_never_reported_is_off() -> None:
    assert SourceHealth.OFF is SourceBoard().state("psi").health


def test_board_reports_a_change_once_and_an_armed_sources_details_never() -> None:
    told: list[tuple[SourceHealth, str]] = []
    board = SourceBoard(lambda state: told.append((state.health, state.detail)))
    for health, detail in (
        (SourceHealth.ARMED, "200Mi"),
        (SourceHealth.ARMED, "201Mi"),
        (SourceHealth.FAILED, "ENODEV"),
        (SourceHealth.FAILED, "ENODEV"),
        (SourceHealth.FAILED, "EACCES"),
        (SourceHealth.ARMED, "200Mi"),
    ):
        board.set("memcg-eventfd", health, detail)
    assert [
        (SourceHealth.ARMED, "200Mi"),
        (SourceHealth.FAILED, "ENODEV"),
        (SourceHealth.FAILED, "EACCES"),
        (SourceHealth.ARMED, "200Mi"),
    ] == told
