"""What eBPF can watch on this node, found by loading each of the probes and letting it go again."""

from __future__ import annotations

from reactor.errors import BpfError
from reactor.kernel.bpf.loaders import open_memory_probe, open_oom_probe, open_tasks_probe, open_warrant_probe


def memory_watches() -> str:
    """Return on what memory can be watched. Raises BpfError where it can't at all."""
    with open_memory_probe() as probe:
        made_by = _in_brackets(probe.made_by)
        try:
            probe.prepare_node()
        except BpfError as error:
            return f"on cgroups{made_by}; not on the machine itself: {error}"
    return f"on cgroups and on the machine itself{made_by}"


def process_watches() -> str:
    """Return where numbers of processes can be watched. Raises BpfError where they can't at all."""
    with open_tasks_probe() as probe:
        made_by = _in_brackets(probe.made_by)
        try:
            probe.watch_node(0, [])
        except BpfError as error:
            return f"in cgroups{made_by}; not on the machine itself: {error}"
    return f"in cgroups and on the machine itself{made_by}"


def oom_kills() -> str:
    """Return how OOM kills are reported. Raises BpfError where they can't be."""
    with open_oom_probe() as probe:
        return f"each with its victim and the limit{_in_brackets(probe.made_by)}"


def warrants() -> str:
    """Return that the kernel can kill under a warrant. Raises BpfError where it can't."""
    with open_warrant_probe():
        return "the kernel can kill at a crossing, with reactor.kernelKill: hard"


def _in_brackets(made_by: str) -> str:
    return f" ({made_by})" if made_by else ""
