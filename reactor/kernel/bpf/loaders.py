"""The loader of the eBPF programs: libbpf where the kernel has BTF, else BCC, unless one is configured.

What libbpf loads is called by trampolines. Whether the kernel has them is found by attaching: arm64 before
6.4 takes the programs and attaches none. There those of the same bodies that kprobes call are loaded.

With BCC opening takes seconds; `interrupt` is called meanwhile, and an exception of it ends the compiler.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, TypeVar

from reactor.errors import BpfError, BpfNotAttachedError
from reactor.kernel.bpf import objects as bpf
from reactor.kernel.bpf.objects import NO_BTF, has_btf
from reactor.kernel.bpf.probes import MemoryProbe, OomProbe, OomRecords, TasksProbe
from reactor.kernel.bpf.warrants import WarrantProbe
from reactor.model.settings import EbpfLoader

if TYPE_CHECKING:
    from reactor.kernel.bpf import bcc_probes

_EXACT: Final = "a kprobe can miss a charge, and a warrant must not"
_Probe = TypeVar("_Probe")


def absent_because(name: str, loader: EbpfLoader = EbpfLoader.AUTO) -> str | None:
    """Return what an object lacks to be tried at all, as one line; None where the kernel is to be asked.

    What BCC lacks is found out by trying it.
    """
    return None if uses_bcc(loader) else bpf.absent_because(name)


def open_memory_probe(
    loader: EbpfLoader = EbpfLoader.AUTO, *, interrupt: Callable[[], None] = lambda: None
) -> MemoryProbe | bcc_probes.BccMemoryProbe:
    """Return the memory probe, attached. Raises BpfError."""
    if not uses_bcc(loader):
        return by_libbpf(MemoryProbe, loader)
    from reactor.kernel.bpf import bcc_probes  # noqa: PLC0415 - on few nodes only

    return bcc_probes.BccMemoryProbe(bcc_probes.compiled(interrupt))


def open_tasks_probe(
    loader: EbpfLoader = EbpfLoader.AUTO, *, interrupt: Callable[[], None] = lambda: None
) -> TasksProbe | bcc_probes.BccTasksProbe:
    """Return the process-count probe, attached. Raises BpfError."""
    if not uses_bcc(loader):
        return by_libbpf(TasksProbe, loader)
    from reactor.kernel.bpf import bcc_probes  # noqa: PLC0415 - on few nodes only

    return bcc_probes.BccTasksProbe(bcc_probes.compiled(interrupt))


def open_oom_probe(
    loader: EbpfLoader = EbpfLoader.AUTO, *, interrupt: Callable[[], None] = lambda: None
) -> OomRecords:
    """Return the probe of OOM kills, attached. Raises BpfError."""
    if not uses_bcc(loader):
        return by_libbpf(OomProbe, loader)
    from reactor.kernel.bpf import bcc_probes  # noqa: PLC0415 - on few nodes only

    return bcc_probes.BccOomProbe(bcc_probes.compiled(interrupt))


def open_warrant_probe(loader: EbpfLoader = EbpfLoader.AUTO) -> WarrantProbe:
    """Return what holds warrants, attached. Raises BpfError; neither BCC nor kprobes make any."""
    if uses_bcc(loader):
        because = NO_BTF if not has_btf() else "reactor.ebpf.loader is bcc"
        raise BpfError("warrants", f"{because}; they are made by libbpf alone")
    if loader is EbpfLoader.KPROBE:
        raise BpfError("warrants", f"reactor.ebpf.loader is {loader}; {_EXACT}")
    try:
        return WarrantProbe()
    except BpfNotAttachedError as error:
        raise BpfError("warrants", f"{error.detail}; {_EXACT}", log=error.log) from None


def by_libbpf(make: Callable[..., _Probe], loader: EbpfLoader) -> _Probe:
    """Return a probe, attached by trampolines, or by kprobes where the kernel or `loader` wants those.

    Raises BpfError, with both reasons where neither can be had.
    """
    if loader is EbpfLoader.KPROBE:
        return make(kprobes=True)
    try:
        return make()
    except BpfNotAttachedError as refused:
        try:
            return make(kprobes=True)
        except BpfError as error:
            raise BpfError(refused.detail, error.detail, log=error.log or refused.log) from None


def uses_bcc(loader: EbpfLoader = EbpfLoader.AUTO) -> bool:
    return loader is EbpfLoader.BCC or (loader is EbpfLoader.AUTO and not has_btf())


# What eBPF can watch on this node, found by loading each of the probes and letting it go again.


def memory_watches() -> str:
    """Return on what memory can be watched. Raises BpfError where it can't at all."""
    with open_memory_probe() as probe:
        made_by = _in_brackets(probe.made_by or probe.hooks)
        try:
            probe.prepare_node()
        except BpfError as error:
            return f"on cgroups{made_by}; not on the machine itself: {error}"
    return f"on cgroups and on the machine itself{made_by}"


def process_watches() -> str:
    """Return where numbers of processes can be watched. Raises BpfError where they can't at all."""
    with open_tasks_probe() as probe:
        made_by = _in_brackets(probe.made_by or probe.hooks)
        try:
            probe.watch_node(0, [])
        except BpfError as error:
            return f"in cgroups{made_by}; not on the machine itself: {error}"
    return f"in cgroups and on the machine itself{made_by}"


def oom_kills() -> str:
    """Return how OOM kills are reported. Raises BpfError where they can't be."""
    with open_oom_probe() as probe:
        return f"each with its victim and the limit{_in_brackets(probe.made_by or probe.hooks)}"


def warrants() -> str:
    """Return that the kernel can kill under a warrant. Raises BpfError where it can't."""
    with open_warrant_probe():
        return "the kernel can kill at a crossing, with reactor.kernelKill: hard"


def _in_brackets(made_by: str) -> str:
    return f" ({made_by})" if made_by else ""
