"""Exceptions that several packages share; the type says who can mend what is wrong."""

from __future__ import annotations

import errno
import re
import reprlib
from collections.abc import Sequence
from typing import NamedTuple, Self

_REPR = reprlib.Repr()
_REPR.maxlevel, _REPR.maxdict, _REPR.maxlist, _REPR.maxstring, _REPR.maxother = 3, 8, 8, 200, 200


def extra_remedy(extra: str) -> str:
    """Return how what is missing of an extra is installed.

    Never by the project's name alone: the package of that name in the public index is another project's.
    """
    return f"install reactor with its extra: pip install '.[{extra}]' in a checkout, or 'WHEEL-FILE[{extra}]'"


class ReactorError(Exception):
    """The root of reactor's own exceptions."""


class Problem(NamedTuple):
    """One thing that is wrong with a document.

    `path` is where (`evictionHard["memory.available"]`, `pods[1].spec`), `got` the offending input as it
    stands there, `accepted` the form that would have been taken.
    """

    path: str
    got: str
    accepted: str

    def __str__(self) -> str:
        return f"{self.path}: got {self.got}; accepted: {self.accepted}"


class ConfigError(ReactorError):
    """A document is wrong, for its author to mend. It carries every problem found, not just the first."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(str(problem) for problem in self.problems))

    def __reduce__(self) -> tuple[type[Self], tuple[Sequence[Problem]]]:
        """Return what a copy in another process is made of."""
        return type(self), (self.problems,)


class NotRegularError(ReactorError, OSError):
    """A path leads to no regular file: a FIFO would be waited for, a device may never end."""

    def __init__(self, path: object) -> None:
        OSError.__init__(self, errno.EINVAL, "not a regular file", str(path))

    def __str__(self) -> str:
        return f"{self.filename}: {self.strerror}"


class KernelInterfaceError(ReactorError):
    """A kernel file or call answered with something that its documentation does not allow.

    `interface` is the file's path or the call's name, `got` what it gave.
    """

    def __init__(self, interface: str, got: object, accepted: str) -> None:
        self.interface = interface
        super().__init__(f"{interface}: got {got!r}; accepted: {accepted}")


class RefusedError(ReactorError):
    """reactor declines to do what was asked, because it could hurt what it must not touch."""


class BpfError(ReactorError):
    """An eBPF program can't be had on this node. `log` is the verifier's, empty where it was not asked.

    `detail` is the error without its remedy, which is empty where there is none but the node's.
    """

    def __init__(self, what: str, why: str, *, log: str = "", remedy: str = "") -> None:
        self.log = log
        self.remedy = remedy
        self.detail = f"{what}: {why}" + ("; `reactor doctor -v` shows the log" if log else "")
        super().__init__(f"{self.detail}: {remedy}" if remedy else self.detail)


class BpfNotAttachedError(BpfError):
    """The kernel takes an eBPF program, but lets it not be called where it was to be."""


class NoDaemonError(ReactorError):
    """No daemon answers on the socket; one line for the client."""


class StewardError(ReactorError):
    """The steward ended, hangs, or can't be started."""


class RuntimeUnavailableError(ReactorError):
    """The container runtime gives no answer: not there, gone, too slow, or not what it should be."""

    def __init__(self, endpoint: object, call: str, why: str) -> None:
        super().__init__(f"container runtime at {endpoint}: {call.rpartition('/')[2]}: {why}")


class RuntimeServiceError(ReactorError):
    """The container runtime answered a call with an error; `code` is gRPC's name for it."""

    def __init__(self, endpoint: object, call: str, code: str, why: str) -> None:
        self.code = code
        super().__init__(f"container runtime at {endpoint}: {call.rpartition('/')[2]}: {code}: {why}")


class PodmanError(ReactorError):
    """Podman refused a call (`status` is HTTP's), or gave no answer that could be understood (None)."""

    def __init__(self, endpoint: str, call: str, why: str, *, status: int | None = None) -> None:
        self.status = status
        super().__init__(f"podman at {endpoint}: {call}: {why}")


def split_failure(error: BaseException) -> tuple[Exception | None, BaseException | None]:
    """Return what of an error is a failure, and what is not (a cancellation, an interrupt); None for none.

    A nursery that is cancelled while a task in it fails raises both in one group, which `except Exception`
    lets pass.
    """
    if isinstance(error, Exception):
        return error, None
    if isinstance(error, BaseExceptionGroup):
        failures, others = error.split(Exception)
        return failures, others
    return None, error


def first_failure(error: BaseException) -> BaseException:
    """Return an error; of a group, its first member."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def failure_text(error: BaseException) -> str:
    """Return an error as one line; of a group, its first member's."""
    error = first_failure(error)
    text = " ".join(str(error).split())
    return text if isinstance(error, (OSError, ReactorError)) and text else f"{type(error).__name__}: {text}"


def what_failed(error: Exception) -> str:
    """Return an error for an operator; of a file its name and the reason, without the error's number."""
    if isinstance(error, ReactorError) or not isinstance(error, OSError) or error.strerror is None:
        return str(error)
    return error.strerror if error.filename is None else f"{error.filename}: {error.strerror}"


class Refused(ValueError):  # noqa: N818 - it reads as what it is
    """A value is not of the accepted form. `at` is where, relative to the value being read.

    `hint` follows what was got, such as a question after what was meant.
    """

    def __init__(self, got: object, accepted: str, *, at: str = "", hint: str = "") -> None:
        super().__init__(accepted)
        self.got = shorten(got) + hint
        self.accepted = accepted
        self.at = at


def join(path: str, key: object) -> str:
    """Return the path of a key or an index below `path`; keys with dots go in brackets and quotes."""
    if isinstance(key, int):
        return f"{path}[{key}]"
    text = str(key)
    if re.fullmatch(r"[\w/-]+", text):
        return f"{path}.{text}" if path else text
    return f'{path}["{text}"]'


def shorten(value: object) -> str:
    """Return a value's repr, cut where it would flood an error line."""
    try:
        text = _REPR.repr(value)
    except ValueError:  # Python prints no number of more than 4300 digits
        return "a number of thousands of digits"
    return text if len(text) <= 80 else f"{text[:77]}..."
