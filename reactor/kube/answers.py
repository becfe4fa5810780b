"""What an answer that is no success, or none at all, comes to; and the RBAC rule that is missing."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

from reactor.bounded_json import JsonError, loads
from reactor.http_client import Answer
from reactor.kube.errors import (
    ApiError,
    BusyError,
    ConflictError,
    ExpiredError,
    ForbiddenError,
    InvalidError,
    NotFoundError,
    UnauthorizedError,
    VersionTooLargeError,
)

_LONGEST_WHY: Final = 1000
_LONGEST_RETRY_AFTER_SECONDS: Final = 60.0
_KINDS: Final[dict[int, type[ApiError]]] = {
    401: UnauthorizedError,
    403: ForbiddenError,
    404: NotFoundError,
    409: ConflictError,
    410: ExpiredError,
}
_VERBS: Final = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}
# Paths of the kubelet's own server, and the resource that its authorizer asks about.
_KUBELET: Final = {"/pods": "nodes/proxy", "/stats/summary": "nodes/stats"}


def refusal(answer: Answer, body: bytes, method: str, path: str, query: Mapping[str, str]) -> ApiError:
    """Return what the server's refusal comes to; `body` is a v1.Status as a rule."""
    what = f"{method} {path}"
    status = answer.status
    document: Any = None
    with suppress(JsonError, RecursionError):
        document = loads(body)
    message = document.get("message") if isinstance(document, Mapping) else None
    why = f"HTTP status {status}" if message is None else f"{message!s:.{_LONGEST_WHY}}"
    if status == 429 or status >= 500:
        kind = VersionTooLargeError if status == 504 and _is_too_large(document, why) else BusyError
        return kind(what, why, status=status, retry_after_seconds=_retry_after_seconds(answer))
    if status == 403:
        why = f"{why}; missing rule: {rule_for(method, path, query)}"
    if status == 401:
        why = f"{why}; the token or certificate is not, or no longer, good"
    return _KINDS.get(status, InvalidError)(what, why, status=status)


def _is_too_large(status: Any, message: str) -> bool:
    """Return whether a v1.Status says that there is no such version yet; before 1.19 its message alone does.

    Source: client-go's reflector, isTooLargeResourceVersionError.
    """
    details = status.get("details") if isinstance(status, Mapping) else None
    causes = details.get("causes") if isinstance(details, Mapping) else None
    reasons = [
        one.get("reason") for one in (causes if isinstance(causes, list) else ()) if isinstance(one, Mapping)
    ]
    return "ResourceVersionTooLarge" in reasons or "Too large resource version" in message


def _retry_after_seconds(answer: Answer) -> float | None:
    told = answer.header(b"retry-after") or ""
    if not told.isascii() or not told.isdigit() or len(told) > 9:
        return None
    return min(float(told), _LONGEST_RETRY_AFTER_SECONDS)


def rule_for(method: str, path: str, query: Mapping[str, str]) -> str:
    """Return the RBAC rule that a request needs, as one line of YAML, with the namespace where it matters.

    Source: apiserver's RequestInfo resolver; for the kubelet pkg/kubelet/server/auth.go.
    """
    if path in _KUBELET:
        return _rule("", _KUBELET[path], "get")
    parts = [part for part in path.split("/") if part]
    if parts[:1] == ["api"]:
        group, rest = "", parts[2:]
    elif parts[:1] == ["apis"]:
        group, rest = parts[1], parts[3:]
    else:
        return f"{{nonResourceURLs: [{path}], verbs: [{method.lower()}]}}"
    namespace = None
    if rest[:1] == ["namespaces"] and len(rest) > 2:
        namespace, rest = rest[1], rest[2:]
    resource = "/".join((rest[0], *rest[2:])) if rest else ""
    where = "" if namespace is None else f" in namespace {namespace}"
    return _rule(group, resource, _verb(method, query, is_named=len(rest) > 1)) + where


def _verb(method: str, query: Mapping[str, str], *, is_named: bool) -> str:
    if method != "GET":
        return _VERBS.get(method, method.lower())
    if query.get("watch") in {"true", "1"}:
        return "watch"
    return "get" if is_named else "list"


def _rule(group: str, resource: str, verb: str) -> str:
    return f'{{apiGroups: ["{group}"], resources: ["{resource}"], verbs: ["{verb}"]}}'
