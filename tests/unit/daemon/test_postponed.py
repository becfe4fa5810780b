import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from reactor.daemon.postponed import postpone

LOADED = """
import sys
from reactor.daemon.postponed import UNUSED, postpone
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


def test_the_daemon_comes_up_without_tls_and_asyncio_and_a_cluster_has_what_it_needs() -> None:
    run(
        LOADED
        + """
import trio, reactor.daemon.loop
from reactor.kernel.proc_events import decode_events
decode_events(b"")
assert [] == loaded(), loaded()
import reactor.daemon.kubernetes
assert "ssl" in loaded(), loaded()
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
