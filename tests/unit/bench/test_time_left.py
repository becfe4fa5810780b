"""The plot of the estimates in the docs is drawn from the measurements that are stored beside it."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.time_left import main

FIGURES = Path(__file__).parents[3] / "docs" / "figures"


def test_plot_in_the_docs_is_that_of_the_stored_measurements(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="needs the extra: pip install '.[report]'")
    plot = tmp_path / "time-left.svg"
    assert main(["--from", str(FIGURES / "time-left.json"), "--plot", str(plot)]) == 0
    assert plot.read_text() == (FIGURES / "time-left.svg").read_text()
