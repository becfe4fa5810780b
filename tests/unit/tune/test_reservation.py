"""What the Node keeps from the scheduler, and has to: `config check` and `tune` compare, in both roles."""

import json
from pathlib import Path
from typing import Any

import pytest
import trio

from reactor.cli import main
from reactor.tune.history import History
from reactor.tune.measured import Measured, document_of
from tests.support.api_faults import Asked, FaultServer, Reply

# What they keep from the scheduler: a kubelet's default threshold, and more than any machine uses.
_100_MIB = {"status": {"capacity": {"memory": "16777216Ki"}, "allocatable": {"memory": "16674816Ki"}}}
_100_TIB = {"status": {"capacity": {"memory": "101Ti"}, "allocatable": {"memory": "1Ti"}}}


async def answered(directory: Path, role: str, node: dict[str, Any], *words: str) -> int:
    """Run a command with a configuration of such a role, whose API server has the Node."""

    def script(asked: Asked) -> Reply:
        assert ("GET", "/api/v1/nodes/one") == (asked.method, asked.path)
        return Reply(body=node)

    server = FaultServer(script)
    async with trio.open_nursery() as nursery:
        await nursery.start(server.serve)
        kubeconfig = directory / "kubeconfig"
        kubeconfig.write_text(
            "current-context: x\ncontexts: [{name: x, context: {cluster: c}}]\n"
            f"clusters: [{{name: c, cluster: {{server: '{server.url}'}}}}]\n"
        )
        kubernetes = {"role": role, "nodeName": "one", "kubeconfig": str(kubeconfig)}
        document = {"evictionHard": {"memory.available": "200Mi"}, "reactor": {"kubernetes": kubernetes}}
        (directory / "config.yaml").write_text(json.dumps(document))
        status: int = await trio.to_thread.run_sync(main, list(words))
        nursery.cancel_scope.cancel()
    return status


@pytest.mark.parametrize("role", ["alongside", "sole"])
async def test_a_check_compares_the_threshold_with_the_node(
    tmp_path: Path, role: str, capsys: pytest.CaptureFixture[str]
) -> None:
    check = ("config", "check", str(tmp_path / "config.yaml"))
    assert 1 == await answered(tmp_path, role, _100_MIB, *check, "--strict")
    short = "node one: memory: 100Mi reserved, reactor keeps 200Mi free"
    warnings = capsys.readouterr().err
    assert short in warnings
    assert "; add to systemReserved in the kubelet's configuration memory " in warnings
    assert 0 == await answered(tmp_path, role, _100_TIB, *check)
    out, err = capsys.readouterr()
    assert "node one: memory: 100Ti reserved, reactor keeps 200Mi free" in out
    assert "systemReserved" not in err


@pytest.mark.parametrize("role", ["alongside", "sole"])
async def test_tune_compares_what_it_recommends_with_the_node(
    tmp_path: Path, measured: Measured, role: str, capsys: pytest.CaptureFixture[str]
) -> None:
    stored, results = tmp_path / "measured.json", tmp_path / "out"
    stored.write_text(json.dumps(document_of(measured, History())))
    words = ("tune", "--from", str(stored), "--results", str(results))
    assert 0 == await answered(tmp_path, role, _100_MIB, *words, "--config", str(tmp_path / "config.yaml"))
    line = "node one: memory: 100Mi reserved, reactor keeps "
    (directory,) = results.iterdir()
    snippet = (directory / "reactor.yaml").read_text()
    assert f"\n# {line}" in snippet
    assert f"- {line}" in capsys.readouterr().out
    assert line in (directory / "report.html").read_text()


def test_where_no_node_can_be_asked_a_check_says_nothing_of_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(json.dumps({"reactor": {"kubernetes": {"kubeconfig": str(tmp_path / "gone")}}}))
    main(["config", "check", str(config)])
    assert "reserved, reactor keeps" not in "".join(capsys.readouterr())
