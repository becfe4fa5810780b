"""The wheel, built and installed into an empty environment: what it is called, what it has, what it lacks."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from email import message_from_string
from importlib.metadata import files
from pathlib import Path

import pytest

import reactor
from reactor.guard.run import warn_of_missing_objects
from reactor.kernel.bpf.objects import not_installed
from reactor.kernel.cgroup_directory import CgroupVersion
from reactor.model.settings import Settings, SourceSettings

ROOT = Path(__file__).resolve().parents[2]
COMPILED = "kernel/bpf/compiled"


@pytest.fixture(scope="module", params=["with objects", "without objects"])
def environment(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Yield a virtual environment with the wheel of a checkout, with and without its `make bpf`.

    What the wheel needs is lent by the environment of the tests: nothing is fetched.
    """
    directory = tmp_path_factory.mktemp("wheel")
    checkout = directory / "checkout"
    shutil.copytree(
        ROOT / "reactor", checkout / "reactor", ignore=shutil.ignore_patterns("compiled", "__pycache__")
    )
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, checkout)
    if request.param == "with objects":
        (checkout / "reactor" / COMPILED).mkdir()
        for name in _objects():
            (checkout / "reactor" / COMPILED / name).write_bytes(b"\x7fELF")
    _run(
        sys.executable,
        "-m",
        "pip",
        "wheel",
        *_QUIET,
        "--no-build-isolation",
        f"--wheel-dir={directory}",
        str(checkout),
    )
    (wheel,) = directory.glob("*.whl")
    made = directory / "venv"
    _run(sys.executable, "-m", "venv", "--without-pip", str(made))
    _run(
        sys.executable,
        "-m",
        "pip",
        f"--python={made}/bin/python",
        "install",
        *_QUIET,
        "--no-index",
        str(wheel),
    )
    _lend_runtime(_site(made))
    yield made
    shutil.rmtree(directory)


def _lend_runtime(site: Path) -> None:
    """Put links to what constraints.txt pins into an environment, and to nothing else of the tests' own."""
    names = re.findall(r"^([a-z0-9-]+)==", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    installed = Path(sysconfig.get_path("purelib"))
    for name in names:
        for file in files(name) or ():
            top = file.parts[0]
            if top not in {"..", "__pycache__"} and not (site / top).exists():
                (site / top).symlink_to(installed / top)


_WITH_OBJECTS = pytest.mark.parametrize("environment", ["with objects"], indirect=True)
_QUIET = ("--quiet", "--quiet", "--disable-pip-version-check", "--no-deps")


def _objects() -> set[str]:
    """Return the names of what `make bpf` makes."""
    sources = {path.name.replace(".bpf.c", ".bpf.o") for path in (ROOT / "bpf").glob("*.bpf.c")}
    return sources | {path.name for path in (ROOT / "bpf/bcc").glob("*.bcc.c")}


def _site(environment: Path) -> Path:
    (site,) = environment.glob("lib/python3*/site-packages")
    return site


def _run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd="/", timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
def test_distribution_is_node_reactor_and_the_command_reactor(environment: Path) -> None:
    (metadata,) = _site(environment).glob("node_reactor-*.dist-info/METADATA")
    fields = message_from_string(metadata.read_text())

    assert ("node-reactor", reactor.__version__) == (fields["Name"], fields["Version"])
    assert f"reactor {reactor.__version__}\n" == _run(f"{environment}/bin/reactor", "--version")


@_WITH_OBJECTS
def test_wheel_has_what_the_list_says_and_nothing_else(environment: Path) -> None:
    """Packages and files; a package's modules are not named one by one."""
    site = _site(environment)
    (record,) = site.glob("node_reactor-*.dist-info/RECORD")
    found = set()
    for name in (line.rpartition(",")[0].rpartition(",")[0] for line in record.read_text().splitlines()):
        parts = name.split("/")
        if "__pycache__" in parts or parts[0] != "reactor" or parts[-2] == "compiled":
            continue
        found.add("/".join(parts[:2]) + "/" if name.endswith(".py") and len(parts) > 2 else name)
    listed = (ROOT / "tests/fixtures/contents/wheel.txt").read_text().splitlines()

    assert sorted(found) == listed
    assert sorted(listed) == listed


# Parts that are told to be absent by themselves, and what they need that no runtime pin has.
EXTRAS = {"reactor.report.figures": "matplotlib"}
# Programs: what they do is done when they are imported.
PROGRAMS = {"reactor.kernel.bpf.bcc_child"}


@pytest.mark.slow
@_WITH_OBJECTS
def test_every_module_of_it_imports_with_the_runtimes_libraries_alone(environment: Path) -> None:
    asked = (
        "import importlib, json, pkgutil, reactor\n"
        "failed = {}\n"
        "for module in pkgutil.walk_packages(reactor.__path__, 'reactor.'):\n"
        f"    if module.name not in {PROGRAMS} and not module.name.endswith('__main__'):\n"
        "        try:\n"
        "            importlib.import_module(module.name)\n"
        "        except ImportError as error:\n"
        "            failed[module.name] = error.name\n"
        "print(json.dumps(failed))"
    )
    failed = json.loads(_run(f"{environment}/bin/python", "-c", asked))

    assert set(EXTRAS) <= set(failed)
    assert set(EXTRAS.values()) == set(failed.values())


_CONFIGURATION = '{"evictionHard": {"memory.available": "64Mi"}}'
# What a command is called with, its exit status, and what it answers. None guards anything or needs root.
ANSWERS = {
    "run": (["--config", "absent.yaml"], 2, "absent.yaml"),
    "simulate": (["absent"], 2, "absent"),
    "record": (["--help"], 0, "usage: reactor record"),
    "shadow": (["--help"], 0, "usage: reactor shadow"),
    "fleet": (["--help"], 0, "usage: reactor fleet"),
    "status": (["--socket", "absent.sock"], 1, "absent.sock"),
    "top": (["--once", "--socket", "absent.sock"], 1, "absent.sock"),
    "explain": (["--socket", "absent.sock", "--journal", "absent.jsonl", "pod"], 1, "absent"),
    "report": (["--help"], 0, "usage: reactor report"),
    "doctor": (["--config", "good.json"], None, "memory controller"),
    "demo": (["--help"], 0, "usage: reactor demo"),
    "bench": ([], 2, "part of a checkout, not of an installed package"),
    "tune": (["--help"], 0, "usage: reactor tune"),
    "config": (["check", "good.json"], 0, "good.json: ok"),
    "notify": (["--test", "--config", "absent.yaml"], 2, "absent.yaml"),
    "clean": (["--help"], 0, "usage: reactor clean"),
    "cluster": (["clean", "--help"], 0, "usage: reactor cluster clean"),
    "managed-oom": (["--help"], 0, "usage: reactor managed-oom"),
}


@pytest.mark.slow
@_WITH_OBJECTS
def test_each_command_answers_from_it(environment: Path, tmp_path: Path) -> None:
    (tmp_path / "good.json").write_text(_CONFIGURATION)
    listed = _run(f"{environment}/bin/reactor", "--help")
    names = re.findall(r"^    ([a-z-]+)(?:  |$)", listed, re.MULTILINE)
    assert sorted(ANSWERS) == sorted(names)
    for name, (arguments, status, said) in ANSWERS.items():
        command = [f"{environment}/bin/reactor", name, *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path, timeout=60)
        answer = done.stdout + done.stderr
        assert said in answer, (name, answer)
        assert "Traceback" not in answer
        assert done.returncode == status or status is None, (name, answer)


def test_installed_command_loads_the_package_that_the_wheel_brought(environment: Path) -> None:
    asked = "import reactor.cli, reactor.steward, reactor; print(reactor.__file__)"

    shown = _run(f"{environment}/bin/python", "-c", asked)

    assert str(_site(environment) / "reactor/__init__.py") == shown.strip()


def test_wheel_has_all_objects_that_were_built_or_says_how_to_get_them(environment: Path) -> None:
    asked = "from reactor.kernel.bpf.objects import not_installed; print(not_installed() or '')"
    found = {path.name for path in (_site(environment) / "reactor" / COMPILED).glob("*")}

    shown = _run(f"{environment}/bin/python", "-c", asked).strip()

    if found:
        assert (found, shown) == (_objects(), "")
    else:
        assert re.search(r"not in this installation: .*Debian package.*`make wheel`", shown)


@pytest.mark.parametrize(
    ("version", "is_allowed", "is_missing"),
    [
        (CgroupVersion.V2, True, True),
        (CgroupVersion.V2, True, False),
        (CgroupVersion.V2, False, True),
        (CgroupVersion.V1, True, True),
    ],
)
def test_start_says_that_objects_are_missing_where_they_would_be_used_and_not_elsewhere(
    caplog: pytest.LogCaptureFixture,
    tmp_path: Path,
    version: CgroupVersion,
    is_allowed: bool,  # noqa: FBT001
    is_missing: bool,  # noqa: FBT001
) -> None:
    if not is_missing:
        (tmp_path / "memory.bpf.o").touch()
    settings = Settings(sources=SourceSettings(ebpf=is_allowed))

    warn_of_missing_objects(settings, version, lambda: not_installed(tmp_path))

    is_said = "not in this installation" in caplog.text
    assert is_said is (version is CgroupVersion.V2 and is_allowed and is_missing)


def test_no_page_or_message_names_the_package_of_another_project_as_ours() -> None:
    """`reactor` in the public index is not this: pip is never told to install that name."""
    pages = [
        path
        for where in ("*.md", "docs/**/*.md", "deploy/**/*.md", "*/README.md")
        for path in ROOT.glob(where)
    ]
    sources = [*(ROOT / "reactor").rglob("*.py"), *(ROOT / "deploy").rglob("*.py")]
    named = re.compile(
        r"(?:pip|pipx|uv pip|uv tool) install [^`\n]*?(?<![\w./-])['\"]?reactor(?:\[|\b(?![-./\w]))"
    )
    found = [
        f"{path.relative_to(ROOT)}: {line.strip()}"
        for path in (*pages, *sources)
        if path.name != "CHANGELOG.md"
        for line in path.read_text(encoding="utf-8").splitlines()
        if named.search(line)
    ]

    assert found == []
