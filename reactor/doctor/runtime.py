"""`reactor doctor` on what keeps containers: the container runtime, and podman's images."""

from __future__ import annotations

from typing import Final

import trio

from reactor.errors import PodmanError, ReactorError, extra_remedy
from reactor.kernel.features import Feature
from reactor.model.settings import Settings
from reactor.podman.client import DEFAULT_SOCKET, PodmanClient, find_socket

RUNTIME: Final = "container runtime"
PODMAN: Final = "podman images"
_SECONDS: Final = 5.0


def runtime_feature(settings: Settings) -> Feature:
    """Return whether there is a container runtime that answers; asked for its version, for some seconds."""
    # Only here: a plain node may lack what the client stands on.
    from reactor.cri.client import KNOWN_ENDPOINTS, find_endpoint  # noqa: PLC0415

    endpoint = settings.runtime_endpoint or find_endpoint()
    if endpoint is None:
        needed = settings.kubernetes is not None
        return Feature(
            name=RUNTIME,
            available=False,
            detail="no socket at the known paths" + ("" if needed else "; a plain Linux node needs none"),
            remedy=f"set reactor.runtime.endpoint; looked for: {', '.join(KNOWN_ENDPOINTS)}"
            if needed
            else "",
        )
    try:
        return Feature(name=RUNTIME, available=True, detail=trio.run(_runtime, endpoint))
    except ImportError:
        return Feature(
            name=RUNTIME, available=False, detail=f"not asked: {endpoint}", remedy=extra_remedy("kubernetes")
        )
    except (ReactorError, trio.TooSlowError) as error:
        remedy = "start it, or name its socket in reactor.runtime.endpoint; root is needed to ask it"
        why = str(error) or f"no answer within {_SECONDS:g} s: {endpoint}"
        return Feature(name=RUNTIME, available=False, detail=why, remedy=remedy)


async def _runtime(endpoint: str) -> str:
    from reactor.cri.client import RuntimeClient, described  # noqa: PLC0415

    client = RuntimeClient(endpoint)
    with trio.fail_after(_SECONDS):
        return described(await client.version(), client)


def podman_features(settings: Settings) -> tuple[Feature, ...]:
    """Return whether podman answers, which is asked for some seconds; nothing on a Kubernetes node."""
    if settings.kubernetes is not None:
        return ()
    if not settings.podman:
        return (Feature(name=PODMAN, available=False, detail="switched off in the configuration"),)
    endpoint = find_socket(settings.podman_socket)
    if endpoint is None:
        remedy = "if podman is used here: systemctl enable --now podman.socket, or reactor.podman.socket"
        return (
            Feature(name=PODMAN, available=False, detail=f"no socket at {DEFAULT_SOCKET}", remedy=remedy),
        )
    try:
        detail = trio.run(_podman, PodmanClient(endpoint))
    except (PodmanError, trio.TooSlowError) as error:
        why = str(error) or f"no answer within {_SECONDS:g} s: {endpoint}"
        remedy = "start it, or name its socket in reactor.podman.socket; root is needed to ask it"
        return (Feature(name=PODMAN, available=False, detail=why, remedy=remedy),)
    return (Feature(name=PODMAN, available=True, detail=detail),)


async def _podman(client: PodmanClient) -> str:
    with trio.fail_after(_SECONDS):
        info = await client.info()
        return f"podman {info.version} at {client.endpoint}, {len(await client.images())} images"
