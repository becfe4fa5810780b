"""What the processes of this program have in common: lean imports, and what a child has and leaves.

`postpone` has a module loaded only when it is used. The TLS of `import trio` alone takes 5 MiB: OpenSSL, and
what Python has around it. A process that talks to an API server uses it and pays for it; no other does.
`replaced` has imports find something smaller in the place of a module for a while. `made_by_child` leaves to
a child what is done once.
"""

from __future__ import annotations

import os
import resource
import signal
import sys
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from importlib.machinery import (
    BYTECODE_SUFFIXES,
    EXTENSION_SUFFIXES,
    SOURCE_SUFFIXES,
    ExtensionFileLoader,
    FileFinder,
    SourceFileLoader,
    SourcelessFileLoader,
)
from importlib.util import find_spec, module_from_spec
from opcode import hasconst, opmap
from types import AsyncGeneratorType, CodeType, CoroutineType, ModuleType
from typing import Any, Final, NoReturn

# The RLIMIT_DATA of the steward: with the guard and the walker below the limit of their unit or pod.
STEWARD_DATA_BYTES: Final = 160 << 20
_STACK_BYTES: Final = 512 << 10

# Only what is imported whole (`import ssl`) and not used at its import can be postponed.
UNUSED: Final = (
    "ssl",  # Trio, prometheus_client
    "hmac",  # Trio's DTLS: 3.5 MiB of OpenSSL by itself
    "locale",  # subprocess
    "bz2",  # shutil's archives
    "lzma",
    "idna",  # Trio: names of hosts
    "ipaddress",  # urllib.parse, which pathlib imports
)
_loading: Final = threading.RLock()
_OPTIMIZED: Final = 0x1  # flags of code, see Include/cpython/code.h
_HAS_DOCSTRING: Final = 0x4000000  # since Python 3.14; before, the first constant is the docstring or None
_BEGINNING: Final = 64  # of a class's or module's code: the docstring is stored there
_TAKE_CONSTANTS: Final = tuple(operation for operation in hasconst if operation < 256)


def child_environment() -> dict[str, str]:
    """Return an environment in which a child finds this program's modules, and nothing else of ours."""
    return {"PYTHONPATH": os.pathsep.join(filter(os.path.isabs, sys.path)), "LC_ALL": "C.UTF-8"}


def ended_text(status: int) -> str:
    """Return how a child ended by its exit status, which is negative where a signal killed it."""
    if status < 0:
        return f"killed by signal {-status} ({signal.strsignal(-status)})"
    return f"ended with status {status}"


def become_ordinary(data_bytes: int) -> None:
    """Leave what the guard has for itself, and take no more than so much memory from now on.

    A terminal's signals and a service manager's are meant for the guard.
    """
    os.chdir("/")
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGINT, signal.SIGTERM, signal.SIGHUP))
    with suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
    with suppress(OSError), open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
        file.write("0")
    threading.stack_size(_STACK_BYTES)
    _, most = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (data_bytes, most))


def close_others(kept: Collection[int]) -> None:
    """Close what the guard was started with and had not opened itself."""
    for fd in map(int, os.listdir("/proc/self/fd")):
        if fd not in kept:
            with suppress(OSError):  # that of the listing
                os.close(fd)


class _Postponed(ModuleType):
    """A module that is loaded when an attribute is read that is not there yet.

    importlib's own LazyLoader does so at each `import` of it already, which asks for `__spec__`.
    """

    def __getattr__(self, name: str) -> Any:
        with _loading:  # reentrant: while it is loading a module may read what it lacks
            loader = vars(self).pop("_postponed_loader", None)
            if loader is not None:
                loader.exec_module(self)
        try:
            return vars(self)[name]
        except KeyError:
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}") from None


def postpone(names: Iterable[str]) -> None:
    """Have these modules loaded when they are first used; to be called before they are imported.

    What is imported already or is not to be had stays so, and so does what is not written in Python.
    """
    for name in names:
        spec = None if name in sys.modules else find_spec(name)
        if spec is None or not isinstance(spec.loader, SourceFileLoader):
            continue
        module = module_from_spec(spec)
        module.__class__ = _Postponed
        vars(module)["_postponed_loader"] = spec.loader
        sys.modules[name] = module


@contextmanager
def replaced(stand_ins: Mapping[str, ModuleType], *, package: str | None = None) -> Iterator[None]:
    """Have imports in the block find these modules by their names; after it sys.modules is as it was before.

    What the block imported of `package` does not stay either: another import of it gets it whole.
    """
    names = stand_ins.keys()
    before = {name: module for name, module in sys.modules.items() if name in names or _is_in(name, package)}
    sys.modules.update(stand_ins)
    try:
        yield
    finally:
        for name in [name for name in sys.modules if name in names or _is_in(name, package)]:
            del sys.modules[name]
        sys.modules.update(before)


def _is_in(name: str, package: str | None) -> bool:
    return package is not None and name.partition(".")[0] == package


def made_by_child(
    make: Callable[[Callable[[bytes], int]], int], meanwhile: Callable[[], object] = lambda: None
) -> tuple[bytes, int]:
    """Return what `make` gives to its argument, in a child, and the exit status that it returns.

    `meanwhile` is called here once the child has begun.
    What the child imports and takes ends with it. If there can be no child, or it is killed, it is made here:
    a node that has no process ids left is to be guarded. To be called while there is one thread.
    """
    made: list[bytes] = []

    def give(raw: bytes) -> int:
        made.append(raw)
        return 0

    try:
        reader, writer = os.pipe()
        child = os.fork()
    except OSError:
        status = make(give)
        meanwhile()
        return b"".join(made), status
    if not child:
        os.close(reader)
        _end_as(lambda: make(lambda raw: _write_all(writer, raw)))
    os.close(writer)
    meanwhile()
    with os.fdopen(reader, "rb") as file:
        found = file.read()
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if status >= 0:
        return (b"" if status else found), status
    status = make(give)
    return b"".join(made), status


def _end_as(call: Callable[[], int]) -> NoReturn:
    """End this process with what a call returns or raises, as the interpreter would have it."""
    status = 1
    try:
        status = call()
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
    except BaseException:  # noqa: BLE001 - all that is left to do is to show it
        sys.excepthook(*sys.exc_info())
    finally:
        with suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status)


def _write_all(fd: int, raw: bytes) -> int:
    with os.fdopen(fd, "wb") as file:
        file.write(raw)
    return 0


class _Undocumented(SourceFileLoader):
    """Loads a module without its docstrings."""

    def get_code(self, fullname: str) -> CodeType | None:
        """Return the module's code."""
        code = super().get_code(fullname)
        return None if code is None else _undocumented(code)


def _undocumented(code: CodeType) -> CodeType:
    """Return code without its docstrings, as `python -OO` has it."""
    constants: Sequence[Any] = code.co_consts
    for place, one in enumerate(constants):
        if type(one) is CodeType and (bare := _undocumented(one)) is not one:
            constants = (*constants[:place], bare, *constants[place + 1 :])
    docstring = _place_of_docstring(code)
    if docstring is not None:
        constants = (*constants[:docstring], None, *constants[docstring + 1 :])
    return code if constants is code.co_consts else code.replace(co_consts=tuple(constants))


def _place_of_docstring(code: CodeType) -> int | None:
    """Return which constant the docstring is, None for no docstring, or one that is used as a value, too.

    See CPython's Python/compile.c.
    """
    used, place = 0, 0
    if code.co_flags & _OPTIMIZED:  # a function, or what is compiled to one and has a name such as <lambda>
        # Nearly all: this is asked at each start.
        if not code.co_consts or type(code.co_consts[0]) is not str:
            return None
        has_one = sys.version_info < (3, 14) or bool(code.co_flags & _HAS_DOCSTRING)
        if not has_one or code.co_name.startswith("<"):
            return None
        operations = code.co_code  # made anew each time that it is asked for
    elif "__doc__" not in code.co_names:
        return None
    else:
        operations = code.co_code
        at = operations.find(bytes([opmap["STORE_NAME"], code.co_names.index("__doc__")]), 0, _BEGINNING)
        if at < 2 or at % 2 or operations[at - 2] != opmap["LOAD_CONST"]:
            return None
        used, place = 1, operations[at - 1]
        if type(code.co_consts[place]) is not str:
            return None
    uses = sum(operations.count(bytes([operation, place])) for operation in _TAKE_CONSTANTS)
    return place if uses == used else None


def import_dataclasses() -> None:
    """Import `dataclasses` without `inspect`; to be called before anything else imports it."""
    with replaced({"inspect": _INSPECT}):
        import dataclasses  # noqa: F401, PLC0415


class _Inspect(ModuleType):
    """What `dataclasses`, attrs and Trio ask of `inspect`.

    Of signatures they make docstrings and annotations.
    """

    CORO_CLOSED = "CORO_CLOSED"

    @staticmethod
    def signature(_: object) -> str:
        """Return nothing."""
        return ""

    @staticmethod
    def cleandoc(text: str) -> str:
        """Return a docstring."""
        return text

    @staticmethod
    def iscoroutine(one: object) -> bool:
        return isinstance(one, CoroutineType)

    @staticmethod
    def isasyncgen(one: object) -> bool:
        return isinstance(one, AsyncGeneratorType)

    @staticmethod
    def getcoroutinestate(one: CoroutineType[Any, Any, Any]) -> str:
        """Return whether it is closed."""
        is_closed = not one.cr_running and not one.cr_suspended and one.cr_frame is None
        return _Inspect.CORO_CLOSED if is_closed else "CORO_CREATED"

    def __getattr__(self, name: str) -> Any:
        """Return what else there is, from the module itself, which imports find from then on."""
        if name.startswith("__"):  # asked of each module that is imported
            raise AttributeError(name)
        if sys.modules.get("inspect") is self:
            del sys.modules["inspect"]
        return getattr(import_module("inspect"), name)


_INSPECT: Final = _Inspect("inspect")


def import_trio() -> ModuleType:
    """Return Trio, imported without what it has no use for here; to be called before anything imports it.

    docstrings  of all that is imported from here on: 1.3 MiB
    inspect     1 MiB with `ast` and `dis`
    ctypes      names the threads, for which it has ldconfig run, and takes 0.8 MiB with what it imports
    trio._dtls  0.3 MiB
    decimal     what Fraction can be made of: 0.4 MiB
    platform    says which Python this is: 0.1 MiB
    UNUSED      5 MiB
    """
    postpone(UNUSED)
    import_dataclasses()
    loaders = (_Undocumented, SOURCE_SUFFIXES), (SourcelessFileLoader, BYTECODE_SUFFIXES)
    sys.path_hooks.insert(0, FileFinder.path_hook((ExtensionFileLoader, EXTENSION_SUFFIXES), *loaders))
    sys.path_importer_cache.clear()
    nameless, util, platform = map(ModuleType, ("ctypes", "ctypes.util", "platform"))
    vars(util)["find_library"] = lambda _: None
    vars(nameless).update(util=util, CDLL=None)
    vars(platform)["python_implementation"] = lambda: "CPython"
    unused = {name: HollowModule(name) for name in ("decimal", "trio._dtls")}
    with replaced(
        {"ctypes": nameless, "ctypes.util": util, "inspect": _INSPECT, "platform": platform, **unused}
    ):
        import fractions  # noqa: F401, PLC0415

        import trio  # noqa: PLC0415
    return trio


class HollowModule(ModuleType):
    """A module in which every name is an empty class."""

    def __getattr__(self, name: str) -> type:
        """Return an empty class."""
        return type(name, (), {})


def bare_package(name: str) -> ModuleType:
    """Return a package whose modules can be imported, without what its `__init__` would import."""
    spec = find_spec(name)
    package = ModuleType(name)
    package.__path__ = list(spec.submodule_search_locations or ()) if spec else []
    return package
