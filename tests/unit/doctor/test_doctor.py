from __future__ import annotations

import json
import socket
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reactor.config.settings import settings_from_text
from reactor.doctor.doctor import (
    _of_use,
    examine,
    exit_status,
    kernel_kill_plan,
    parse_swaps,
    second_choices,
    source_plans,
    swap_feature,
)
from reactor.doctor.kubernetes import runtime_feature
from reactor.errors import KernelInterfaceError
from reactor.kernel.features import Feature
from reactor.model.settings import (
    EbpfLoader,
    KernelKill,
    KubernetesSettings,
    RealtimeSettings,
    Settings,
    SourceSettings,
    SystemdOomd,
)
from reactor.sources.catalogue import SOURCES

EVERYTHING = ("memcg eventfd", "memory.high", "pressure stall information", "process events")
OF_EBPF = ("eBPF process counts", "eBPF OOM kills")
ALWAYS = ("oom-counters", "filesystems", "ticker")

HEAD = "Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n"
Machine = Callable[..., Path]


def features(*there: str) -> dict[str, Feature]:
    return {
        name: Feature(name=name, available=name in there, detail="found" if name in there else "missing")
        for name in {*EVERYTHING, *there}
    }


def used(settings: Settings, *there: str) -> list[str]:
    return [plan.name for plan in source_plans(settings, features(*there)) if plan.used]


def test_eventfd_comes_first_and_memory_high_stands_in_only_without_it():
    on_v1 = ["memcg-eventfd", "memcg-reclaim", "psi", "processes", *ALWAYS]
    assert on_v1 == used(Settings(), *EVERYTHING)
    assert ["memory-high", "psi", "processes", *ALWAYS] == used(Settings(), *EVERYTHING[1:])


def test_ticker_is_left_where_there_is_nothing_else():
    assert list(ALWAYS) == used(Settings())


def test_each_source_is_listed_once_with_why_it_is_used_or_not():
    plans = source_plans(Settings(), features(*EVERYTHING[1:], "eBPF watches"))
    assert [source.name for source in SOURCES] == [plan.name for plan in plans]
    because = {plan.name: plan.because for plan in plans}
    assert ("ebpf comes first", "every 10 s") == (because["memory-high"], because["ticker"])


def test_what_is_switched_off_is_not_used_and_says_so():
    settings = Settings(sources=SourceSettings(memory_high=False, processes=False))

    plans = {plan.name: plan for plan in source_plans(settings, features(*EVERYTHING[1:]))}

    assert not plans["memory-high"].used
    assert plans["memory-high"].because == "switched off in the configuration"
    assert not plans["processes"].used


def test_on_v1_what_needs_v2_is_not_used_though_the_kernel_has_it():
    plans = {plan.name: plan for plan in source_plans(Settings(), features(*EVERYTHING, "eBPF watches"))}

    for name in ("ebpf", "memory-high"):
        assert (False, "the memory controller is on cgroup v1") == (plans[name].used, plans[name].because)


def test_doctor_prints_what_it_found_as_json(capsys):
    examine(None, "json")

    found = json.loads(capsys.readouterr().out)
    assert {"name", "available", "detail", "remedy", "log"} == set(found["features"][0])
    assert found["sources"][-1]["name"] == "ticker"


def test_doctor_says_what_keeps_systemds_units_from_counting(capsys):
    settings = Settings(systemd_oomd=SystemdOomd.REPLACE)
    examine(settings, "json")
    (*_, missing) = json.loads(capsys.readouterr().out)["systemd_oomd"]
    assert "/run/reactor-managed-oom/units is missing" in missing
    examine(settings, "text")
    assert "systemdOomd: has no effect on this machine now" in capsys.readouterr().out
    examine(Settings(), "json")
    assert [] == json.loads(capsys.readouterr().out)["systemd_oomd"]


def test_doctor_prints_a_table_with_the_remedies(capsys, tmp_path):
    settings = Settings(runtime_endpoint=str(tmp_path / "none.sock"))
    remedy = runtime_feature(settings).remedy
    assert remedy

    examine(settings, "table")

    printed = " ".join(capsys.readouterr().out.split())  # without the terminal's line ends
    assert "FEATURE" in printed
    assert "ticker" in printed
    assert f"remedy: container runtime: {remedy}" in printed


def test_what_only_warrants_lack_has_a_remedy_where_they_are_wanted_and_can_be_had():
    lacks = Feature(name="eBPF warrants", available=False, detail="missing", remedy="get it")
    on_v2 = source_plans(Settings(), features("memory.high"))
    on_v1 = source_plans(Settings(), features("memcg eventfd"))

    assert [lacks] == list(_of_use([lacks], on_v2, KernelKill.HARD))
    assert [] == list(_of_use([lacks], on_v2, KernelKill.OFF))
    assert [] == list(_of_use([lacks], on_v1, KernelKill.HARD))


def test_doctor_says_whether_the_kernel_can_kill():
    hard = Settings(kernel_kill=KernelKill.HARD)
    can = features("eBPF warrants")
    cannot = {"eBPF warrants": Feature(name="eBPF warrants", available=False, detail="missing")}
    assert kernel_kill_plan(hard, can).startswith("used where it is certain")
    assert kernel_kill_plan(hard, cannot) == "not used: missing"
    assert kernel_kill_plan(hard, {}) == "not used: unknown"
    assert kernel_kill_plan(hard, features("eBPF warrants", "memcg eventfd")) == (
        "not used: the memory controller is on cgroup v1"
    )
    by_bcc = replace(hard, sources=SourceSettings(ebpf_loader=EbpfLoader.BCC))
    assert kernel_kill_plan(by_bcc, can) == "not used: reactor.ebpf.loader is bcc"
    off = "not used: switched off in the configuration; this node"
    assert kernel_kill_plan(Settings(), can) == f"{off} can"
    assert kernel_kill_plan(Settings(), cannot) == f"{off} can't: missing"


def test_a_runtime_that_is_missing_is_named_with_where_it_was_looked_for(tmp_path):
    settings = Settings(runtime_endpoint=str(tmp_path / "none.sock"), kubernetes=KubernetesSettings())
    found = runtime_feature(settings)
    assert not found.available
    assert str(tmp_path / "none.sock") in found.detail
    assert "reactor.runtime.endpoint" in found.remedy


def test_a_socket_on_which_no_runtime_answers_is_no_runtime(tmp_path):
    path = str(tmp_path / "other.sock")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(path)
        found = runtime_feature(Settings(runtime_endpoint=path))
    assert not found.available
    assert "Connection refused" in found.detail


def lacking(settings: Settings, *there: str) -> dict[str, str]:
    found = features(*there, "capabilities", "realtime", "memory lock")
    return second_choices(settings, source_plans(settings, found), found)


def test_first_choices_are_those_of_the_machines_cgroup_version():
    on_v2 = ("eBPF watches", "eBPF process counts", "eBPF OOM kills", "memory.high")
    assert {} == lacking(Settings(), *EVERYTHING)
    assert {} == lacking(Settings(), *on_v2)


def test_a_source_that_stands_in_for_the_first_is_a_second_choice_with_the_reason():
    found = features("memory.high", "eBPF watches", "process events", "capabilities")
    found |= {name: Feature(name=name, available=False, detail="missing") for name in OF_EBPF}
    lacks = second_choices(Settings(), source_plans(Settings(), found), found)
    assert {
        "processes": "processes in place of ebpf-pids: missing",
        "oom-kills": "oom-counters in place of ebpf-oom: missing",
    } == lacks


def test_what_is_switched_off_is_no_second_choice():
    settings = Settings(sources=SourceSettings(ebpf=False))
    assert {} == lacking(settings, "memory.high", "process events")


def test_what_keeps_the_daemon_awake_counts_where_it_is_wanted():
    found = features(*EVERYTHING, "capabilities")
    found |= {
        name: Feature(name=name, available=False, detail="refused") for name in ("realtime", "memory lock")
    }
    plans = source_plans(Settings(), found)
    assert {"realtime": "refused", "memory lock": "refused"} == second_choices(Settings(), plans, found)
    without = Settings(realtime=RealtimeSettings(fifo_priority=0, lock_memory=False))
    assert {} == second_choices(without, plans, found)


def test_the_exit_status_is_as_ever_and_has_three_values_if_strict():
    lacks = {"memory": "ticker in place of ebpf"}
    as_ever = [exit_status(works=works, lacks=lacks, strict=False) for works in (True, False)]
    assert [0, 1] == as_ever
    strict = [
        exit_status(works=works, lacks=one, strict=True) for works, one in ((1, {}), (1, lacks), (0, {}))
    ]
    assert [0, 1, 2] == strict


def test_swap_is_sampled_only_where_a_threshold_is_for_it():
    settings = settings_from_text("{evictionHard: {swap.available: 10%}}", "f")
    assert "swap" in used(settings)
    assert "swap" not in used(Settings())


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


def test_swap_is_reported_with_where_it_lies(machine: Machine) -> None:
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
def test_kubelets_word_on_swap_is_reported(
    machine: Machine, tmp_path: Path, kubelet: str, expected: str
) -> None:
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
