"""`python -m tests.affected [PACKAGE…]`: the unit tests that a change can fail; `make quick` runs them.

A change is the packages named (`rules`, `reactor/kube`, `bench.race`), or what differs from main in git.
The tests are those of the changed packages, and those that import a changed module or a module that imports
one. `make test` has the others.
"""

from __future__ import annotations

import ast
import functools
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from grimp import build_graph

ROOT: Final = Path(__file__).resolve().parents[1]
UNIT: Final = ROOT / "tests/unit"
# Whatever these say is true of every test.
_EVERYWHERE: Final = (
    "pyproject.toml",
    "constraints.txt",
    "constraints-dev.txt",
    "tests/conftest.py",
    "tests/unit/conftest.py",
)
_OF_THE_TREE: Final = ("tests/unit/test_docs.py", "tests/unit/test_docstrings.py")


def main(packages: Sequence[str]) -> int:
    """Print the tests, one a line; return 2 if no package has such a name."""
    try:
        tests = of_packages(packages) if packages else of_files(_changed_files())
    except ValueError as error:
        print(f"quick: {error}", file=sys.stderr)
        return 2
    print("\n".join(tests))
    return 0


def of_packages(packages: Iterable[str]) -> list[str]:
    """Return the tests of these packages and of what imports them. Raises ValueError for an unknown one."""
    modules: set[str] = set()
    known = _modules()
    for package in packages:
        name = package.strip("/").removesuffix(".py").replace("/", ".")
        name = name if name.split(".")[0] in {"reactor", "bench"} else f"reactor.{name}"
        found = {module for module in known if module == name or module.startswith(f"{name}.")}
        if not found:
            raise ValueError(f"{package!r} is no package of reactor or bench, such as rules or bench/race")
        modules |= found
    return _sorted({*_of_modules(modules), *_OF_THE_TREE})


def of_files(files: Iterable[str]) -> list[str]:
    """Return the tests that the change of these files, as paths from the root, can fail."""
    changed = set(files)
    if changed & set(_EVERYWHERE):
        return ["tests/unit"]
    modules = {module for path in changed if (module := _module(path))}
    tests = {
        path for path in changed if path.startswith("tests/unit/") and Path(path).name.startswith("test_")
    }
    shared = {module for path in changed - tests if path.startswith("tests/") and (module := _module(path))}
    tests |= {test for test, imported in _imports() if imported & shared}
    tests |= {str(Path(path).parent) for path in changed if Path(path).name == "conftest.py"}
    return _sorted({*tests, *_of_modules(modules), *_OF_THE_TREE})


def _of_modules(modules: set[str]) -> set[str]:
    graph = build_graph("reactor", "bench", cache_dir=None)
    near = modules | {
        user for module in modules & graph.modules for user in graph.find_modules_that_directly_import(module)
    }
    tests = {test for test, imported in _imports() if imported & near}
    for module in modules:
        top, _, rest = module.partition(".")
        directory = UNIT / (rest.split(".")[0] if top == "reactor" else top)
        if rest and directory.is_dir():
            tests.add(str(directory.relative_to(ROOT)))
    return tests


@functools.cache
def _imports() -> tuple[tuple[str, set[str]], ...]:
    """Return each file of unit tests with the names that it imports."""
    found = []
    for path in UNIT.rglob("test_*.py"):
        names: set[str] = set()
        for node in ast.walk(ast.parse(path.read_bytes())):
            if isinstance(node, ast.Import):
                names |= {each.name for each in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                names |= {node.module, *(f"{node.module}.{each.name}" for each in node.names)}
        found.append((str(path.relative_to(ROOT)), names))
    return tuple(found)


def _modules() -> set[str]:
    files = (path for top in ("reactor", "bench") for path in (ROOT / top).rglob("*.py"))
    return {module for path in files if (module := _module(str(path.relative_to(ROOT))))}


def _module(path: str) -> str | None:
    if not path.endswith(".py"):
        return None
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def _sorted(tests: Iterable[str]) -> list[str]:
    """Return the tests that are there, without those of a directory that is among them."""
    there = {test for test in tests if (ROOT / test).exists()}
    return sorted(
        test for test in there if not any(str(above) in there for above in Path(test).parents if above.name)
    )


def _changed_files() -> set[str]:
    """Return what differs from main, or from the last commit if there is no main; new files, too."""
    base = _git("merge-base", "HEAD", "main") or ["HEAD"]
    return {*_git("diff", "--name-only", base[0]), *_git("ls-files", "--others", "--exclude-standard")}


def _git(*arguments: str) -> list[str]:
    asked = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    return asked.stdout.split("\n")[:-1] if not asked.returncode else []


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
