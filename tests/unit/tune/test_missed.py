import pytest

from reactor.config.settings import settings_from_text
from reactor.tune.history import Crossing, History
from reactor.tune.measured import Measured
from reactor.tune.missed import Verdict, verdict
from reactor.tune.model import Assumptions, recommend
from tests.unit.tune.crossings import make_crossing

MIB = 1 << 20
SOFT = (
    "evictionSoft: {memory.available: 2Gi}\n"
    "evictionSoftGracePeriod: {memory.available: 30s}\n"
    "evictionMaxPodGracePeriod: 30\n"
)
ENOUGH = f"evictionHard: {{memory.available: 1500Mi}}\n{SOFT}"


def crossings(*rates_bytes: float) -> tuple[Crossing, ...]:
    return tuple(make_crossing(rate_bytes) for rate_bytes in rates_bytes)


def on(measured: Measured, text: str, history: History | None = None) -> Verdict:
    history = history or History()
    return verdict(settings_from_text(text, "x"), recommend(measured, history, Assumptions()), history)


def test_a_configuration_that_is_enough_misses_nothing_and_says_what_it_covers(measured: Measured) -> None:
    found = on(measured, ENOUGH)
    assert () == found.misses
    assert any("one allocator with huge pages (3.91 GiB/s)" in line for line in found.covers)
    assert any("the ticker alone (every 10 s): 13" in line for line in found.covers)


def test_a_threshold_that_is_too_low_misses_each_allocator_that_is_too_fast(measured: Measured) -> None:
    misses = on(measured, f"evictionHard: {{memory.available: 300Mi}}\n{SOFT}").misses
    assert any(line.startswith("one allocator with huge pages: takes") for line in misses)
    assert not any(line.startswith("one allocator at full speed") for line in misses)


def test_a_threshold_below_the_reserve_is_told(measured: Measured) -> None:
    for value, is_told in (("100Mi", False), ("50Mi", True)):
        found = on(measured, f"evictionHard: {{memory.available: {value}}}")
        assert is_told is any("below the reserve of 100 MiB" in line for line in found.misses)
        assert () == found.covers


@pytest.mark.parametrize(
    ("text", "missed"),
    [
        ("evictionHard: {nodefs.available: 5%}", "no hard threshold for memory.available"),
        ("evictionHard: {memory.available: 1500Mi}", "no soft threshold for memory.available"),
        (f"{ENOUGH}reactor: {{dryRun: true}}", "dryRun is on"),
        (ENOUGH.replace("2Gi", "1Gi"), "memory.available<1Gi is not above the hard threshold"),
        (ENOUGH.replace("1500Mi", "2040Mi"), "leaves 8 MiB above the hard threshold"),
        (ENOUGH.replace("PodGracePeriod: 30", "PodGracePeriod: 0"), "are killed at once"),
    ],
)
def test_each_gap_is_told(measured: Measured, text: str, missed: str) -> None:
    assert any(missed in line for line in on(measured, text).misses), on(measured, text).misses


def test_what_the_history_knows_is_held_against_it(measured: Measured) -> None:
    history = History(
        decisions=9,
        crossings=crossings(1.0 * MIB, 900_000.0 * MIB),
        spells_seconds=(5.0, 45.0),
        terminated_seconds=(40.0,),
        missed=2,
    )
    misses = " ".join(on(measured, ENOUGH, history).misses)
    for part in (
        "memory grew faster than that 1 times of the 2",
        "1 of 2 shortages that passed by themselves",
        "pods took up to 40 s to exit, and are given 30 s",
        "has killed 2 processes",
    ):
        assert part in misses
