"""`reactor doctor` on podman: whether its images could be given back on this node."""

from __future__ import annotations

from typing import Final

import trio

from reactor.errors import PodmanError
from reactor.kernel.features import Feature
from reactor.model.settings import Settings
from reactor.podman.client import PodmanClient
from reactor.podman.socket import DEFAULT_SOCKET, find_socket

NAME: Final = "podman images"
_SECONDS: Final = 5.0


def podman_features(settings: Settings) -> tuple[Feature, ...]:
    """Return whether podman answers, which is asked for some seconds; nothing on a Kubernetes node."""
    if settings.kubernetes is not None:
        return ()
    if not settings.podman:
        return (Feature(name=NAME, available=False, detail="switched off in the configuration"),)
    endpoint = find_socket(settings.podman_socket)
    if endpoint is None:
        remedy = "if podman is used here: systemctl enable --now podman.socket, or reactor.podman.socket"
        return (Feature(name=NAME, available=False, detail=f"no socket at {DEFAULT_SOCKET}", remedy=remedy),)
    try:
        detail = trio.run(_described, PodmanClient(endpoint))
    except (PodmanError, trio.TooSlowError) as error:
        why = str(error) or f"no answer within {_SECONDS:g} s: {endpoint}"
        remedy = "start it, or name its socket in reactor.podman.socket; root is needed to ask it"
        return (Feature(name=NAME, available=False, detail=why, remedy=remedy),)
    return (Feature(name=NAME, available=True, detail=detail),)


async def _described(client: PodmanClient) -> str:
    with trio.fail_after(_SECONDS):
        info = await client.info()
        return f"podman {info.version} at {client.endpoint}, {len(await client.images())} images"
