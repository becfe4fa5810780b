"""Which RBAC rule a request needs: what an operator has to grant where it is missing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

_VERBS: Final = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}
# Paths of the kubelet's own server, and the resource that its authorizer asks about.
_KUBELET: Final = {"/pods": "nodes/proxy", "/stats/summary": "nodes/stats"}


def rule_for(method: str, path: str, query: Mapping[str, str]) -> str:
    """Return the rule as one line of YAML, with the namespace where it matters.

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
