"""prometheus_client without the web servers that it brings along.

Its exposition module imports servers and clients for HTTP and WSGI, with e-mail's parser, OpenSSL and all:
7 MiB of a daemon that is to stay below 40. None of it is used here: the names of those modules are
replaced, for as long as the import lasts, by empty classes. Everything in reactor imports prometheus_client
from here.
"""

from __future__ import annotations

from typing import Final

from reactor.processes import HollowModule, replaced

_UNUSED: Final[tuple[str, ...]] = (
    "gzip",
    "http.server",
    "socketserver",
    "ssl",
    "urllib.error",
    "urllib.request",
    "wsgiref.simple_server",
)


with replaced({name: HollowModule(name) for name in _UNUSED}):
    from prometheus_client import CollectorRegistry, ProcessCollector
    from prometheus_client.core import (
        CounterMetricFamily,
        GaugeMetricFamily,
        HistogramMetricFamily,
        Metric,
    )
    from prometheus_client.exposition import choose_encoder
    from prometheus_client.registry import Collector

__all__ = [
    "Collector",
    "CollectorRegistry",
    "CounterMetricFamily",
    "GaugeMetricFamily",
    "HistogramMetricFamily",
    "Metric",
    "ProcessCollector",
    "choose_encoder",
]
