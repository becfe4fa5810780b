"""The specs of the node's pods: from the API server, or the kubelet in its place."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

import trio

from reactor.cluster.announce import Announcement
from reactor.config.documents import load_documents
from reactor.errors import ConfigError
from reactor.kernel.scheduling import following
from reactor.kube.client import ApiClient
from reactor.kube.credentials import Credentials, Session
from reactor.kube.kubelet import KubeletPods, kubelet_access
from reactor.kube.pods import PENDING, KnownPod, PodStore
from reactor.kube.watch import Watch
from reactor.model.pods import NodeFiles
from reactor.model.settings import KubernetesSettings, PodOrigin, Settings
from reactor.model.signals import NodeCondition
from reactor.policy.admission import refusal
from reactor.supervisor import Part
from reactor.threads import in_thread

_KUBELET_SECONDS: Final = 5.0

_LARGEST_BYTES: Final = 1 << 20


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


# What files show of pods without API server and runtime: the kubelet's logs, static pods' manifests.


class NodeFilesWatch:
    """Reads the files every `interval_seconds`; `files` is what was found last.

    `on_change` is called where that differs from what was found before.
    """

    def __init__(
        self,
        static_pods_path: str | None,
        log_directory: Path,
        interval_seconds: float,
        on_change: Callable[[], None] = lambda: None,
    ) -> None:
        self._read = partial(read_node_files, static_pods_path, log_directory)
        self._interval_seconds = interval_seconds
        self._on_change = on_change
        self.files = NodeFiles()

    async def run(self) -> None:
        """Read until cancelled."""
        while True:
            found = await in_thread(following(self._read), abandon_on_cancel=True)
            if found != self.files:
                self.files = found
                self._on_change()
            await trio.sleep(self._interval_seconds)


def read_node_files(static_pods_path: str | None, log_directory: Path) -> NodeFiles:
    """Return what there is. Reads a disk; what can't be read is left out, since it is only a help.

    A uid of which two directories show different names has none.
    """
    found: dict[str, set[tuple[str, str]]] = {}
    for uid, name in _named(log_directory):
        found.setdefault(uid, set()).add(name)
    return NodeFiles(
        names={uid: next(iter(names)) for uid, names in found.items() if len(names) == 1},
        static_uids=frozenset() if static_pods_path is None else frozenset(_static_uids(static_pods_path)),
    )


def _named(directory: Path) -> Iterator[tuple[str, tuple[str, str]]]:
    """Yield uid, namespace and name of each directory NAMESPACE_NAME_UID; none has an underscore."""
    with suppress(OSError):
        for entry in os.listdir(directory):
            parts = entry.split("_")
            if len(parts) == 3:
                yield parts[2], (parts[0], parts[1])


def _static_uids(path: str) -> Iterator[str]:
    """Yield the uids that manifests give; the kubelet makes one of its own where they give none."""
    where = Path(path)
    with suppress(OSError):
        files = sorted(where.iterdir()) if where.is_dir() else [where]
        for file in files:
            with suppress(OSError, ValueError, ConfigError):
                yield from _uids(file)


def _uids(file: Path) -> Iterator[str]:
    fd = os.open(file, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # a FIFO must not hold the caller
    with os.fdopen(fd, "rb") as opened:
        text = opened.read(_LARGEST_BYTES).decode()
    for document in load_documents(text, str(file)):
        metadata: Any = document.get("metadata") if isinstance(document, Mapping) else None
        uid = metadata.get("uid") if isinstance(metadata, Mapping) else None
        if isinstance(uid, str) and uid:
            yield uid


class AdmissionGuard:
    """Checks each pod once, when it is first listed; those of the first list were there before."""

    def __init__(
        self,
        pods: PodStore,
        refuse: Callable[[Announcement], None],
        clock_unix_seconds: Callable[[], float],
    ) -> None:
        self._pods = pods
        self._refuse = refuse
        self._clock_unix_seconds = clock_unix_seconds
        self._seen: frozenset[str] | None = None

    def check(self, conditions: Sequence[NodeCondition], *, is_shutting_down: bool = False) -> None:
        """Refuse what has arrived since the last check, if conditions or a shutdown don't admit it."""
        if not self._pods.is_complete:
            return
        known = self._pods.known
        if self._seen is not None:
            for uid in known.keys() - self._seen:
                self._admit(known[uid], conditions, is_shutting_down=is_shutting_down)
        self._seen = frozenset(known)

    def _admit(self, known: KnownPod, conditions: Sequence[NodeCondition], *, is_shutting_down: bool) -> None:
        if known.phase != PENDING or known.has_started or known.is_being_deleted:
            return
        refused = refusal(known.pod, conditions, is_shutting_down=is_shutting_down)
        if refused is not None:
            reason, message = refused
            self._refuse(
                Announcement(
                    uid=known.api_uid,
                    name=known.pod.name,
                    namespace=known.pod.namespace,
                    message=message,
                    reason=reason,
                    at_unix_seconds=self._clock_unix_seconds(),
                    disrupted=False,
                    refused=True,
                )
            )
