from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reactor.config.settings import settings_from_text
from reactor.doctor.swap import parse_swaps, swap_feature
from reactor.errors import KernelInterfaceError
from reactor.model.settings import Settings

HEAD = "Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n"
Machine = Callable[..., Path]


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """Return a maker of a root with swap of 2 GiB, half of it free, on these areas."""

    def make(*areas: str, zswap: str = "N") -> Path:
        total, free = (2 << 20, 1 << 20) if areas else (0, 0)
        (tmp_path / "proc").mkdir()
        (tmp_path / "proc/meminfo").write_text(
            f"MemTotal: 9 kB\nSwapTotal: {total} kB\nSwapFree: {free} kB\n"
        )
        lines = [f"{area}\tpartition\t{total}\t0\t-2\n" for area in areas]
        (tmp_path / "proc/swaps").write_text(HEAD + "".join(lines))
        parameters = tmp_path / "sys/module/zswap/parameters"
        parameters.mkdir(parents=True)
        (parameters / "enabled").write_text(f"{zswap}\n")
        (parameters / "max_pool_percent").write_text("20\n")
        return tmp_path

    return make


def test_machine_without_swap_says_what_that_means(machine: Machine) -> None:
    found = swap_feature(Settings(), machine())
    assert not found.available
    assert "none: a threshold on swap.available is never met" == found.detail


def test_swap_is_told_with_where_it_lies(machine: Machine) -> None:
    found = swap_feature(Settings(), machine("/dev/sda2", r"/swap\040file"))
    assert found.available
    assert "2Gi, 1Gi free; on /dev/sda2, /swap file" == found.detail


def test_swap_that_is_memory_is_named(machine: Machine) -> None:
    detail = swap_feature(Settings(), machine("/dev/zram0", zswap="Y")).detail
    assert "zram stays in memory, compressed" in detail
    assert "zswap keeps pages compressed in memory first, in 20 % of it at most" in detail


@pytest.mark.parametrize(
    ("kubelet", "expected"),
    [
        ("{}", "the kubelet does not start with swap"),
        ("{failSwapOn: true}", "the kubelet does not start with swap"),
        ("{failSwapOn: false}", "pods get none (swapBehavior is not set"),
        ("{failSwapOn: false, memorySwap: {swapBehavior: NoSwap}}", "pods get none (swapBehavior NoSwap)"),
        ("{failSwapOn: false, memorySwap: {swapBehavior: LimitedSwap}}", "Burstable pods get a share"),
        ("{failSwapOn: false, memorySwap: {swapBehavior: Much}}", "unknown swapBehavior 'Much'"),
        ("{failSwapOn: false, memorySwap: {swapBehavior: [1]}}", "unknown swapBehavior [1]"),
    ],
)
def test_kubelets_word_on_swap_is_told(machine: Machine, tmp_path: Path, kubelet: str, expected: str) -> None:
    path = tmp_path / "kubelet.yaml"
    path.write_text(kubelet)
    settings = settings_from_text(f"reactor: {{kubernetes: {{kubelet: {{config: {path}}}}}}}", "f")
    assert f"{path}: {expected}" in swap_feature(settings, machine("/dev/sda2")).detail


@pytest.mark.parametrize("kubelet", ["[]", "{", "failSwapOn: true"])
def test_kubelets_configuration_that_says_nothing_of_this_machine_is_left_out(
    machine: Machine, tmp_path: Path, kubelet: str
) -> None:
    path = tmp_path / "kubelet.yaml"
    path.write_text(kubelet)
    settings = settings_from_text(f"reactor: {{kubernetes: {{kubelet: {{config: {path}}}}}}}", "f")
    assert str(path) not in swap_feature(settings, machine()).detail


def test_swap_that_can_not_be_read_is_unknown(tmp_path: Path) -> None:
    found = swap_feature(Settings(), tmp_path)
    assert not found.available
    assert found.detail.startswith("unknown: ")


@given(st.binary(max_size=200))
def test_any_bytes_are_areas_or_refused(raw: bytes) -> None:
    try:
        found = parse_swaps(HEAD.encode() + raw)
    except KernelInterfaceError:
        return
    assert all(name.isprintable() for name in found)
