"""Versions, the changelog's fragments, and what a release refuses."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

from ruamel.yaml import YAML

import reactor

CHECKOUT = Path(__file__).resolve().parents[3]
TYPES = ("added", "changed", "deprecated", "removed", "fixed", "security")


def test_version_stands_in_the_package_and_the_chart_has_the_same() -> None:
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]
    chart = YAML(typ="safe").load(CHECKOUT / "deploy/helm/reactor/Chart.yaml")

    assert "version" not in project
    assert ["version"] == project["dynamic"]
    assert (reactor.__version__, reactor.__version__) == (chart["version"], str(chart["appVersion"]))


def test_changelog_begins_with_this_version() -> None:
    headings = re.findall(r"^## (.*)$", (CHECKOUT / "CHANGELOG.md").read_text(), re.MULTILINE)

    assert re.fullmatch(r"\[(.+)\] - \d{4}-\d\d-\d\d|\[Unreleased\]: (.+)", headings[0])
    assert reactor.__version__ in headings[0]


def faults_of_fragments(directory: Path) -> list[str]:
    """Return what is wrong with the names and texts of a folder's fragments."""
    faults = []
    for path in sorted(directory.iterdir()):
        if path.name == "README.md":
            continue
        if not re.fullmatch(rf"[+\w-]+\.({'|'.join(TYPES)})\.md", path.name):
            faults.append(f"{path.name}: accepted: NAME.TYPE.md, with a type of {', '.join(TYPES)}")
        text = path.read_text().strip()
        if len(text.split()) > 25 or not text.endswith(".") or "\n" in text:
            faults.append(f"{path.name}: accepted: one sentence of at most 25 words, in one line")
    return faults


def test_fragments_are_one_sentence_each_with_a_type_of_the_changelog() -> None:
    assert [] == faults_of_fragments(CHECKOUT / "changes")


def test_fragment_of_another_type_or_of_two_lines_is_refused(tmp_path: Path) -> None:
    (tmp_path / "41.feature.md").write_text("Rules may name a slice.\n")
    (tmp_path / "42.fixed.md").write_text("A reload keeps\nthe journal open.\n")
    (tmp_path / "43.fixed.md").write_text("A reload keeps the journal open.\n")

    assert ["41.feature.md", "42.fixed.md"] == [
        fault.partition(":")[0] for fault in faults_of_fragments(tmp_path)
    ]


def test_fragments_become_the_changes_of_a_version_above_those_of_the_one_before(tmp_path: Path) -> None:
    for name in ("pyproject.toml", "CHANGELOG.md"):
        shutil.copy(CHECKOUT / name, tmp_path)
    (tmp_path / "reactor").mkdir()
    (tmp_path / "reactor/__init__.py").write_text('__version__ = "7.8.9"\n')
    shutil.copytree(CHECKOUT / "changes", tmp_path / "changes")
    for kind in TYPES:
        (tmp_path / f"changes/41.{kind}.md").write_text(f"A change of the kind {kind}.\n")

    command = [sys.executable, "-m", "towncrier", "build", "--yes", "--date=2031-02-03"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert 0 == done.returncode, done.stderr

    before = (CHECKOUT / "CHANGELOG.md").read_text()
    after = (tmp_path / "CHANGELOG.md").read_text()
    first = re.search(r"^## ", before, re.MULTILINE)
    assert first is not None
    assert after.endswith(before[first.start() :])
    new = after[first.start() : len(after) - len(before) + first.start()]
    assert "## [7.8.9] - 2031-02-03" == new.splitlines()[0]
    assert [kind.capitalize() for kind in TYPES] == re.findall(r"^### (.*)$", new, re.MULTILINE)
    assert "- A change of the kind fixed. (#41)\n" in new
    assert {"README.md"} <= {path.name for path in (tmp_path / "changes").iterdir()}
    assert not list((tmp_path / "changes").glob("41.*"))
