import dataclasses
from pathlib import Path

import pytest
import trio
import trio.testing

from reactor.kernel.cgroup import CgroupTree
from reactor.kernel.cgroup_directory import CgroupVersion
from reactor.kernel.features import probe
from reactor.kernel.memory_control import BorrowedHighs
from reactor.model.settings import Settings, SourceSettings
from reactor.model.signals import Signal
from reactor.sources.catalogue import (
    EBPF_PIDS,
    FILESYSTEMS,
    PROCESSES,
    PSI,
    RULE_PRESSURE,
    SOURCES,
    SWAP,
    TICKER,
    chain_of,
    switched_on,
)
from reactor.sources.memory import memory_chain
from reactor.sources.oom import OomSource
from reactor.sources.processes import process_chain
from reactor.sources.wakes import Wakes

TREE = CgroupTree(version=CgroupVersion.V1, memory_root=Path("/nowhere"))


def test_names_are_unique_and_each_says_what_it_is_for() -> None:
    assert len(SOURCES) == len({source.name for source in SOURCES})
    assert all(source.purpose for source in SOURCES)


def test_a_source_needs_a_feature_that_is_probed_or_says_why_it_needs_none(tmp_path: Path) -> None:
    probed = {feature.name for feature in probe(tmp_path)}
    for source in SOURCES:
        assert source.feature in probed or source.because or source.name == TICKER


def test_every_switch_is_a_setting_and_every_setting_switches_something() -> None:
    switches = {switch for source in SOURCES for switch in source.switches}
    assert switches == {field.name for field in dataclasses.fields(SourceSettings)} - {"ebpf_loader"}


@pytest.mark.parametrize("signal", Signal)
def test_the_ticker_is_the_last_in_every_chain_and_a_hint_is_in_none(signal: Signal) -> None:
    names = [source.name for source in chain_of(signal)]
    assert TICKER == names[-1]
    assert len(names) > 1
    assert PSI not in names


def test_a_source_with_two_switches_is_on_only_while_both_are() -> None:
    assert switched_on(SourceSettings())[EBPF_PIDS]
    for switch in ("ebpf", "processes"):
        assert not switched_on(SourceSettings(**{switch: False}))[EBPF_PIDS]
    assert switched_on(SourceSettings(ebpf=False))[PROCESSES]


async def test_the_chains_are_built_in_the_order_of_the_catalogue(
    autojump_clock: trio.testing.MockClock,
) -> None:
    wakes = Wakes()
    off = {switch: False for source in SOURCES for switch in source.switches}
    settings = Settings(sources=SourceSettings(**off))
    async with trio.open_nursery() as nursery:
        await nursery.start(memory_chain(TREE, settings, wakes, BorrowedHighs()).run)
        await nursery.start(process_chain(TREE, settings.sources, wakes).run)
        await nursery.start(OomSource(TREE, settings, wakes, lambda _: None).run)
        nursery.cancel_scope.cancel()
    elsewhere = {FILESYSTEMS, SWAP, RULE_PRESSURE, TICKER}
    in_chains = [source.name for source in SOURCES if source.name not in elsewhere]
    assert in_chains == [state.name for state in wakes.board.states()]
