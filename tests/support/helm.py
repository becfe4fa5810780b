"""Real Helm 4, and what the chart is by it: objects as an API server would be given them."""

from __future__ import annotations

import copy
import functools
import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from ruamel.yaml import YAML

ROOT: Final = Path(__file__).resolve().parents[2]
CHART: Final = ROOT / "deploy/helm/reactor"
NAMESPACE: Final = "reactor-system"
POLICY: Final = "admissionregistration.k8s.io/v1/ValidatingAdmissionPolicy"

Object = dict[str, Any]


@functools.cache
def _fetched() -> tuple[str, str]:
    """Return Helm's program, or an empty text and why there is none."""
    done = subprocess.run(
        [ROOT / "tests/kube/fetch-helm.sh"], capture_output=True, text=True, check=False, timeout=500
    )
    return (done.stdout.strip(), "") if done.returncode == 0 else ("", done.stderr.strip()[-200:])


def helm() -> str:
    """Return Helm's program, fetched once; skip where it can't be had."""
    program, why = _fetched()
    if not program:
        pytest.skip(f"no Helm 4: {why}; HELM=PROGRAM names one")
    return program


def template(
    values: Mapping[str, Any],
    *served: str,
    version: str = "v1.33.0",
    release: str = "reactor",
    namespace: str = NAMESPACE,
) -> subprocess.CompletedProcess[str]:
    """Return how `helm template` ended for values; `served` are APIs that the server has."""
    return _templated(json.dumps(values), served, version, release, namespace)


@functools.lru_cache(maxsize=64)
def _templated(
    values: str, served: tuple[str, ...], version: str, release: str, namespace: str
) -> subprocess.CompletedProcess[str]:
    flags = ["--kube-version", version, *(word for api in served for word in ("--api-versions", api))]
    return subprocess.run(
        [helm(), "template", release, CHART, "--namespace", namespace, "--values", "-", *flags],
        input=values,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def render(values: Mapping[str, Any], *served: str, **about: str) -> list[Object]:
    """Return the objects of a release with these values, its hooks among them."""
    done = template(values, *served, **about)
    assert done.returncode == 0, done.stderr
    return copy.deepcopy(_objects(done.stdout))


class _Loader(yaml.CSafeLoader):  # type: ignore[misc] # untyped
    """Reads as Kubernetes does, YAML 1.1, and no key twice; in C, in a tenth of the time."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:  # noqa: FBT001, FBT002
        keys = [key.value for key, _ in node.value]
        assert len(set(keys)) == len(keys), f"a key stands there twice: {keys}, {node.start_mark}"
        return dict(super().construct_mapping(node, deep))


@functools.lru_cache(maxsize=64)
def _objects(text: str) -> list[Object]:
    return [dict(each) for each in yaml.load_all(text, Loader=_Loader) if each]


def refusal(values: Mapping[str, Any], **about: str) -> str:
    """Return the words by which Helm refuses values."""
    done = template(values, **about)
    assert done.returncode != 0
    return done.stderr


def hook_of(document: Object) -> str:
    """Return the hook that an object is of, or an empty text."""
    return str(document["metadata"].get("annotations", {}).get("helm.sh/hook", ""))


def of_kind(kind: str, documents: list[Object], hook: str = "") -> Object:
    """Return the one object of a kind, of the release itself or of a hook."""
    (found,) = [each for each in documents if each["kind"] == kind and hook_of(each) == hook]
    return found


def named(name: str, kind: str, documents: list[Object]) -> Object:
    """Return the object of a kind and a name."""
    (found,) = [each for each in documents if each["kind"] == kind and each["metadata"]["name"] == name]
    return found


def configuration(config_map: Object) -> Object:
    """Return the configuration in a ConfigMap."""
    return dict(YAML(typ="safe", pure=True).load(config_map["data"]["config.yaml"]))
