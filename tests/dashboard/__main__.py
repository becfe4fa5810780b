"""`python -m tests.dashboard FILE`: draw what deploy/monitoring's dashboard shows of a real daemon (root).

A Prometheus scrapes a daemon on a virtual node on which pods leak, one after the other, and answers the
panels' own queries. Grafana is not needed: places, titles, legends and units are the dashboard's.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from reactor.kernel.cgroup import CgroupTree
from reactor.report.figures import COLOURS, STYLE
from reactor.testbed.virtual_node import VirtualNode, ended_by_signals
from tests.support.daemon import RunningDaemon
from tests.support.monitoring import dashboard, prometheus_query, tool
from tests.support.processes import hold
from tests.support.prometheus import Prometheus, free_port, prometheus

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MIB: Final = 1 << 20
_NODE_BYTES: Final = 512 * _MIB
_LAST_ROW: Final = "Sources and passes"  # the rows before it are drawn
_COLUMNS: Final = 24
_INCHES: Final = (0.62, 0.4)  # of one place of the dashboard's grid
_LEGENDS: Final = 6
_SETTINGS: Final = STYLE | {"font.size": 8}
_UNITS: Final = {
    "bytes": lambda value: (
        f"{value / _MIB:.0f} MiB" if abs(value) < 1 << 33 else f"{value / _MIB / 1024:.0f} GiB"
    ),
    "s": lambda value: f"{value * 1000:g} ms" if abs(value) < 1 else f"{value:g} s",
    "percentunit": lambda value: f"{value:.0%}",
    "short": lambda value: f"{value:.3g}" if abs(value) < 1000 else f"{value:.0f}",
}
_THRESHOLDS: Final = {
    "evictionHard": {"memory.available": "64Mi", "nodefs.inodesFree": "1%", "pid.available": "5%"},
    "evictionSoft": {"memory.available": "128Mi"},
    "evictionSoftGracePeriod": {"memory.available": "4s"},
    "evictionPressureTransitionPeriod": "15s",
}
_LEAK: Final = """
import mmap, sys, time
memory = mmap.mmap(-1, 512 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
for offset in range(0, 512 << 20, 4096):
    memory[offset] = 1
    if not offset & 0xFFFFF:
        time.sleep(1 / float(sys.argv[1]))
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the node for as long as asked and write the picture; return 0."""
    parser = argparse.ArgumentParser(prog="python -m tests.dashboard", description=__doc__)
    parser.add_argument("picture", type=Path, help="the SVG to write")
    parser.add_argument("--seconds", type=float, default=240.0, help="(default: %(default)g)")
    asked = parser.parse_args(arguments)
    with ended_by_signals(), ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="reactor-dashboard-")))
        node = stack.enter_context(VirtualNode(CgroupTree.discover(), _NODE_BYTES))
        daemon = RunningDaemon(directory, node.cgroup)
        port = free_port()
        daemon.configure(_THRESHOLDS, {"metrics": f"127.0.0.1:{port}", "housekeepingInterval": "1s"})
        node.spawn(node.add_pod("web"), hold(60))
        node.spawn(node.add_pod("database", request_bytes=200 * _MIB), hold(140))
        stack.callback(daemon.stop)
        daemon.start()
        server = stack.enter_context(prometheus(tool("prometheus"), directory / "prometheus", port))
        start = time.time()
        _leak(node, start + asked.seconds)
        asked.picture.write_bytes(_drawn(server, start, time.time()))
    return 0


def _leak(node: VirtualNode, until: float) -> None:
    """Have one pod after the other take memory, each at another rate, until they are evicted."""
    rates_mib = (20, 60, 500, 35, 120)
    number = 0
    while time.time() < until:
        time.sleep(6)
        pod = node.add_pod(f"batch-{number}")
        rate = rates_mib[number % len(rates_mib)]
        node.spawn(pod, [sys.executable, "-S", "-c", _LEAK, str(rate)]).wait(60)
        node.remove_pod(pod)
        number += 1


def _drawn(server: Prometheus, start: float, end: float) -> bytes:
    """Return the panels as an SVG, at the places that the dashboard gives them."""
    panels = list(_first_rows())
    height = max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in panels)
    with mpl.rc_context(_SETTINGS), tempfile.TemporaryFile() as out:
        canvas = Figure(figsize=(_COLUMNS * _INCHES[0], height * _INCHES[1]))
        for panel in panels:
            place = panel["gridPos"]
            left, top = place["x"] / _COLUMNS, 1 - place["y"] / height
            width, tall = place["w"] / _COLUMNS, place["h"] / height
            if panel["type"] == "row":
                canvas.text(0.005, top - tall * 0.7, panel["title"], fontsize=12, fontweight="bold")
            elif panel["type"] == "stat":
                value = _value(server, panel, end)
                canvas.text(left + 0.01, top - tall * 0.25, panel["title"], fontweight="bold")
                canvas.text(left + 0.01, top - tall * 0.75, value, fontsize=20, color="#009e73")
            else:
                inset = (left + width * 0.13, top - tall * 0.66, width * 0.82, tall * 0.52)
                axes = canvas.add_axes(inset)
                _lines(axes, server, panel, start, end)
        canvas.savefig(out, format="svg", metadata={"Date": None, "Creator": None})
        out.seek(0)
        return out.read()


def _first_rows() -> Iterator[dict[str, Any]]:
    for panel in dashboard()["panels"]:
        if panel["title"] == _LAST_ROW:
            return
        yield panel


def _unit(panel: Mapping[str, Any]) -> str:
    unit: str = panel["fieldConfig"]["defaults"]["unit"]
    return unit


def _value(server: Prometheus, panel: Mapping[str, Any], at: float) -> str:
    (target,) = panel["targets"]
    found = server.query_range(prometheus_query(target["expr"]), at - 1, at)
    return _UNITS[_unit(panel)](round(float(found[0]["values"][-1][1]), 3)) if found else "no data"


def _lines(axes: Axes, server: Prometheus, panel: Mapping[str, Any], start: float, end: float) -> None:
    axes.set_title(panel["title"], loc="left", fontweight="bold", fontsize=9)
    axes.set_xlim(0, end - start)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g} s"))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: _UNITS[_unit(panel)](value)))
    named: dict[str, Any] = {}
    for target in panel["targets"]:
        for series in server.query_range(prometheus_query(target["expr"]), start, end):
            name = _legend(target["legendFormat"], series["metric"])
            points = [(float(at) - start, float(value)) for at, value in series["values"]]
            colour = COLOURS[len(named) % len(COLOURS)]
            named[name] = axes.plot(*zip(*points, strict=True), color=colour, linewidth=1)[0]
    if not named:
        axes.set_yticks([])
        axes.text(0.5, 0.5, "no data", transform=axes.transAxes, ha="center", color="#777777")
        return
    if axes.get_ylim()[0] < 0 and all(min(line.get_ydata()) >= 0 for line in named.values()):
        axes.set_ylim(bottom=0, top=max(1e-9, axes.get_ylim()[1]))
    shown = dict(list(named.items())[:_LEGENDS])
    axes.legend(
        shown.values(), shown, loc="upper left", bbox_to_anchor=(0, -0.16), ncols=2, frameon=False, fontsize=7
    )


def _legend(text: str, labels: Mapping[str, str]) -> str:
    """Return a series' name as Grafana makes it; there is one instance, which goes without saying."""
    named = re.sub(r"\{\{(\w+)\}\}", lambda label: labels.get(label[1], ""), text.replace("{{instance}}", ""))
    return " ".join(named.split()) or labels.get("instance", "")


if __name__ == "__main__":
    sys.exit(main())
