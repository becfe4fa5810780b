"""`reactor doctor` on the container runtime: found or missing, and what it calls itself."""

from __future__ import annotations

from typing import Final

import trio

from reactor.errors import ReactorError, extra_remedy
from reactor.kernel.features import Feature
from reactor.model.settings import Settings

NAME: Final = "container runtime"
_SECONDS: Final = 5.0


def runtime_feature(settings: Settings) -> Feature:
    """Return whether there is a container runtime that answers; asked for its version, for some seconds."""
    # Only here: a plain node may lack what the client stands on.
    from reactor.cri.endpoint import KNOWN_ENDPOINTS, find_endpoint  # noqa: PLC0415

    endpoint = settings.runtime_endpoint or find_endpoint()
    if endpoint is None:
        needed = settings.kubernetes is not None
        return Feature(
            name=NAME,
            available=False,
            detail="no socket where one is known to be"
            + ("" if needed else "; a plain Linux node needs none"),
            remedy=f"set reactor.runtime.endpoint; looked for: {', '.join(KNOWN_ENDPOINTS)}"
            if needed
            else "",
        )
    try:
        return Feature(name=NAME, available=True, detail=trio.run(_described, endpoint))
    except ImportError:
        return Feature(
            name=NAME, available=False, detail=f"not asked: {endpoint}", remedy=extra_remedy("kubernetes")
        )
    except (ReactorError, trio.TooSlowError) as error:
        remedy = "start it, or name its socket in reactor.runtime.endpoint; root is needed to ask it"
        why = str(error) or f"no answer within {_SECONDS:g} s: {endpoint}"
        return Feature(name=NAME, available=False, detail=why, remedy=remedy)


async def _described(endpoint: str) -> str:
    from reactor.cri.client import RuntimeClient, described  # noqa: PLC0415

    client = RuntimeClient(endpoint)
    with trio.fail_after(_SECONDS):
        return described(await client.version(), client)
