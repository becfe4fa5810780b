"""What deploy/generate.py makes without Helm is up to date; `make generated` makes it anew."""

from __future__ import annotations

import dataclasses
import json
import runpy
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from reactor.config import kubelet, rules, scalars, section
from reactor.config.decode import key_of
from tests.support.helm import CHART, ROOT

DEPLOY = ROOT / "deploy"


@pytest.fixture
def generator(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.syspath_prepend(str(DEPLOY))
    monkeypatch.delitem(sys.modules, "values_schema", raising=False)
    return runpy.run_path(str(DEPLOY / "generate.py"), run_name="generate")


def test_the_schema_of_the_charts_values_is_that_of_the_settings(generator: dict[str, Any]) -> None:
    schema = runpy.run_path(str(DEPLOY / "values_schema.py"), run_name="values_schema")
    assert (CHART / "values.schema.json").read_text(encoding="utf-8") == schema["text"]()
    # By these modules `make quick` finds this test.
    assert {kubelet, rules, scalars, section}


@pytest.mark.parametrize(
    ("helm", "why"), [("/gone/helm", "/gone/helm: No such file"), ("true", "true is no Helm")]
)
def test_without_helm_4_all_but_kustomize_is_made_and_what_is_missing_is_named(
    tmp_path: Path, helm: str, why: str
) -> None:
    shutil.copytree(DEPLOY, tmp_path / "deploy")
    (tmp_path / "docs/operations").mkdir(parents=True)
    shutil.copy(ROOT / "docs/operations/alerts.md", tmp_path / "docs/operations")
    made = [
        tmp_path / "deploy" / name
        for name in ("monitoring/prometheusrule.yaml", "helm/reactor/values.schema.json")
    ]
    for path in made:
        path.write_text("")
    command = [sys.executable, str(tmp_path / "deploy/generate.py"), "--helm", helm]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert (1, 1) == (done.returncode, done.stderr.count("\n"))
    assert f"deploy/kustomize: not made: it needs Helm 4, and {why}" in done.stderr
    for path in made:
        assert (DEPLOY / path.relative_to(tmp_path / "deploy")).read_text() == path.read_text()


def test_every_key_of_the_section_but_the_dry_run_is_in_the_schema() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
    config = schema["definitions"]["configuration"]["properties"]
    own = config["reactor"]["anyOf"][0]
    keys = {key_of(field) for field in dataclasses.fields(section.Section)}
    assert set(own["properties"]) == keys - {"dryRun"}
    assert own["additionalProperties"] is False
    assert {key_of(field) for field in dataclasses.fields(kubelet.KubeletConfiguration)} < set(config)


def test_rules_dashboard_and_their_copies_are_what_their_sources_say(generator: dict[str, Any]) -> None:
    made: Iterator[tuple[Path, str]] = generator["monitoring"]()
    stale = [path.name for path, text in made if path.read_text(encoding="utf-8") != text]
    assert stale == []


@pytest.mark.parametrize(
    "text", ["## ReactorX\n\nUse `{{ this }}`.\n", "## ReactorX\n\n```console\n$ x\n```\n"]
)
def test_a_runbook_that_can_not_be_an_annotation_is_refused(generator: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=r"ReactorX: \{\{ and blocks of code can't be in an annotation"):
        generator["runbooks"](text)


def test_a_runbook_is_plain_text(generator: dict[str, Any]) -> None:
    section = "## ReactorX\n\nSee [the log](x.md#y) of `reactor`.\n\nThen wait.\n\n"
    page = f"# Alerts\n\n{section}## Other\n\n```\nx\n```\n"
    assert generator["runbooks"](page) == {"ReactorX": "See the log of `reactor`.\n\nThen wait."}
