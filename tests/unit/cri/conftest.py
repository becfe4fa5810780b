from __future__ import annotations

from pathlib import Path

import pytest
import trio

from tests.unit.cri.scripted_grpc import Server


@pytest.fixture
async def server(tmp_path: Path, nursery: trio.Nursery) -> Server:
    found = Server(tmp_path / "runtime.sock")
    listener = trio.socket.socket(trio.socket.AF_UNIX)
    await listener.bind(str(found.path))
    listener.listen()
    nursery.start_soon(trio.serve_listeners, found.serve, [trio.SocketListener(listener)])
    return found
