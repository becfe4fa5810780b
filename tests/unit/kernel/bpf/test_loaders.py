"""Trampolines are tried, and kprobes stand in only where the kernel attaches none."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from reactor.errors import BpfError, BpfNotAttachedError
from reactor.kernel.bpf.loaders import by_libbpf, open_warrant_probe
from reactor.kernel.bpf.objects import explain_errno
from reactor.kernel.bpf.probes import file_name
from reactor.model.settings import EbpfLoader

NOT_ATTACHED = BpfNotAttachedError("eBPF object memory", "fexit/page_counter_try_charge not attached: no")


@dataclass
class Kernel:
    """What it refuses, by the kind of hooks; `asked` is which were tried."""

    refused: dict[bool, BpfError] = field(default_factory=dict)
    asked: list[bool] = field(default_factory=list)

    def __call__(self, *, kprobes: bool = False) -> str:
        self.asked.append(kprobes)
        if kprobes in self.refused:
            raise self.refused[kprobes]
        return "kprobes" if kprobes else "trampolines"


@pytest.mark.parametrize("loader", [EbpfLoader.AUTO, EbpfLoader.LIBBPF])
def test_trampolines_are_used_where_they_attach_and_nothing_else_is_loaded(loader: EbpfLoader) -> None:
    kernel = Kernel()
    assert "trampolines" == by_libbpf(kernel, loader)
    assert [False] == kernel.asked


@pytest.mark.parametrize("loader", [EbpfLoader.AUTO, EbpfLoader.LIBBPF])
def test_kprobes_stand_in_where_trampolines_do_not_attach(loader: EbpfLoader) -> None:
    assert "kprobes" == by_libbpf(Kernel({False: NOT_ATTACHED}), loader)


def test_a_program_that_is_not_taken_at_all_is_not_tried_again_by_kprobes() -> None:
    kernel = Kernel({False: BpfError("eBPF object memory", "needs CAP_BPF")})
    with pytest.raises(BpfError, match="needs CAP_BPF"):
        by_libbpf(kernel, EbpfLoader.AUTO)
    assert [False] == kernel.asked


def test_both_reasons_are_told_in_one_line_where_neither_can_be_had() -> None:
    kernel = Kernel({False: NOT_ATTACHED, True: BpfError("eBPF object memory_kprobe", "not in this kernel")})
    with pytest.raises(
        BpfError, match="try_charge not attached: no: eBPF object memory_kprobe: not in"
    ) as caught:
        by_libbpf(kernel, EbpfLoader.AUTO)
    assert "\n" not in str(caught.value)


def test_trampolines_are_not_tried_where_kprobes_are_configured() -> None:
    kernel = Kernel()
    assert "kprobes" == by_libbpf(kernel, EbpfLoader.KPROBE)
    assert [True] == kernel.asked


def test_warrants_are_not_made_by_kprobes() -> None:
    with pytest.raises(BpfError, match=r"reactor\.ebpf\.loader is kprobe; a kprobe can miss a charge"):
        open_warrant_probe(EbpfLoader.KPROBE)


def test_kernel_without_direct_calls_is_told_by_what_it_lacks() -> None:
    """The C library has no text for ENOTSUPP, which is the kernel's own."""
    assert "no direct calls, which trampolines need (arm64: from 6.4 on)" in explain_errno(524)


def test_each_kind_has_a_file_of_its_own() -> None:
    assert ("memory", "memory_kprobe") == (
        file_name("memory", kprobes=False),
        file_name("memory", kprobes=True),
    )
