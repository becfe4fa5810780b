"""Whether the node's own kubelet ends its pods at a shutdown: then that is not done twice."""

from __future__ import annotations

from pathlib import Path

from reactor.config.settings import load_settings
from reactor.errors import ConfigError


def ends_pods_itself(path: Path) -> bool:
    """Return whether the kubelet's configuration says so; one that can't be had, or is wrong, does not."""
    try:
        return bool(load_settings(path).shutdown_groups)
    except (ConfigError, OSError):
        return False
