"""Metrics of the daemon's part in a cluster: whether it is heard, and what it has not been told yet."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from reactor.daemon.prometheus import Collector, GaugeMetricFamily, Metric


class Told(Protocol):
    """What a scrape reads off the daemon's part in a cluster."""

    @property
    def watches(self) -> dict[str, bool]:
        """Whether each of the watches is well."""

    @property
    def pending(self) -> int:
        """How many evictions the control plane has not heard of yet."""


class ClusterMetrics(Collector):
    """Collects at each scrape."""

    def __init__(self, cluster: Told) -> None:
        self._cluster = cluster

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics."""
        connected = GaugeMetricFamily(
            "reactor_kubernetes_connected",
            "Whether the pods and the node are being told by the API server or the kubelet (1) or not (0).",
            labels=["watch"],
        )
        for name, is_well in self._cluster.watches.items():
            connected.add_metric([name], float(is_well))
        yield connected
        yield GaugeMetricFamily(
            "reactor_kubernetes_untold_evictions",
            "Evictions whose status or event the API server does not have yet.",
            value=float(self._cluster.pending),
        )
