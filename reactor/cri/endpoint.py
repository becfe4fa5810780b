"""Where the container runtime's socket is."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Final

# In the order in which they are looked for: containerd, CRI-O, containerd as k3s and as microk8s bring it.
KNOWN_ENDPOINTS: Final = (
    "/run/containerd/containerd.sock",
    "/run/crio/crio.sock",
    "/run/k3s/containerd/containerd.sock",
    "/var/snap/microk8s/common/run/containerd.sock",
    "/run/cri-dockerd.sock",
)
_SCHEME: Final = "unix://"


def socket_path(endpoint: str) -> Path:
    """Return the path of an endpoint written as the kubelet takes it: with or without `unix://`."""
    return Path(endpoint.removeprefix(_SCHEME))


def find_endpoint(root: Path = Path("/")) -> str | None:
    """Return the first known endpoint at which there is a socket, None where there is none."""
    for endpoint in KNOWN_ENDPOINTS:
        try:
            if stat.S_ISSOCK((root / endpoint.lstrip("/")).stat().st_mode):
                return endpoint
        except OSError:
            continue
    return None
