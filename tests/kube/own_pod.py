"""The pod that a daemon takes for its own, and the DaemonSet that has made it: objects, no more.

The daemon runs as it always does here; what it is told of itself is what the manifests tell it.
"""

from __future__ import annotations

from typing import Final

import images
from api import Object
from cluster import Cluster
from deployed import NAMESPACE, collection
from machine import wait_until

_NAME: Final = "reactor"
_POD: Final = "reactor-own"
_LABELS: Final = {"app": "reactor-test-own"}


class OwnPod:
    """Both are there from the start; `remove` removes what is left of them."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._pods_path = f"/api/v1/namespaces/{NAMESPACE}/pods"
        self.environment = {"POD_NAME": _POD, "POD_NAMESPACE": NAMESPACE}
        cluster.api.create_unless_there("/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
        container = {
            "name": "main",
            "image": images.LOAD,
            "imagePullPolicy": "Never",
            "args": ["idle"],
        }
        spec = {
            "hostNetwork": True,
            "terminationGracePeriodSeconds": 1,
            "automountServiceAccountToken": False,
            "tolerations": [{"operator": "Exists"}],
            "containers": [container],
        }
        daemon_set: Object = {
            "apiVersion": "apps/v1",
            "kind": "DaemonSet",
            "metadata": {"name": _NAME, "namespace": NAMESPACE},
            "spec": {
                "selector": {"matchLabels": _LABELS},
                "template": {"metadata": {"labels": _LABELS}, "spec": spec},
            },
        }
        self._path = f"{collection(daemon_set)}/{_NAME}"
        made = cluster.api.create(collection(daemon_set), daemon_set)
        owner = {
            "apiVersion": "apps/v1",
            "kind": "DaemonSet",
            "name": _NAME,
            "uid": made["metadata"]["uid"],
            "controller": True,
        }
        metadata = {"name": _POD, "namespace": NAMESPACE, "labels": _LABELS, "ownerReferences": [owner]}
        cluster.api.create(
            self._pods_path,
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": metadata,
                "spec": {**spec, "nodeName": cluster.node.name},
            },
        )

    def delete_daemon_set(self) -> None:
        """Delete it as `kubectl delete daemonset` does: its pods are collected afterwards."""
        self._cluster.api.delete(self._path)

    def delete_daemon_set_after_its_pods(self) -> None:
        """Delete it as `kubectl delete --cascade=foreground` does: it is there until its pods are gone."""
        options = {"kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": "Foreground"}
        self._cluster.api.request("DELETE", self._path, options)

    def select(self, **labels: str) -> None:
        """Have the DaemonSet want nodes with these labels only."""
        patch = {"spec": {"template": {"spec": {"nodeSelector": labels}}}}
        self._cluster.api.merge_patch(self._path, patch)

    def remove(self) -> None:
        """Remove what is left of both."""
        self._cluster.api.delete(f"{self._pods_path}/{_POD}", grace_seconds=0)
        self._cluster.api.delete(self._path)
        if self._cluster.api.find(self._path) is not None:
            self._cluster.api.merge_patch(self._path, {"metadata": {"finalizers": None}})
        for path in (self._path, f"{self._pods_path}/{_POD}"):
            wait_until(lambda path=path: self._cluster.api.find(path) is None, f"{path} is gone")
