"""Who is expected to guard the node next, by the facts that there are when a daemon ends."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from reactor.cluster.leaving import jobs_of, successor
from tests.support.api_faults import Asked, Reply, refusal, served

_POD = {"POD_NAME": "reactor-x", "POD_NAMESPACE": "reactor-system", "KUBERNETES_SERVICE_HOST": "10.0.0.1"}
_SYSTEMD = {"INVOCATION_ID": "0123"}
_OWNER = {"kind": "DaemonSet", "name": "reactor", "uid": "ds-1", "controller": True}


class _Server:
    """Has one pod, its owner, and the node; None: there is none."""

    def __init__(self, *, owner: dict[str, Any] | None = _OWNER, **daemon_set: Any) -> None:
        self.pod: dict[str, Any] | None = {"metadata": {"name": "reactor-x", "uid": "pod-1"}}
        if owner is not None:
            self.pod["metadata"]["ownerReferences"] = [
                {**_OWNER, "controller": False, "name": "other"},
                owner,
            ]
        metadata = {"name": "reactor", "uid": "ds-1", **daemon_set.pop("metadata", {})}
        selector = daemon_set.pop("selector", {"kubernetes.io/os": "linux"})
        spec = {"template": {"spec": {"nodeSelector": selector}}}
        self.daemon_set: dict[str, Any] | None = {"metadata": metadata, "spec": spec}
        self.faults: dict[str, Reply] = {}
        self.asked: list[Asked] = []

    def __call__(self, asked: Asked) -> Reply:
        self.asked.append(asked)
        for part, reply in self.faults.items():
            if part in asked.path:
                return reply
        match asked.path:
            case "/api/v1/namespaces/reactor-system/pods":
                assert asked.query == {"fieldSelector": "spec.nodeName=n1,metadata.name=reactor-x"}
                return Reply(body={"items": [] if self.pod is None else [self.pod]})
            case "/apis/apps/v1/namespaces/reactor-system/daemonsets/reactor":
                return refusal(404, "not found") if self.daemon_set is None else Reply(body=self.daemon_set)
            case "/api/v1/nodes/n1":
                return Reply(body={"metadata": {"labels": {"kubernetes.io/os": "linux", "zone": "a"}}})
        raise AssertionError(asked.path)


async def _expected(server: _Server, *, stands_by: bool = False, **environment: str) -> str | None:
    async with served(server) as (_, client):
        return await successor(client, "n1", stands_by=stands_by, environment={**_POD, **environment})


async def test_a_daemon_set_that_is_there_makes_a_successor_whether_one_stands_by_already_or_not() -> None:
    for stands_by in (False, True):
        assert "a pod of DaemonSet reactor" == await _expected(_Server(), stands_by=stands_by)


async def test_a_daemon_set_that_is_gone_or_deleted_or_another_by_its_name_makes_none() -> None:
    gone = _Server()
    gone.daemon_set = None
    deleted = _Server(metadata={"deletionTimestamp": "2026-01-31T12:00:00Z"})
    another = _Server(metadata={"uid": "ds-2"})
    for server in (gone, deleted, another):
        assert await _expected(server) is None
        # The one that stands by is deleted with it.
        assert await _expected(server, stands_by=True) is None


async def test_a_daemon_set_that_selects_the_node_no_more_makes_none_there() -> None:
    assert await _expected(_Server(selector={"reactor": "on"})) is None
    assert await _expected(_Server(selector={"zone": "b", "kubernetes.io/os": "linux"})) is None
    assert await _expected(_Server(selector={})) is not None
    assert await _expected(_Server(selector={"zone": "a"})) is not None


async def test_a_pod_of_its_own_has_a_successor_only_where_one_stands_by() -> None:
    assert await _expected(_Server(owner=None)) is None
    assert "the daemon that stands by" == await _expected(_Server(owner=None), stands_by=True)


async def test_a_static_pod_is_started_again_by_its_kubelet() -> None:
    server = _Server(owner={**_OWNER, "kind": "Node", "name": "n1"})
    assert "a pod of Node n1" == await _expected(server)
    assert 1 == len(server.asked)


async def test_what_a_pod_can_not_find_out_counts_as_a_successor() -> None:
    forbidden, broken, gone = _Server(), _Server(), _Server()
    forbidden.faults["daemonsets"] = refusal(403, "forbidden")
    broken.faults["nodes"] = Reply(body={"metadata": {"labels": ["no", "mapping"]}})
    gone.pod = None
    for server in (forbidden, broken, gone):
        assert "is not known" in str(await _expected(server))
    for missing in ("POD_NAME", "POD_NAMESPACE"):
        assert "POD_NAME, POD_NAMESPACE are not set" in str(await _expected(_Server(), **{missing: ""}))


def _cgroups(directory: Path, text: str = "0::/system.slice/reactor.service/steward\n") -> Path:
    path = directory / "cgroup"
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("jobs", "restart", "stands_by", "expected"),
    [
        ("", "always", False, "reactor.service (Restart=always)"),
        ("", "on-success", False, "reactor.service (Restart=on-success)"),
        ("", "on-failure", False, None),
        ("12 reactor.service stop running\n", "always", False, None),
        ("12 reactor.service stop running\n", "always", True, "the daemon that stands by"),
        ("12 reactor.service restart running\n", "no", False, "reactor.service (systemd's job: restart)"),
        ("12 other.service restart running\n", "no", False, None),
        (
            " 9 reactor.service stop running\n10 shutdown.target start waiting\n",
            "no",
            False,
            "reactor.service at the machine's next start",
        ),
    ],
)
async def test_under_systemd_the_units_job_tells(
    tmp_path: Path, jobs: str, restart: str, *, stands_by: bool, expected: str | None
) -> None:
    async def ask(*arguments: str) -> str:
        if arguments[0] == "list-jobs":
            return jobs
        assert arguments == ("show", "--property=Restart", "--value", "reactor.service")
        return f"{restart}\n"

    async with served(_Server()) as (server, client):
        found = await successor(
            client,
            "n1",
            stands_by=stands_by,
            environment=_SYSTEMD,
            own_cgroups=_cgroups(tmp_path),
            ask_systemd=ask,
        )
        assert expected == found
        assert server.asked == []


async def test_a_systemd_that_does_not_answer_counts_as_a_successor(tmp_path: Path) -> None:
    async def ask(*arguments: str) -> str:
        raise subprocess.CalledProcessError(1, ["systemctl", *arguments])

    async with served(_Server()) as (_, client):
        found = await successor(
            client,
            "n1",
            stands_by=False,
            environment=_SYSTEMD,
            own_cgroups=_cgroups(tmp_path),
            ask_systemd=ask,
        )
        assert "is not known" in str(found)


@pytest.mark.parametrize("environment", [{}, _SYSTEMD])
async def test_elsewhere_the_one_that_stands_by_is_the_successor(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    """A terminal's session has systemd's variable, too, but is no service."""
    cgroups = _cgroups(tmp_path, "1:name=systemd:/user.slice/user-0.slice/session-1.scope\n0::/x\n")
    async with served(_Server()) as (_, client):
        for stands_by, expected in ((False, None), (True, "the daemon that stands by")):
            found = await successor(
                client, "n1", stands_by=stands_by, environment=environment, own_cgroups=cgroups
            )
            assert expected == found


def test_jobs_are_read_from_the_lines_of_four_fields() -> None:
    listed = "12 a.service stop running\n\nNo jobs running.\n   7 b.target start waiting\n"
    assert {"a.service": "stop", "b.target": "start"} == jobs_of(listed)
