"""What deploy/monitoring asks Prometheus for: expressions of rules and panels, and the metrics in them."""

from __future__ import annotations

import functools
import json
import re
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

ROOT = Path(__file__).resolve().parents[2]
MONITORING = ROOT / "deploy/monitoring"
RULES = MONITORING / "rules.yaml"
# Metrics that have others' names, for others' dashboards: not each of them is in a rule or a panel.
OF_OTHERS = ("kubelet_", "process_")
_NAME = re.compile(r"\b(?:reactor|kubelet|process)_[a-z_]+")
_SUFFIXES = ("_bucket", "_count", "_sum")


@functools.cache
def document(name: str) -> Any:
    """Return a YAML file of deploy/monitoring."""
    return YAML(typ="safe").load((MONITORING / name).read_text(encoding="utf-8"))


def rules() -> list[dict[str, Any]]:
    """Return all rules, what they record and their alerts."""
    return [rule for group in document("rules.yaml")["groups"] for rule in group["rules"]]


def alerts() -> list[dict[str, Any]]:
    """Return the alerts of the rules."""
    return [rule for rule in rules() if "alert" in rule]


def dashboard() -> dict[str, Any]:
    """Return the dashboard."""
    board: dict[str, Any] = json.loads((MONITORING / "dashboard.json").read_text(encoding="utf-8"))
    return board


def panels() -> list[dict[str, Any]]:
    """Return the panels that show something."""
    return [panel for panel in dashboard()["panels"] if panel["type"] != "row"]


def queries(job: str = "reactor") -> Iterator[tuple[str, str]]:
    """Yield each panel's title with each of its expressions, as Grafana sends them for all nodes."""
    for panel in panels():
        for target in panel["targets"]:
            yield panel["title"], prometheus_query(target["expr"], job)


def prometheus_query(expression: str, job: str = "reactor") -> str:
    """Return a panel's expression as Grafana sends it for all nodes."""
    query = expression.replace("$job", job).replace("$instance", ".*")
    return query.replace("$__rate_interval", "1m")


def metrics_in(expressions: Iterable[str]) -> set[str]:
    """Return the names of the metrics in expressions, a histogram's without its parts."""
    found = {name for text in expressions for name in _NAME.findall(re.sub(r'"[^"]*"', "", text))}
    return {_whole(name) for name in found}


def _whole(name: str) -> str:
    ends = [suffix for suffix in _SUFFIXES if name.endswith(f"_seconds{suffix}")]
    return name.removesuffix(ends[0]) if ends else name


def tool(name: str) -> str:
    """Return the path of promtool or prometheus; skip where there is none."""
    fetched = ROOT / ".cache" / name
    found = str(fetched) if fetched.exists() else shutil.which(name)
    if found is None:
        pytest.skip(f"no {name}: `make promtool` fetches it, or install Debian's package prometheus")
    return found
