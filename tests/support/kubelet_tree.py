"""Pods as a kubelet lays their cgroups out, and the kubeconfig of a server that knows about them."""

from __future__ import annotations

import json
from pathlib import Path

from reactor.testbed.virtual_node import VirtualNode

OTHER, HOG = "0e4a3c0a-1111-4222-8333-0123456789ab", "0e4a3c0a-2222-4222-8333-0123456789ab"


def kubeconfig(directory: Path, server: str) -> str:
    """Write a kubeconfig for a server without TLS; return its path."""
    path = directory / "kubeconfig"
    path.write_text(
        json.dumps(
            {
                "current-context": "here",
                "contexts": [{"name": "here", "context": {"cluster": "here", "user": "me"}}],
                "clusters": [{"name": "here", "cluster": {"server": server}}],
                "users": [{"name": "me", "user": {"token": "t"}}],
            }
        )
    )
    return str(path)


def pods_of_a_kubelet(node: VirtualNode) -> dict[str, str]:
    """Make two BestEffort pods, and return a container's cgroup of each by the pod's uid."""
    for made in ("kubepods", "kubepods/besteffort"):
        node.add_pod(made)
    return {uid: add_pod(node, uid) for uid in (OTHER, HOG)}


def add_pod(node: VirtualNode, uid: str) -> str:
    """Make a BestEffort pod beside those of `pods_of_a_kubelet`; return its container's cgroup."""
    node.add_pod(f"kubepods/besteffort/pod{uid}")
    return node.add_pod(f"kubepods/besteffort/pod{uid}/{'a' * 64}")


def add_system_pod(node: VirtualNode, uid: str) -> str:
    """Make a Burstable pod of the system partition; return its container's cgroup."""
    for made in ("kubepods/system", "kubepods/system/burstable", f"kubepods/system/burstable/pod{uid}"):
        if not node.tree.exists(f"{node.cgroup}/{made}"):
            node.add_pod(made)
    return node.add_pod(f"kubepods/system/burstable/pod{uid}/{'b' * 64}")
