from __future__ import annotations

import pytest

from reactor.kube.client import NODES_PROXY, rule_for


@pytest.mark.parametrize(
    ("method", "path", "query", "rule"),
    [
        ("GET", "/api/v1/pods", {}, '{apiGroups: [""], resources: ["pods"], verbs: ["list"]}'),
        (
            "GET",
            "/api/v1/pods",
            {"watch": "true"},
            '{apiGroups: [""], resources: ["pods"], verbs: ["watch"]}',
        ),
        ("GET", "/api/v1/nodes/one", {}, '{apiGroups: [""], resources: ["nodes"], verbs: ["get"]}'),
        (
            "PATCH",
            "/api/v1/nodes/one/status",
            {},
            '{apiGroups: [""], resources: ["nodes/status"], verbs: ["patch"]}',
        ),
        (
            "POST",
            "/api/v1/namespaces/a/events",
            {},
            '{apiGroups: [""], resources: ["events"], verbs: ["create"]} in namespace a',
        ),
        (
            "DELETE",
            "/apis/apps/v1/namespaces/a/deployments/b",
            {},
            '{apiGroups: ["apps"], resources: ["deployments"], verbs: ["delete"]} in namespace a',
        ),
        (
            "GET",
            "/pods",
            {},
            f'{{apiGroups: [""], resources: ["nodes/pods"], verbs: ["get"]}} ({NODES_PROXY})',
        ),
        ("GET", "/stats/summary", {}, '{apiGroups: [""], resources: ["nodes/stats"], verbs: ["get"]}'),
        ("GET", "/version", {}, "{nonResourceURLs: [/version], verbs: [get]}"),
    ],
)
def test_the_rule_that_a_request_needs_is_named(
    method: str, path: str, query: dict[str, str], rule: str
) -> None:
    assert rule == rule_for(method, path, query)
