"""The node's pods from the kubelet itself: polled, since it has no watch; static pods are there as they run.

It asks the API server whether we may (`get` on `nodes/pods`, before 1.33 on `nodes/proxy`), so it is no way
around a lost one, but it answers from what it has decided before for a few minutes.
"""

from __future__ import annotations

import dataclasses

import trio

from reactor.kube.client import ApiClient
from reactor.kube.credentials import Access, read_access
from reactor.kube.errors import ApiError
from reactor.kube.watch import Sink, read_list
from reactor.model.settings import KubernetesSettings

PODS_PATH = "/pods"
SUMMARY_PATH = "/stats/summary"


def kubelet_access(settings: KubernetesSettings) -> Access:
    """Return the way to the kubelet: its own address and authority, our credentials.

    Raises ConfigError. Reads files: for a worker thread.
    """
    return dataclasses.replace(
        read_access(settings.kubeconfig_path),
        server=settings.kubelet_url,
        server_name=None,
        verified=settings.kubelet_verified,
        authority_pem=None,
        authority_path=settings.kubelet_ca_path,
    )


class KubeletPods:
    """Asks every `interval_seconds`. `problem` and `synced` are as a Watch's."""

    def __init__(self, client: ApiClient, sink: Sink, *, interval_seconds: float) -> None:
        self._client = client
        self._sink = sink
        self._interval_seconds = interval_seconds
        self.synced = trio.Event()
        self.problem: str | None = None

    async def run(self) -> None:
        """Ask until cancelled, whatever the kubelet answers."""
        while True:
            try:
                self._sink.listing()
                await read_list(self._client, PODS_PATH, {}, self._sink)
            except ApiError as error:
                self.problem = str(error)
            else:
                self._sink.listed()
                self.problem = None
                self.synced.set()
            await trio.sleep(self._interval_seconds)
