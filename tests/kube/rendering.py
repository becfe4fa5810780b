"""The Helm chart rendered without Helm: the program in chart/, which Go builds with Debian's libraries."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from api import Object
from deployed import CHECKOUT, NAMESPACE
from ruamel.yaml import YAML

CHART: Final = CHECKOUT / "deploy/helm/reactor"
_SOURCE: Final = Path(__file__).resolve().parent / "chart/main.go"
_GO: Final = Path(os.environ.get("GO", "/usr/lib/go-1.19/bin")) / "go"
_LIBRARIES: Final = Path("/usr/share/gocode/src/github.com/Masterminds/sprig")


def can_build() -> bool:
    """Tell whether there is what the program is built with."""
    return _LIBRARIES.is_dir() and _GO.exists()


def build(directory: Path) -> Path:
    """Return the program, built in a directory."""
    program = directory / "chart"
    environment = {
        **os.environ,
        "GO111MODULE": "off",
        "GOFLAGS": "",
        "GOPATH": "/usr/share/gocode",
        "GOCACHE": str(directory / "cache"),
    }
    command = [_GO, "build", "-o", program, _SOURCE]
    subprocess.run(command, check=True, env=environment, timeout=240, capture_output=True)
    return program


def render(renderer: Path, values: Mapping[str, Any], *served: str) -> list[Object]:
    """Return the documents; `served` is the server's version, where it counts, and APIs that it has."""
    done = rendered(renderer, values, *served)
    assert done.returncode == 0, done.stderr
    return [dict(document) for document in YAML(typ="safe").load_all(done.stdout) if document]


def rendered(renderer: Path, values: Mapping[str, Any], *served: str) -> subprocess.CompletedProcess[str]:
    """Return how the program ended."""
    return subprocess.run(
        [renderer, CHART, NAMESPACE, "reactor", *served],
        input=json.dumps(values),
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )
