"""The specs of the node's pods: from the API server, or the kubelet in its place."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from reactor.kernel.scheduling import following
from reactor.kube.client import ApiClient
from reactor.kube.credentials import Credentials, Session
from reactor.kube.kubelet import KubeletPods, kubelet_access
from reactor.kube.pods import KnownPod, PodStore
from reactor.kube.watch import Watch
from reactor.model.settings import KubernetesSettings, PodOrigin, Settings
from reactor.supervisor import Part
from reactor.threads import in_thread

_KUBELET_SECONDS: Final = 5.0


class PodSpecs:
    """Follows the node's pods and keeps their specs. `on_change` is called when there is something new.

    `client` asks the API server; for the kubelet there is another one.
    """

    def __init__(
        self, settings: Settings, client: ApiClient, node_name: str, on_change: Callable[[], None]
    ) -> None:
        self._own_client: ApiClient | None = None
        kubernetes = settings.kubernetes or KubernetesSettings()
        self.store = PodStore(on_change, node_name=node_name, origin=kubernetes.pods_from)
        self._source: Watch | KubeletPods
        if kubernetes.pods_from is PodOrigin.API:
            selector = {"fieldSelector": f"spec.nodeName={node_name}"}
            self._source = Watch(client, "/api/v1/pods", selector, self.store)
        else:
            self._own_client = ApiClient(_kubelet_credentials(kubernetes))
            self._source = KubeletPods(self._own_client, self.store, interval_seconds=_KUBELET_SECONDS)

    @property
    def problems(self) -> Mapping[str, str | None]:
        """Return what is wrong at present, None where nothing is."""
        return {
            "kubernetes pods": self._source.problem,
            **self.store.problems,
        }

    @property
    def is_heard(self) -> bool:
        """Return whether the source of pods has listed all of them, and still reports changes."""
        return self._source.synced.is_set() and self._source.problem is None

    @property
    def services(self) -> Mapping[str, Part]:
        """Return what is to run for as long as the daemon does."""
        return {"pods": self._source.run}

    def known(self, uid: str) -> KnownPod | None:
        """Return what is told of a pod."""
        return self.store.known.get(uid)

    def close(self) -> None:
        """Close the connections to the kubelet."""
        if self._own_client is not None:
            self._own_client.close()


async def session_read(read: Callable[[], Session]) -> Session:
    """Return what `read` returns, from a thread that has none of the loop's priority: files may be slow."""
    return await in_thread(following(read), abandon_on_cancel=True)


def _kubelet_credentials(kubernetes: KubernetesSettings) -> Credentials:
    return Credentials(
        lambda: kubelet_access(kubernetes), watched=kubernetes.kubeconfig_path, in_thread=session_read
    )
