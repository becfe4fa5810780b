"""Versions, the changelog's fragments, and what a release refuses."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest
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


def test_what_make_test_leaves_to_the_night_is_named_and_run_then() -> None:
    marked = re.compile(r"^(?:@|pytestmark = )pytest\.mark\.nightly\b", re.MULTILINE)
    tests = [path for path in (CHECKOUT / "tests").rglob("test_*.py") if marked.search(path.read_text())]
    makefile = (CHECKOUT / "Makefile").read_text()
    page = (CHECKOUT / "docs/contributing.md").read_text()

    assert tests
    for path in tests:
        assert path.parent == CHECKOUT / "tests/kernel", "make kernel-nightly runs no other folder"
        assert f"`tests/kernel/{path.name}`" in page
    assert "-m nightly tests/kernel" in makefile
    assert re.search(r"^NIGHTLY := kernel-nightly ", makefile, re.MULTILINE)


def program(name: str) -> ModuleType:
    """Return a module of deploy/, whose programs are no package."""
    if str(CHECKOUT / "deploy") not in sys.path:
        sys.path.append(str(CHECKOUT / "deploy"))
    return import_module(name)


def git(checkout: Path, *arguments: str) -> None:
    identity = ("-c", "user.name=Nobody", "-c", "user.email=nobody@example.org")
    subprocess.run(["git", "-C", checkout, *identity, *arguments], check=True, capture_output=True)


@pytest.fixture
def tagged(tmp_path: Path) -> Path:
    """Return a checkout of nothing but what says its version, released as 7.8.9."""
    files = {
        "reactor/__init__.py": '__version__ = "7.8.9"\n',
        "CHANGELOG.md": "# Changelog\n\n## [7.8.9] - 2031-02-03\n\n## [7.8.8] - 2031-01-02\n",
        "deploy/helm/reactor/Chart.yaml": 'name: reactor\nversion: 7.8.9\nappVersion: "7.8.9"\n',
        "deploy/helm/reactor/templates/a.yaml": "a: 1\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    git(tmp_path, "init", "--quiet")
    commit(tmp_path)
    return tmp_path


def commit(checkout: Path) -> None:
    git(checkout, "add", "--all")
    git(checkout, "commit", "--quiet", "--message=all")
    git(checkout, "tag", "--force", "v7.8.9")


def test_release_is_made_of_a_tagged_commit_that_says_the_same_version_everywhere(tagged: Path) -> None:
    assert [] == program("release").refused_because(tagged, is_rehearsal=False)


@pytest.mark.parametrize(
    ("name", "before", "after", "reason"),
    [
        ("reactor/__init__.py", "7.8.9", "7.9.0", "tags of this commit: v7.8.9; accepted: v7.9.0"),
        ("CHANGELOG.md", "## [7.8.9] - 2031-02-03", "## [Unreleased]: 7.8.9", "'## [Unreleased]: 7.8.9'"),
        ("CHANGELOG.md", "[7.8.9]", "[7.8.7]", "accepted: '## [7.8.9] - DATE'"),
        ("deploy/helm/reactor/Chart.yaml", "\nversion: 7.8.9", "\nversion: 7.8.8", "version '7.8.8'"),
        ("deploy/helm/reactor/Chart.yaml", 'appVersion: "7.8.9"\n', "", "appVersion 'missing'"),
    ],
)
def test_commit_whose_version_is_another_somewhere_is_refused_and_rehearsed(
    tagged: Path, name: str, before: str, after: str, reason: str
) -> None:
    text = (tagged / name).read_text()
    assert before in text
    (tagged / name).write_text(text.replace(before, after, 1))
    commit(tagged)

    assert reason in "\n".join(program("release").refused_because(tagged, is_rehearsal=False))
    assert [] == program("release").refused_because(tagged, is_rehearsal=True)


def test_commit_without_a_tag_is_refused(tagged: Path) -> None:
    git(tagged, "tag", "--delete", "v7.8.9")
    (reason,) = program("release").refused_because(tagged, is_rehearsal=False)
    assert reason.startswith("tags of this commit: none; accepted: v7.8.9")


@pytest.mark.parametrize("is_rehearsal", [True, False])
def test_checkout_with_changes_is_never_built(tagged: Path, *, is_rehearsal: bool) -> None:
    (tagged / "new.py").write_text("")
    (reason,) = program("release").refused_because(tagged, is_rehearsal=is_rehearsal)
    assert "the checkout has changes: ?? new.py; commit or stash them" == reason


def test_command_names_every_reason_and_builds_nothing(tagged: Path, tmp_path: Path) -> None:
    shutil.copytree(CHECKOUT / "deploy", tagged / "deploy", dirs_exist_ok=True)
    (tagged / "deploy/helm/reactor/Chart.yaml").write_text("version: 1\nappVersion: 1\n")
    command = [sys.executable, "deploy/release.py", "made"]
    done = subprocess.run(command, cwd=tagged, capture_output=True, text=True, check=False)

    assert (1, "") == (done.returncode, done.stdout)
    assert 3 == done.stderr.count("release: ") == len(done.stderr.splitlines())
    assert not (tagged / "made").exists()


def test_chart_is_packed_alike_in_two_places_with_the_commits_files_alone(
    tagged: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    other = tmp_path_factory.mktemp("other") / "clone"
    subprocess.run(["git", "clone", "--quiet", tagged, other], check=True)
    (tagged / "deploy/helm/reactor/not-known-to-git.yaml").write_text("")
    packed = []
    for number, checkout in enumerate((tagged, other)):
        archive = other.parent / f"{number}.tgz"
        program("release").chart(checkout, archive, 1_900_000_000)
        packed.append(archive.read_bytes())

    assert packed[0] == packed[1]
    with tarfile.open(other.parent / "0.tgz") as tar:
        assert ["reactor/Chart.yaml", "reactor/templates/a.yaml"] == tar.getnames()
        assert {1_900_000_000} == {member.mtime for member in tar.getmembers()}


STATUS = """Package: libbpf1
Status: install ok installed
Version: 1:1.1.0-1+b1
Architecture: amd64
Description: eBPF helper library
 Version: of a line that goes on, no field

Package: libacl1
Version: 2.3.1-3
Architecture: amd64
"""


def test_document_of_an_image_has_each_pin_with_its_hashes_and_each_package_of_debians() -> None:
    sbom = program("sbom")
    lock = (CHECKOUT / "constraints.txt").read_text()
    text = sbom.document("node-reactor", "7.8.9", lock, 1_900_000_000, sbom.debian_of(STATUS))
    made = json.loads(text)
    components = {one["purl"]: one for one in made["components"]}

    assert ("CycloneDX", "2030-03-17T17:46:40+00:00") == (made["bomFormat"], made["metadata"]["timestamp"])
    assert "pkg:pypi/node-reactor@7.8.9" == made["metadata"]["component"]["purl"]
    pins = dict(re.findall(r"^([a-z0-9-]+)==(\S+)", lock, re.MULTILINE))
    assert {f"pkg:pypi/{name}@{version}" for name, version in pins.items()} == {
        purl for purl in components if purl.startswith("pkg:pypi/")
    }
    trio = components[f"pkg:pypi/trio@{pins['trio']}"]
    assert {one["content"] for one in trio["hashes"]} <= set(re.findall("sha256:([0-9a-f]{64})", lock))
    assert lock.count("--hash=sha256:") == sum(len(one.get("hashes", ())) for one in components.values())
    assert all(one["licenses"] for purl, one in components.items() if purl.startswith("pkg:pypi/"))
    assert "pkg:deb/debian/libbpf1@1:1.1.0-1%2Bb1?arch=amd64" in components
    needs = {one["ref"]: set(one.get("dependsOn", ())) for one in made["dependencies"]}
    assert f"pkg:pypi/outcome@{pins['outcome']}" in needs[trio["bom-ref"]]
    assert trio["bom-ref"] in needs["pkg:pypi/node-reactor@7.8.9"]


def test_document_is_the_same_for_the_same_input_and_another_for_another() -> None:
    sbom = program("sbom")
    lock = (CHECKOUT / "constraints.txt").read_text()
    texts = [sbom.document("node-reactor", version, lock, 1_900_000_000) for version in ("1", "1", "2")]
    assert texts[0] == texts[1] != texts[2]
    assert json.loads(texts[0])["serialNumber"] != json.loads(texts[2])["serialNumber"]


def test_package_of_the_lock_that_is_not_installed_is_named() -> None:
    with pytest.raises(LookupError, match=r"no-such-package is not installed: run `make setup`"):
        program("sbom").document("node-reactor", "1", "no-such-package==1 \\\n", 1_900_000_000)
