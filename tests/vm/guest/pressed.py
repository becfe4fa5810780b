"""A node under memory pressure with no pod to evict, and what its object at the API server then says."""

from __future__ import annotations

from typing import Any, Final

from api_double import NODE
from guarded import CGROUP, Tenant, eventually

# Of the slice's 512 MiB a unit that is no pod holds enough.
PRESSED: Final = {
    "evictionPressureTransitionPeriod": "1s",
    "evictionSoft": {"memory.available": "400Mi"},
    "evictionSoftGracePeriod": {"memory.available": "1h"},
    "evictionHard": {"memory.available": "64Mi"},
}
_TAINT: Final = "node.kubernetes.io/memory-pressure"
UNDER_PRESSURE: Final = [
    f"{_TAINT}:NoSchedule",
    f"{_TAINT}:PreferNoSchedule",
    "reactor/DiskPressure=False",
    "reactor/MemoryPressure=True",
    "reactor/PIDPressure=False",
    "reactor/taints",
]
AT_REST: Final = ["reactor/DiskPressure=False", "reactor/MemoryPressure=False", "reactor/PIDPressure=False"]


def section(kubeconfig: str) -> dict[str, Any]:
    """Return reactor's own section for the node of a double, beside a kubelet."""
    return {
        "housekeepingInterval": "5s",
        "kubernetes": {"nodeName": NODE, "kubeconfig": kubeconfig, "role": "alongside"},
        "pods": {"parents": [f"{CGROUP}/kubepods"]},
    }


def holder_of_memory() -> Tenant:
    """Start what causes the pressure, and return it once it does."""
    found = Tenant("holder", "hold", "200")
    eventually(found.holds_its_memory, "the memory of a unit that is no pod")
    return found
