import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from reactor.processes import HollowModule, bare_package, postpone, replaced

LOADED = """
import sys
from reactor.processes import UNUSED, postpone
postpone(UNUSED)
def loaded():
    return [name for name in (*UNUSED, "asyncio") if "__builtins__" in vars(sys.modules.get(name, sys))]
"""


@pytest.fixture
def lazy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory of modules of our own, named reactor_lazy_*."""
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    for name in [name for name in sys.modules if name.startswith("reactor_lazy_")]:
        del sys.modules[name]


def run(script: str) -> None:
    subprocess.run([sys.executable, "-W", "error", "-c", script], check=True, timeout=60)


def test_a_postponed_module_is_loaded_when_it_is_looked_into_and_not_by_its_import(lazy: Path) -> None:
    (lazy / "reactor_lazy_one.py").write_text("import sys\nsys.reactor_lazy_loads += 1\nanswer = 42\n")
    sys.reactor_lazy_loads = 0  # type: ignore[attr-defined]
    postpone(["reactor_lazy_one"])
    import reactor_lazy_one  # type: ignore[import-not-found]  # noqa: PLC0415

    assert 0 == sys.reactor_lazy_loads  # type: ignore[attr-defined]
    assert (42, 42) == (reactor_lazy_one.answer, reactor_lazy_one.answer)
    assert 1 == sys.reactor_lazy_loads  # type: ignore[attr-defined]
    with pytest.raises(AttributeError, match="'reactor_lazy_one' has no attribute 'question'"):
        _ = reactor_lazy_one.question


def test_a_package_that_is_postponed_finds_its_modules_and_may_look_into_itself(lazy: Path) -> None:
    (lazy / "reactor_lazy_package").mkdir()
    (lazy / "reactor_lazy_package" / "__init__.py").write_text(
        "import reactor_lazy_package\nis_whole = hasattr(reactor_lazy_package, 'part')\nfrom . import part\n"
    )
    (lazy / "reactor_lazy_package" / "part.py").write_text("value = 1\n")
    postpone(["reactor_lazy_package"])
    import reactor_lazy_package  # type: ignore[import-not-found]  # noqa: PLC0415

    assert (1, False) == (reactor_lazy_package.part.value, reactor_lazy_package.is_whole)


def test_what_is_loaded_already_written_in_c_or_absent_is_left_as_it_is() -> None:
    before = {name: sys.modules.get(name) for name in ("json", "zlib", "reactor_lazy_absent")}
    sys.modules.pop("zlib", None)
    try:
        postpone(before)
        assert (before["json"], None) == (sys.modules["json"], sys.modules.get("reactor_lazy_absent"))
        assert "zlib" not in sys.modules
    finally:
        if before["zlib"] is not None:
            sys.modules["zlib"] = before["zlib"]


@pytest.mark.parametrize("end", ["os._exit(7)", "raise SystemExit(7)", "give(b'half'); os._exit(7)"])
def test_of_a_child_that_fails_there_is_its_status_and_nothing_else(end: str) -> None:
    run(f"""
import os
from reactor.processes import made_by_child
def make(give):
    {end}
assert (b"", 7) == made_by_child(make)
""")


def test_what_a_child_makes_is_had_and_what_it_imported_is_not() -> None:
    run("""
import sys
from reactor.processes import made_by_child
def make(give):
    import csv
    return give(b"made" * 100_000)
assert (b"made" * 100_000, 0) == made_by_child(make)
assert "csv" not in sys.modules
""")


def test_what_is_done_meanwhile_is_done_once_in_this_process_and_before_a_child_has_ended() -> None:
    run("""
import os
from reactor.processes import made_by_child
reader, writer = os.pipe()
own, done = os.getpid(), []
def make(give):
    assert os.read(reader, 1) == b"."  # until this process has done something meanwhile
    return give(b"made")
assert (b"made", 0) == made_by_child(make, lambda: done.append((os.getpid(), os.write(writer, b"."))))
assert [(own, 1)] == done
""")


@pytest.mark.parametrize("obstacle", ["no child can be started", "it is killed"])
def test_where_a_child_can_not_make_it_it_is_made_here(obstacle: str) -> None:
    run(f"""
import os, resource, signal
from reactor.processes import made_by_child
own = os.getpid()
if {obstacle!r} == "no child can be started":
    if os.geteuid() == 0:
        os.setuid(65534)  # root has no limit
    resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))
def make(give):
    if os.getpid() != own:
        os.kill(os.getpid(), signal.SIGKILL)
    return give(b"here")
assert (b"here", 0) == made_by_child(make)
""")


# What guard and steward are to come up without, beside UNUSED: each is large, and read from the disk at a
# moment that nobody chooses if it is imported later.
NEITHER: Final = (
    *(
        "argparse",
        "ast",
        "asyncio",
        "cattrs",
        "ctypes",
        "decimal",
        "dis",
        "email",
        "html",
        "importlib.metadata",
        "inspect",
        "multiprocessing",
    ),
    *(
        "pyroute2",
        "ruamel",
        "rich",
        "ssl",
        "trio._dtls",
        "typing_extensions",
        "unittest",
        "urllib.request",
        "yaml",
    ),
    *("reactor.commands", "reactor.config", "reactor.doctor", "reactor.simulate", "reactor.tune"),
)
NOT_THE_GUARD: Final = (
    *("h11", "http", "h2", "prometheus_client", "reactor.cluster", "reactor.cri", "reactor.disks"),
    *(
        "reactor.kube",
        "reactor.podman",
        "reactor.steward",
        "reactor.tell.journal",
        "reactor.workloads.manifests",
    ),
)
NOT_THE_STEWARD: Final = (
    "h2",
    "reactor.act",
    "reactor.guard",
    "reactor.rules",
    "reactor.svg",
    "reactor.warrants",
)


def imported(script: str) -> set[str]:
    """Return the modules that are there at the end of a script; those that are postponed are not."""
    shown = "print(*(name for name, one in sys.modules.items() if '_postponed_loader' not in vars(one)))"
    script = f"import sys\n{script}\n{shown}"
    done = subprocess.run(
        [sys.executable, "-c", script], check=True, timeout=60, capture_output=True, text=True
    )
    return set(done.stdout.split())


def test_the_guard_holds_nothing_of_what_reads_its_arguments_and_its_configuration(tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text("evictionHard: {memory.available: 100Mi}\n")
    modules = imported(f"""
import reactor.run
def guard(order):
    assert "100Mi" in str(order.start.settings.eviction.thresholds), order
    import reactor.guard.run, reactor.tell.log
    return 0
reactor.run.guard = guard
sys.argv = ["reactor", "run", "--dry-run", "--config", {str(config)!r}]
from reactor.cli import main
assert main() == 0
""")
    assert [] == sorted(modules & {*NEITHER, *NOT_THE_GUARD})
    assert "reactor.guard.daemon" in modules


def test_the_steward_of_a_plain_node_comes_up_without_what_it_has_no_use_for() -> None:
    modules = imported("import reactor.steward.__main__")
    assert [] == sorted(modules & {*NEITHER, *NOT_THE_STEWARD})


def test_the_guard_comes_up_without_tls_and_asyncio_and_the_steward_of_a_cluster_has_what_it_needs() -> None:
    run(
        LOADED
        + """
import trio, reactor.guard.daemon
from reactor.kernel.proc_events import decode_events
decode_events(b"")
assert [] == loaded(), loaded()
import reactor.guard.kubernetes
assert [] == loaded(), loaded()
others = ("h11", "http", "h2", "prometheus_client")
rooms = ("cluster", "cri", "kube", "podman", "steward", "tell")
assert [] == [name for name in others if name in sys.modules]
assert [] == [name for name in rooms if f"reactor.{name}" in sys.modules]
import reactor.steward.kubernetes
from reactor.kube.credentials import tls_context
from reactor.kube.credentials import Access
assert "ssl" not in loaded(), loaded()
assert tls_context(Access(server="https://a")) is not None
assert "ssl" in loaded(), loaded()
"""
    )


def test_the_steward_of_a_plain_node_comes_up_without_openssl() -> None:
    run(
        LOADED
        + """
import trio, reactor.steward.service
assert [] == loaded(), loaded()
assert not {"_hashlib", "_ssl"} & sys.modules.keys()
"""
    )


def test_everything_that_is_postponed_works_once_it_is_used() -> None:
    run(
        LOADED
        + """
import bz2, hmac, idna, ipaddress, lzma, ssl
assert ssl.create_default_context().check_hostname
assert hmac.compare_digest(hmac.digest(b"a", b"b", "sha256"), hmac.digest(b"a", b"b", "sha256"))
assert b"" == bz2.decompress(bz2.compress(b"")) == lzma.decompress(lzma.compress(b""))
assert b"xn--rksmrgs-5wao1o" == idna.encode("r\\xe4ksm\\xf6rg\\xe5s")
assert ipaddress.ip_address("127.0.0.1").is_loopback
"""
    )


DOCUMENTED = '''"""The module."""
class Documented:
    """The class."""
    text = "The text."
    def method(self):
        """The method."""
        return "The result."
class Twice:
    """The class and its text."""
    text = "The class and its text."
    def method(self):
        """The method and its result."""
        return "The method and its result."
class Bare:
    text = "No docstring."
def joined(words):
    return "".join(f"{word}The rest." for word in words)
def plain():
    return "The result."
constant = lambda: "The result."
async def waits():
    """The coroutine."""
    return ["The result." for _ in range(1)]
'''


def test_what_is_imported_lean_has_no_docstrings_and_does_what_it_did(lazy: Path) -> None:
    (lazy / "reactor_lazy_documented.py").write_text(DOCUMENTED)
    run(f"""
import sys
sys.path.insert(0, {str(lazy)!r})
from reactor.processes import import_trio
trio = import_trio()
import reactor_lazy_documented as whole
from reactor_lazy_documented import *
assert [None] * 5 == [one.__doc__ for one in (whole, Documented, Documented.method, plain, waits)]
assert ("The text.", "The result.") == (Documented.text, Documented().method())
assert ("The class and its text.", "The method and its result.") == (Twice.text, Twice().method())
assert ("No docstring.", None) == (Bare.text, Bare.__doc__)
assert ("aThe rest.", "The result.", "The result.") == (joined("a"), plain(), constant())
assert ["The result."] == trio.run(waits)
""")


def test_what_stands_in_for_inspect_says_what_that_says_and_has_the_rest_from_it() -> None:
    run("""
import sys
from reactor.processes import import_trio
trio = import_trio()
assert "inspect" not in sys.modules
from trio._core._parking_lot import inspect as lean
async def waits():
    await trio.lowlevel.checkpoint()
async def yields():
    yield 1
coroutine, generator = waits(), yields()
found = [lean.iscoroutine(coroutine), lean.iscoroutine(waits), lean.isasyncgen(generator)]
states = [lean.getcoroutinestate(coroutine)]
coroutine.close()
states.append(lean.getcoroutinestate(coroutine))
assert [True, False, True] == found
assert not hasattr(lean, "nothing of this name")
import inspect
assert [inspect.CORO_CREATED, inspect.CORO_CLOSED] == states and lean.CORO_CLOSED == inspect.CORO_CLOSED
assert lean.getsource is inspect.getsource
""")


def test_what_stands_in_is_found_by_imports_in_the_block_and_by_none_after_it(lazy: Path) -> None:
    (lazy / "reactor_lazy_large.py").write_text("size = 'large'\n")
    (lazy / "reactor_lazy_user.py").write_text("from reactor_lazy_large import Server\n")
    with replaced({"reactor_lazy_large": HollowModule("reactor_lazy_large")}):
        import reactor_lazy_user  # type: ignore[import-not-found]  # noqa: PLC0415

    assert isinstance(reactor_lazy_user.Server, type)
    import reactor_lazy_large  # type: ignore[import-not-found]  # noqa: PLC0415

    assert "large" == reactor_lazy_large.size


def test_of_a_bare_package_nothing_stays_and_another_import_gets_it_whole(lazy: Path) -> None:
    (lazy / "reactor_lazy_whole").mkdir()
    (lazy / "reactor_lazy_whole" / "__init__.py").write_text("is_whole = True\n")
    (lazy / "reactor_lazy_whole" / "part.py").write_text("value = 1\n")
    package = "reactor_lazy_whole"
    with replaced({package: bare_package(package)}, package=package):
        from reactor_lazy_whole import part  # type: ignore[import-not-found]  # noqa: PLC0415

        assert not hasattr(sys.modules[package], "is_whole")
    assert 1 == part.value
    assert not [name for name in sys.modules if name.startswith(package)]
    import reactor_lazy_whole  # noqa: PLC0415

    assert reactor_lazy_whole.is_whole


def test_a_module_that_was_there_before_is_there_again(lazy: Path) -> None:
    before = sys.modules["json"]
    with replaced({"json": HollowModule("json")}, package="json"):
        assert before is not sys.modules["json"]
    assert before is sys.modules["json"]
