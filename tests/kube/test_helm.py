"""The chart and a real Helm 4: it finds nothing wrong with it, and renders it as our own renderer does."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from api import Object
from deployed import NAMESPACE
from rendering import CHART, rendered
from ruamel.yaml import YAML

FETCH = Path(__file__).resolve().parent / "fetch-helm.sh"
POLICY = "admissionregistration.k8s.io/v1/ValidatingAdmissionPolicy"
Helm = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def program() -> Path:
    """Return Helm's program."""
    done = subprocess.run([FETCH], capture_output=True, text=True, check=False, timeout=500)
    if done.returncode:
        pytest.skip(f"no Helm 4: {done.stderr.strip()[-200:]}; HELM=PROGRAM names one")
    return Path(done.stdout.strip())


@pytest.fixture
def helm(program: Path, tmp_path: Path) -> Helm:
    """Return what runs Helm, with nothing of this user's."""

    def run(
        *words: str | Path, values: dict[str, Any] | None = None, fails: bool = False, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        path = tmp_path / "values.json"
        path.write_text(json.dumps(values or {}))
        given = ["--values", path] if values is not None else []
        done = subprocess.run(
            [program, *words, *given],
            capture_output=True,
            text=True,
            check=False,
            timeout=280,
            env={"HOME": str(tmp_path), "PATH": "/usr/bin:/bin", **environment},
        )
        assert bool(done.returncode) == fails, f"{done.stdout}\n{done.stderr}"
        return done

    return run


def by_name(text: str) -> dict[tuple[str, str], Object]:
    """Return the documents by their kinds and names."""
    documents = [dict(each) for each in YAML(typ="safe").load_all(text) if each]
    return {(each["kind"], each["metadata"]["name"]): each for each in documents}


def test_it_is_helm_4_and_finds_nothing_wrong_with_the_chart(helm: Helm) -> None:
    assert helm("version", "--template", "{{.Version}}").stdout.startswith("v4.")
    told = helm("lint", "--strict", CHART).stdout
    assert "1 chart(s) linted, 0 chart(s) failed" in told
    assert "[WARNING]" not in told
    assert "[ERROR]" not in told


@pytest.mark.parametrize(
    ("version", "apis", "values"),
    [
        ("v1.33.0", (POLICY,), {}),
        ("v1.33.0", (), {"ownNodeOnly": True}),
        ("v1.20.2", (), {}),
        ("v1.21.14", (), {"cleanNodes": False}),
        (
            "v1.30.0",
            (POLICY,),
            {
                "runtime": "crio",
                "deleteEvictedPods": True,
                "ownNodeOnly": False,
                "resourceQuota": False,
                "image": {"tag": "1", "pullSecrets": [{"name": "x"}]},
                "podLabels": {"a": "b"},
                "podAnnotations": {"c": "d: e"},
                "seLinuxOptions": {"type": "spc_t"},
                "config": {"evictionHard": {"memory.available": "1Gi"}},
            },
        ),
    ],
    ids=["newest", "policy wanted", "before 1.22", "no hook", "every value"],
)
def test_helm_renders_what_our_own_renderer_does(
    helm: Helm, renderer: Path, version: str, apis: tuple[str, ...], values: dict[str, Any]
) -> None:
    flags = ["--kube-version", version, *(word for api in apis for word in ("--api-versions", api))]
    told = helm("template", "reactor", CHART, "--namespace", NAMESPACE, *flags, values=values).stdout
    ours = rendered(renderer, values, version, *apis)
    assert ours.returncode == 0, ours.stderr
    assert by_name(ours.stdout) == by_name(told)


def test_what_the_chart_refuses_helm_refuses_by_the_same_words(helm: Helm) -> None:
    for values, words in (
        ({"runtime": "docker"}, 'runtime: "docker"; accepted: containerd, crio'),
        ({"ownNodeOnly": "maybe"}, "accepted: auto, true, false"),
    ):
        assert words in helm("template", "reactor", CHART, values=values, fails=True).stderr
