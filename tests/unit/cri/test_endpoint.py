from __future__ import annotations

import socket
from pathlib import Path

from reactor.cri.endpoint import KNOWN_ENDPOINTS, find_endpoint, socket_path


def _listen(root: Path, endpoint: str) -> None:
    path = root / endpoint.lstrip("/")
    path.parent.mkdir(parents=True, exist_ok=True)
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(path))


def test_the_first_known_socket_is_found(tmp_path: Path) -> None:
    _listen(tmp_path, "/run/crio/crio.sock")
    assert find_endpoint(tmp_path) == "/run/crio/crio.sock"
    _listen(tmp_path, KNOWN_ENDPOINTS[0])
    assert find_endpoint(tmp_path) == KNOWN_ENDPOINTS[0]


def test_a_file_that_is_no_socket_is_not_taken_for_a_runtime(tmp_path: Path) -> None:
    path = tmp_path / "run/crio/crio.sock"
    path.parent.mkdir(parents=True)
    path.write_text("")
    assert find_endpoint(tmp_path) is None


def test_an_endpoint_may_be_written_as_the_kubelet_takes_it() -> None:
    assert socket_path("unix:///run/crio/crio.sock") == Path("/run/crio/crio.sock")
    assert socket_path("/run/crio/crio.sock") == Path("/run/crio/crio.sock")
