"""The loader of the eBPF programs: libbpf where the kernel has BTF, else BCC, unless one is configured.

With BCC opening takes seconds; `interrupt` is called meanwhile, and an exception of it ends the compiler.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from reactor.errors import BpfError
from reactor.kernel.bpf import objects as bpf
from reactor.kernel.bpf.probes import MemoryProbe, OomProbe, OomRecords, TasksProbe
from reactor.kernel.bpf.refusal import NO_BTF, has_btf
from reactor.kernel.bpf.warrants import WarrantProbe
from reactor.model.settings import EbpfLoader

if TYPE_CHECKING:
    from reactor.kernel.bpf import bcc_probes


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
        return MemoryProbe()
    from reactor.kernel.bpf import bcc_probes  # noqa: PLC0415 - on few nodes only

    return bcc_probes.BccMemoryProbe(bcc_probes.compiled(interrupt))


def open_tasks_probe(
    loader: EbpfLoader = EbpfLoader.AUTO, *, interrupt: Callable[[], None] = lambda: None
) -> TasksProbe | bcc_probes.BccTasksProbe:
    """Return the process-count probe, attached. Raises BpfError."""
    if not uses_bcc(loader):
        return TasksProbe()
    from reactor.kernel.bpf import bcc_probes  # noqa: PLC0415 - on few nodes only

    return bcc_probes.BccTasksProbe(bcc_probes.compiled(interrupt))


def open_oom_probe(
    loader: EbpfLoader = EbpfLoader.AUTO, *, interrupt: Callable[[], None] = lambda: None
) -> OomRecords:
    """Return the probe of OOM kills, attached. Raises BpfError."""
    if not uses_bcc(loader):
        return OomProbe()
    from reactor.kernel.bpf import bcc_probes  # noqa: PLC0415 - on few nodes only

    return bcc_probes.BccOomProbe(bcc_probes.compiled(interrupt))


def open_warrant_probe(loader: EbpfLoader = EbpfLoader.AUTO) -> WarrantProbe:
    """Return what holds warrants, attached. Raises BpfError; BCC makes none."""
    if uses_bcc(loader):
        because = NO_BTF if not has_btf() else "reactor.ebpf.loader is bcc"
        raise BpfError("warrants", f"{because}; they are made by libbpf alone")
    return WarrantProbe()


def uses_bcc(loader: EbpfLoader = EbpfLoader.AUTO) -> bool:
    """Return whether BCC is to make the programs on this kernel."""
    return loader is EbpfLoader.BCC or (loader is EbpfLoader.AUTO and not has_btf())
