"""The documentation against the code: links lead somewhere, and what the pages name exists."""

from __future__ import annotations

import ast
import dataclasses
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_type_hints

import pytest

from reactor.config import section
from reactor.config.settings import settings_from_text

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(
    page
    for page in (*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("*/README.md"))
    if page.name != "CHANGELOG.md" and ".pytest_cache" not in page.parts  # earlier versions had other files
)
PAGES += [ROOT / "tests/kube/README.md", ROOT / "tests/upstream/README.md"]
NAMES = [str(page.relative_to(ROOT)) for page in PAGES]
# Annotations and conditions of pods and nodes; "reactor" is their prefix.
NOT_PATHS = {f"reactor/{name}" for name in ("cgroup", "unit", "volumes", "rootfs", "logs", "taints")}
NOT_PATHS |= {f"reactor/{name}Pressure" for name in ("Memory", "Disk", "PID")}
NOT_PATHS |= {"reactor/NodeShutdown", "reactor/node-shutdown", "reactor/pool"}
_FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
_YAML = re.compile(r"^```yaml\n(.*?)^```", re.MULTILINE | re.DOTALL)
_CONFIGURATION = re.compile(r"^(evictionHard|evictionSoft|reactor):", re.MULTILINE)
_LINK = re.compile(r"\]\((?!https?://)([^)\s]+)\)")
_PATH = re.compile(r"`((?:reactor|tests|docs|deploy|bpf|vagrant)/[\w./-]+)`")
_METRIC = re.compile(r"\b(reactor_[a-z_]+)\b")
_SUFFIX = re.compile(r"_(total|bucket|sum|count|info)$")
# A message that a page quotes, and what in it the daemon fills in: values, names, what the kernel says.
_MESSAGE = re.compile(r"`((?:problem|log|reactor): [^`]+)`|^((?:problem|reactor): .+)$", re.MULTILINE)
_FILLED_IN = re.compile(
    r"…|[A-Z]{2,}|\S*[\d/'\"@<>=_()]\S*|[:;,] |\.|\b(?:nodefs|by command|No such file or directory)\b"
)
# The rows of README's table, as docs/figures.md names them.
RACED = ("c-floor", "reactor-memcg-eventfd", "earlyoom", "poll-10s")
_MADE = re.compile(r"^reactor/kernel/bpf/compiled/")  # by `make bpf`


def _slug(heading: str) -> str:
    """Return the anchor that a heading has in Markdown as GitHub and GitLab show it."""
    text = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading.strip()).lower()
    return re.sub(r"[^\w\- ]", "", text).replace(" ", "-")


def _anchors(page: Path) -> set[str]:
    text = _FENCE.sub("", page.read_text(encoding="utf-8"))
    return {_slug(heading) for heading in re.findall(r"^#+ (.*)$", text, re.MULTILINE)}


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_each_link_leads_to_a_file_and_a_heading(page: Path) -> None:
    text = _FENCE.sub("", page.read_text(encoding="utf-8"))
    dead = []
    for link in _LINK.findall(text):
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and anchor not in _anchors(target)):
            dead.append(link)

    assert dead == []


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_each_file_that_a_page_names_exists(page: Path) -> None:
    named = set(_PATH.findall(_FENCE.sub("", page.read_text(encoding="utf-8")))) - NOT_PATHS

    assert [path for path in sorted(named) if not (_MADE.match(path) or (ROOT / path).exists())] == []


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_each_make_target_that_a_page_names_exists(page: Path) -> None:
    makefiles = [ROOT / "Makefile", *ROOT.glob("*/*.mk"), *ROOT.glob("tests/*/*.mk")]
    rules = "\n".join(path.read_text(encoding="utf-8") for path in makefiles)
    targets = set(re.findall(r"^([a-z-]+):", rules, re.MULTILINE))
    named = re.findall(r"(?:`|^|\$ )make ([a-z][a-z-]+)", page.read_text(encoding="utf-8"), re.MULTILINE)

    assert set(named) - targets == set()


@pytest.fixture(scope="module")
def texts() -> str:
    """Every string of the package's source, one after the other."""
    trees = (ast.parse(file.read_text(encoding="utf-8")) for file in (ROOT / "reactor").glob("**/*.py"))
    constants = (node.value for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Constant))
    return "\0".join(" ".join(text.split()) for text in constants if isinstance(text, str))


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_each_message_that_a_page_quotes_exists(page: Path, texts: str) -> None:
    # Someone who searches the pages for what `status` or the log says finds it, and the other way round.
    messages = (quoted or shown for quoted, shown in _MESSAGE.findall(page.read_text(encoding="utf-8")))
    parts = (" ".join(part.split()) for message in messages for part in _FILLED_IN.split(message))
    assert [part for part in parts if part.count(" ") >= 2 and part not in texts] == []


def test_the_way_from_a_wake_to_the_kill_is_drawn_as_it_is() -> None:
    """Each line names a file and, but for the first, a function of it or a method of a class of it."""
    page = (ROOT / "docs/internals.md").read_text(encoding="utf-8")
    drawn = page.partition("## From a wake to the kill")[2].split("```")[1]
    steps = re.findall(r"^(reactor/\S+\.py) +(?:(\w+)\.)?(\w+)  ", drawn, re.MULTILINE)

    assert len(steps) == len(drawn.strip().splitlines()) - 1
    for path, owner, name in steps:
        text = (ROOT / path).read_text(encoding="utf-8")
        assert re.search(rf"^ *(?:async )?def {name}\b", text, re.MULTILINE), f"{path}: {name}"
        assert not owner or re.search(rf"^class {owner}\b", text, re.MULTILINE), f"{path}: {owner}"


def _metrics_in_code() -> set[str]:
    """Return the metrics' names; one that is put together ends in an underscore."""
    found = set()
    for path in (ROOT / "reactor").rglob("*.py"):
        found |= set(re.findall(r'"(reactor_[a-z_]+)["{]', path.read_text(encoding="utf-8")))
    return found


def test_each_metric_is_documented() -> None:
    page = (ROOT / "docs/operations/metrics.md").read_text(encoding="utf-8")

    assert sorted(name for name in _metrics_in_code() if f"`{name}" not in page) == []


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_each_metric_that_a_page_names_exists(page: Path) -> None:
    in_code = _metrics_in_code()
    unknown = set()
    for name in _METRIC.findall(page.read_text(encoding="utf-8")):
        is_made_up = any(name.startswith(prefix) for prefix in in_code if prefix.endswith("_"))
        if not is_made_up and not {name, _SUFFIX.sub("", name)} & in_code:
            unknown.add(name)

    assert unknown - {"reactor_daemon", "reactor_kubeconfig"} == set()  # names in the tests


def _keys(of: Any, prefix: str = "") -> Iterator[str]:
    hints = get_type_hints(of)
    for one in dataclasses.fields(of):
        words = one.name.split("_")
        key = prefix + one.metadata.get("key", words[0] + "".join(word.capitalize() for word in words[1:]))
        nested = [kind for kind in (hints[one.name], *_alternatives(hints[one.name])) if _is_nested(kind)]
        if nested and key != "kubernetes":
            yield from _keys(nested[0], f"{key}.")
        else:
            yield key


def _alternatives(hint: Any) -> tuple[Any, ...]:
    return tuple(getattr(hint, "__args__", ()))


def _is_nested(kind: Any) -> bool:
    return isinstance(kind, type) and dataclasses.is_dataclass(kind) and kind.__module__ == section.__name__


def test_each_key_of_the_section_is_documented() -> None:
    page = (ROOT / "docs/configuration.md").read_text(encoding="utf-8")
    keys = {*_keys(section.Section), *_keys(section.Kubernetes)}

    assert sorted(key for key in keys if f"`{key}`" not in page) == []


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_each_configuration_that_a_page_shows_is_valid_and_warned_of_nothing(page: Path) -> None:
    for text in _YAML.findall(page.read_text(encoding="utf-8")):
        if _CONFIGURATION.search(text):
            assert settings_from_text(text, "configuration").warnings == (), text


def test_each_page_is_reached_from_the_readme() -> None:
    reached, left = set(), [ROOT / "README.md"]
    while left:
        page = left.pop()
        if page in reached:
            continue
        reached.add(page)
        text = _FENCE.sub("", page.read_text(encoding="utf-8"))
        targets = [(page.parent / link.partition("#")[0]).resolve() for link in _LINK.findall(text)]
        left += [target for target in targets if target.suffix == ".md" and target.exists()]

    assert sorted(str(page.relative_to(ROOT)) for page in set(PAGES) - reached) == []


def test_each_row_about_a_default_is_held_by_a_test_that_exists() -> None:
    """The table's last column names a test of this repository, anywhere below tests/."""
    page = (ROOT / "docs/reliability.md").read_text(encoding="utf-8")
    rows = page.partition("### What each default does then")[2].partition("\n## ")[0].splitlines()
    held = [row.rstrip(" |").rpartition("| ")[2].strip("`") for row in rows if row.startswith("| ")][1:]
    tests = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py"))
    assert held
    assert [] == [name for name in held if f"def {name}(" not in tests]


def test_the_page_installs_all_that_the_debian_package_is_built_with() -> None:
    page = (ROOT / "docs/install.md").read_text(encoding="utf-8")
    control = (ROOT / "deploy/debian/control").read_text(encoding="utf-8")
    listed = re.findall(
        r"^ ([a-z0-9-]+)", control.partition("Build-Depends:")[2].partition("\n\n")[0], re.MULTILINE
    )
    installed = re.search(r"^\$ sudo apt install (make .*)$", page, re.MULTILINE)

    needed = {name.removesuffix("-compat") for name in listed} - {"python3"}  # python3-venv brings it
    assert installed is not None
    assert needed
    assert needed - set(installed[1].split()) == set()


def test_the_readme_has_the_figures_of_their_page() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    page = (ROOT / "docs/figures.md").read_text(encoding="utf-8")
    raced = dict(re.findall(r"^\| ([\w-]+) \| ([^|]+ \| [^|]+ \| [^|]+ \| [^|]+) \|", page, re.MULTILINE))
    rows = re.findall(r"^\| (?!\||-)([^|]+) \| ([^|]+ \| [^|]+ \| [^|]+) \|$", readme, re.MULTILINE)
    shown = [(raced[name].split(" | "), row.split(" | ")) for (_, row), name in zip(rows, RACED, strict=True)]
    at_rest = re.findall(r"takes (\d+) MiB \(PSS\) in two processes, and ([\d.]+) % of a CPU at rest", readme)
    (pss,) = re.findall(r"rest, 110 pods: both, PSS, MiB \| ([\d.]+)", page)
    (cpu,) = re.findall(r"rest, 110 pods: both at rest, % of a CPU \| ([\d.]+)", page)

    assert [[step, back, over] for (step, _, back, over), _ in shown] == [row for _, row in shown]
    assert at_rest == [(f"{float(pss):.0f}", cpu)]


def test_the_page_on_latency_begins_with_the_figures_of_their_page() -> None:
    """The medians, idle by the race and busy by the bench, of the fewest pods to the most."""
    page = (ROOT / "docs/figures.md").read_text(encoding="utf-8")
    idle = re.findall(
        r"^\| reactor-memcg-eventfd \| ([\d.]+) / [^|]+\|[^|]+\| ([\d.]+) /", page, re.MULTILINE
    )
    busy = re.findall(
        r"^\| full speed, \d+ pods[^|]*\|[^|]+\| ([\d.]+) / [^|]+\| ([\d.]+) /", page, re.MULTILINE
    )
    killed, back = ([float(one) for one in column] for column in zip(*idle, *busy, strict=True))
    begins = f"the kill comes {min(killed):.1f} to {max(killed):.1f} ms after the crossing, "
    begins += f"the memory {min(back):.0f} to {max(back):.0f} ms"

    assert (len(idle), len(busy)) == (1, 4)
    assert begins in (ROOT / "docs/latency.md").read_text(encoding="utf-8")


def test_help_names_the_commands_that_the_pages_use() -> None:
    """What follows `reactor` in a console block is a command of its command line."""
    help_text = subprocess.run(
        [sys.executable, "-m", "reactor", "--help"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    commands = set(re.findall(r"^    ([a-z]+) ", help_text, re.MULTILINE))
    used = set()
    for page in PAGES:
        used |= set(re.findall(r"^\$ (?:sudo )?reactor ([a-z]+)", page.read_text("utf-8"), re.MULTILINE))

    assert used - commands == set()
