"""Plain files, and values of dataclasses as plain JSON values, and back: what small files of our own hold.

    dataclass         an object of its fields; those that have no place in `__init__` are left out
    named tuple       an object of its fields
    mapping           an object; a list of pairs if its keys are dataclasses, since JSON's keys are strings
    tuple, frozenset  a list
    enumeration       its value
    Fraction          a string such as 3/2

A library for it takes 1.5 MiB of each process, for forms that our own files do not need.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import fields, is_dataclass
from enum import Enum
from fractions import Fraction
from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import IO, Any, Final, TypeVar, get_args, get_origin, get_type_hints

from reactor.errors import NotRegularError

_Value = TypeVar("_Value")
_AS_THEY_ARE: Final = (str, bool, int, NoneType)


def open_regular(path: Path, flags: int = 0, *, may_be_pipe: bool = True) -> IO[bytes]:
    """Open a regular file for reading, or a pipe of this process's own, as a shell's `<(zcat FILE)` is.

    Raises OSError, NotRegularError for another kind of file. A FIFO that no process writes does not block.
    """
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | flags)
    mode = os.fstat(fd).st_mode
    is_own_pipe = stat.S_ISFIFO(mode) and os.readlink(f"/proc/self/fd/{fd}").startswith("pipe:")
    if not (stat.S_ISREG(mode) or (may_be_pipe and is_own_pipe)):
        os.close(fd)
        raise NotRegularError(path)
    os.set_blocking(fd, True)
    return os.fdopen(fd, "rb")


def read_regular(path: Path, most_bytes: int, *, may_be_pipe: bool = True) -> bytes:
    """Return what is in such a file. Raises OSError, EFBIG for more than so many bytes."""
    return read_with_status(path, most_bytes, may_be_pipe=may_be_pipe)[0]


def read_with_status(
    path: Path, most_bytes: int, *, may_be_pipe: bool = True
) -> tuple[bytes, os.stat_result]:
    """Return the same with the file's status, by the descriptor that it was read through."""
    with open_regular(path, may_be_pipe=may_be_pipe) as file:
        found, content = os.fstat(file.fileno()), file.read(most_bytes + 1)
    if len(content) > most_bytes:
        shown = f"{most_bytes >> 20} MiB" if most_bytes >> 20 else f"{most_bytes >> 10} KiB"
        raise OSError(errno.EFBIG, f"larger than {shown}", os.fspath(path))
    return content, found


def write_whole(path: Path, text: str) -> None:
    """Write a text where a path leads, whole or not at all. Raises OSError with the path.

    What is there and no regular file, such as a terminal or /dev/null, is written to, and never replaced.
    """
    content = text.encode(errors="backslashreplace")
    with suppress(FileNotFoundError):
        if not stat.S_ISREG(path.stat().st_mode):
            # A FIFO that no process reads does not block: ENXIO.
            fd = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
            os.set_blocking(fd, True)
            try:
                with os.fdopen(fd, "wb") as file:
                    file.write(content)
            except OSError as error:
                raise OSError(error.errno, error.strerror, os.fspath(path)) from None
            return
    to = path.resolve()
    unfinished = to.with_name(f"{to.name}.{os.getpid()}")
    try:
        unfinished.write_bytes(content)
        unfinished.replace(to)
    except OSError as error:  # with the name that the user knows
        raise OSError(error.errno, error.strerror, os.fspath(path)) from None
    finally:
        unfinished.unlink(missing_ok=True)


def to_plain(value: Any) -> Any:
    """Return a value as plain JSON values. Raises TypeError for one that has no such form."""
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, (*_AS_THEY_ARE, float)):
        return value
    if isinstance(value, Mapping):
        pairs = [(to_plain(key), to_plain(one)) for key, one in value.items()]
        return pairs if any(map(is_dataclass, value)) else dict(pairs)
    if isinstance(value, Fraction):
        return str(value)
    if isinstance(value, tuple | frozenset) and not hasattr(value, "_fields"):
        return [to_plain(one) for one in value]
    kind: Any = type(value)
    return {name: to_plain(getattr(value, name)) for name in _fields(kind)}


def from_plain(kind: type[_Value], plain: Any) -> _Value:
    """Return the value of such a type. A field that is missing has its default, others are ignored.

    Raises TypeError, ValueError, KeyError or AttributeError for what is no such value.
    """
    found: _Value = _of(kind, plain)
    return found


def _of(kind: Any, plain: Any) -> Any:
    origin = get_origin(kind)
    if origin is not None:
        return _of_generic(origin, get_args(kind), plain)
    if is_dataclass(kind) or hasattr(kind, "_fields"):
        of: Any = kind
        return of(**{name: _of(_hints(of)[name], plain[name]) for name in _fields(of) if name in plain})
    return kind(plain) if issubclass(kind, Enum) else _simple(kind, plain)


def _of_generic(origin: Any, kinds: Sequence[Any], plain: Any) -> Any:
    if origin is UnionType:
        return None if plain is None else _of(next(one for one in kinds if one is not NoneType), plain)
    if origin is tuple and kinds[1:] != (...,):
        return tuple(_of(one, each) for one, each in zip(kinds, _listed(plain), strict=True))
    if origin in {tuple, frozenset}:
        return origin(_of(kinds[0], each) for each in _listed(plain))
    pairs = plain.items() if isinstance(plain, dict) else _listed(plain)
    return {_of(kinds[0], key): _of(kinds[1], each) for key, each in pairs}


def _simple(kind: type, plain: Any) -> Any:
    if kind is Fraction and isinstance(plain, str):
        return Fraction(plain)
    if kind is float and isinstance(plain, int | float) and not isinstance(plain, bool):
        return float(plain)
    if kind in _AS_THEY_ARE and type(plain) is kind:
        return plain
    raise TypeError(f"got {plain!r:.80}; accepted: {kind.__name__}")


def _listed(plain: Any) -> list[Any]:
    if not isinstance(plain, list):
        raise TypeError(f"got {plain!r:.80}; accepted: a list")
    return plain


@cache
def _fields(kind: Any) -> tuple[str, ...]:
    """Return the names of what a dataclass or a named tuple is made of."""
    named: tuple[str, ...] | None = getattr(kind, "_fields", None)
    return tuple(one.name for one in fields(kind) if one.init) if named is None else named


@cache
def _hints(kind: Any) -> Mapping[str, Any]:
    return get_type_hints(kind)
