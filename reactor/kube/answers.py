"""What an answer that is no success, or none at all, comes to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import httpcore2

from reactor.bounded_json import JsonError, loads
from reactor.kube.errors import (
    ApiError,
    BusyError,
    ConflictError,
    ExpiredError,
    ForbiddenError,
    InvalidError,
    NotFoundError,
    UnauthorizedError,
)
from reactor.kube.rules import rule_for

BROKEN: Final = (
    httpcore2.NetworkError,
    httpcore2.ProtocolError,
    httpcore2.TimeoutException,
    httpcore2.UnsupportedProtocol,
    OSError,
)
"""What the library raises where a connection fails, or what comes over it is no HTTP."""

_LONGEST_WHY: Final = 1000
_LONGEST_RETRY_AFTER_SECONDS: Final = 60.0
_KINDS: Final[dict[int, type[ApiError]]] = {
    401: UnauthorizedError,
    403: ForbiddenError,
    404: NotFoundError,
    409: ConflictError,
    410: ExpiredError,
}


def refusal(
    answer: httpcore2.Response, body: bytes, method: str, path: str, query: Mapping[str, str]
) -> ApiError:
    """Return what the server's refusal comes to; `body` is a v1.Status as a rule."""
    what = f"{method} {path}"
    status = answer.status
    try:
        why = f"{loads(body)['message']!s:.{_LONGEST_WHY}}"
    except (JsonError, KeyError, TypeError, RecursionError):
        why = f"HTTP status {status}"
    if status == 429 or status >= 500:
        return BusyError(what, why, status=status, retry_after_seconds=_retry_after_seconds(answer))
    if status == 403:
        why = f"{why}; missing rule: {rule_for(method, path, query)}"
    if status == 401:
        why = f"{why}; the token or certificate is not, or no longer, good"
    return _KINDS.get(status, InvalidError)(what, why, status=status)


def header(answer: httpcore2.Response, name: bytes) -> str | None:
    """Return a header's value; `name` in lower case."""
    return next((value.decode("latin-1") for key, value in answer.headers if key.lower() == name), None)


def because(error: BaseException) -> str:
    """Return why a connection failed: the deepest cause that says something."""
    told = type(error).__name__
    cause: BaseException | None = error
    while cause is not None:
        text = " ".join((getattr(cause, "strerror", None) or str(cause)).split())
        told = text or told
        cause = _cause(cause)
    return told


def _cause(error: BaseException) -> BaseException | None:
    if isinstance(error, BaseExceptionGroup):
        return error.exceptions[0]
    if error.__cause__ is None and error.args and isinstance(error.args[0], BaseException):
        return error.args[0]  # the library raises its own kinds around the first
    return error.__cause__


def _retry_after_seconds(answer: httpcore2.Response) -> float | None:
    told = header(answer, b"retry-after") or ""
    if not told.isascii() or not told.isdigit() or len(told) > 9:
        return None
    return min(float(told), _LONGEST_RETRY_AFTER_SECONDS)
