from __future__ import annotations

from reactor.cri.messages import (
    Container,
    ContainerMetadata,
    ContainerState,
    Sandbox,
    SandboxMetadata,
    SandboxState,
)
from reactor.workloads.inventory import RuntimePod, inventory_of


def _sandbox(identity: str, uid: str, **fields: object) -> Sandbox:
    metadata = SandboxMetadata(name=f"name-{uid}", namespace="shop", uid=uid)
    return Sandbox(id=identity, metadata=metadata, **fields)  # type: ignore[arg-type]


def _container(identity: str, sandbox: str, state: ContainerState = ContainerState.RUNNING) -> Container:
    return Container(
        id=identity, sandbox_id=sandbox, metadata=ContainerMetadata(name=f"c-{identity}"), state=state
    )


def test_a_pod_has_the_running_containers_of_its_sandbox() -> None:
    containers = [_container("1", "s"), _container("2", "other"), _container("3", "s", ContainerState.EXITED)]
    expected = RuntimePod(name="name-u", namespace="shop", sandboxes=("s",), containers={"1": "c-1"})
    assert {"u": expected} == inventory_of([_sandbox("s", "u")], containers)


def test_a_sandbox_that_is_down_is_no_pod() -> None:
    down = _sandbox("s", "u", state=SandboxState.NOT_READY)
    assert inventory_of([down, Sandbox(id="without-metadata")], []) == {}


def test_a_pod_with_two_sandboxes_has_the_containers_of_both() -> None:
    found = inventory_of(
        [_sandbox("s", "u"), _sandbox("t", "u")], [_container("1", "s"), _container("2", "t")]
    )
    assert found["u"].sandboxes == ("s", "t")
    assert set(found["u"].containers) == {"1", "2"}


def test_a_static_pod_is_told_by_its_annotations() -> None:
    static = _sandbox("s", "u", annotations={"kubernetes.io/config.source": "file"})
    normal = _sandbox("t", "v", annotations={"kubernetes.io/config.source": "api"})
    found = inventory_of([static, normal], [])
    assert found["u"].critical_because is not None
    assert found["v"].critical_because is None
