"""Make what is generated below deploy/, each from its one source; see deploy/README.md.

    what                                            from
    helm/reactor/values.schema.json                 reactor's settings, by values_schema.py
    kustomize/base, components/own-node-only, clean the chart with its own values
    monitoring/rules.yaml: the annotations runbook  docs/operations/alerts.md
    monitoring/prometheusrule.yaml                  monitoring/rules.yaml
    helm/reactor/files/rules.yaml, dashboard.json   monitoring

usage: generate.py [--check] [--helm PROGRAM]

--check writes nothing; exit status 1 if a file is not what would be written. Without --helm the program `helm` is
taken, or what HELM names. If that is no Helm 4, kustomize is left as it is, all else is made, and the exit status is 1.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

DEPLOY: Final = Path(__file__).resolve().parent
CHART: Final = DEPLOY / "helm/reactor"
NAMESPACE: Final = "reactor-system"
_NOTICE: Final = "# Generated from helm/reactor by deploy/generate.py.\n"
_POLICY: Final = "admissionregistration.k8s.io/v1/ValidatingAdmissionPolicy"
# What Helm alone needs: kustomize has labels and namespaces of its own.
_HELMS: Final = re.compile(
    r"^ *app\.kubernetes\.io/(?:instance|version|managed-by): .*\n"
    r"|^ *helm\.sh/.*\n"
    rf"|^  namespace: {NAMESPACE}\n",
    re.MULTILINE,
)
_SECTION: Final = re.compile(r"^## (Reactor\w+)\n\n(.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)


def rendered(helm: str, *flags: str) -> dict[str, list[str]]:
    """Return the chart's documents by their template. Raises CalledProcessError."""
    command = [helm, "template", "reactor", str(CHART), "--namespace", NAMESPACE]
    # Without schema: it may be what is to be made anew.
    done = subprocess.run(
        [*command, "--skip-schema-validation", "--api-versions", _POLICY, *flags],
        check=True, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    found: dict[str, list[str]] = {}
    for document in re.split(r"^---\n", done.stdout, flags=re.MULTILINE):
        source = re.match(r"# Source: reactor/templates/(\S+)\n", document)
        if source is not None:
            found.setdefault(source[1], []).append(document[source.end() :].strip("\n") + "\n")
    return found


def _plain(document: str) -> str:
    """Return a document without what Helm alone needs, and without mappings that are empty by that."""
    text = _HELMS.sub("", document)
    return re.sub(r"^( *)(?:labels|annotations|template):\n(?!\1 )", "", text, flags=re.MULTILINE)


def _joined(documents: list[str], about: str = "") -> str:
    return about + _NOTICE + "---\n".join(map(_plain, documents))


def _configuration(document: str) -> str:
    (body,) = re.findall(r"^  config\.yaml: \|\n((?:    .*\n|\n)+)", document, re.MULTILINE)
    return re.sub(r"^    ", "", body, flags=re.MULTILINE)


def _about_configuration() -> str:
    """Return the comments that values.yaml has above dryRun and config."""
    values = (CHART / "values.yaml").read_text(encoding="utf-8")
    (config,) = re.findall(r"\n\n((?:#.*\n)+)config:\n", values)
    return config


def kustomize(helm: str) -> Iterator[tuple[Path, str]]:
    """Yield each file of the kustomize base and its text."""
    base = DEPLOY / "kustomize/base"
    found = rendered(helm, "--set", "namespace.create=true")
    yield base / "namespace.yaml", _joined(found["namespace.yaml"])
    yield base / "rbac.yaml", _joined(found["rbac.yaml"])
    (daemon_set,) = found["daemonset.yaml"]
    # kustomize names the ConfigMap by its content, and sets the image.
    daemon_set = re.sub(r"^ *# A change of the config.*\n *checksum/config: .*\n", "", daemon_set, flags=re.MULTILINE)
    daemon_set = re.sub(r"^( *)image: .*\n *imagePullPolicy: .*\n", r"\1image: reactor\n", daemon_set, flags=re.MULTILINE)
    yield base / "daemonset.yaml", _joined([daemon_set])
    (config_map,) = found["config.yaml"]
    dry = "# `dryRun: true`: no pod is evicted. Remove the line once you have seen what would have been.\n"
    yield base / "config.yaml", _NOTICE + _about_configuration() + dry + _configuration(config_map)
    yield DEPLOY / "kustomize/components/own-node-only/policy.yaml", _joined(
        found["own-node-only.yaml"],
        "# In another namespace, or for a service account of another name, change the username.\n",
    )
    cleaned = [re.sub(r"^(    )namespace: .*", rf"\1namespace: reactor-clean", one, flags=re.MULTILINE) for one in found["clean.yaml"]]
    cleaned = [re.sub(r"^( *)image: .*\n *imagePullPolicy: .*\n", r"\1image: reactor\n", one, flags=re.MULTILINE) for one in cleaned]
    namespace = "apiVersion: v1\nkind: Namespace\nmetadata:\n  name: reactor-clean\n"
    yield DEPLOY / "kustomize/clean/clean.yaml", _joined([namespace, *cleaned])


def runbooks(page: str) -> dict[str, str]:
    """Return each alert's section of the page, as plain text. Raises ValueError for what no annotation can hold."""
    found = {}
    for name, body in _SECTION.findall(page):
        text = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", body.strip())
        if "{{" in text or "```" in text:
            raise ValueError(f"docs/operations/alerts.md, {name}: {{{{ and blocks of code can't be in an annotation")
        found[name] = text
    return found


def rules() -> str:
    """Return rules.yaml with the texts of the page. Raises KeyError for an alert without a section."""
    path, page = DEPLOY / "monitoring/rules.yaml", DEPLOY.parent / "docs/operations/alerts.md"
    texts = runbooks(page.read_text(encoding="utf-8"))
    lines, name = [], ""
    for line in path.read_text(encoding="utf-8").splitlines():
        if (alert := re.match(r" +- alert: (\w+)$", line)) is not None:
            name = alert[1]
        if re.match(r" +runbook(_url)?: ", line):
            continue
        lines.append(line)
        if re.match(r" +description: ", line):
            indent = " " * (len(line) - len(line.lstrip()))
            lines.append(f"{indent}runbook: {json.dumps(texts[name], ensure_ascii=False)}")
            address = f"{{{{ $externalURL }}}}/alerts?search={name}"
            lines.append(f'{indent}runbook_url: "{address}" # alerts.md#{name.lower()}')
    return "\n".join(lines) + "\n"


def monitoring() -> Iterator[tuple[Path, str]]:
    """Yield what Prometheus, its operator and Grafana are given."""
    text = rules()
    yield DEPLOY / "monitoring/rules.yaml", text
    groups = text[text.index("groups:\n") :]
    yield DEPLOY / "monitoring/prometheusrule.yaml", (
        "# rules.yaml for the Prometheus operator, whose ruleSelector may want other labels.\n"
        "# Generated by deploy/generate.py. runbook_url: see there.\n"
        "apiVersion: monitoring.coreos.com/v1\nkind: PrometheusRule\nmetadata:\n  name: reactor\n  labels:\n"
        "    app.kubernetes.io/name: reactor\nspec:\n" + re.sub(r"^(?=.)", "  ", groups, flags=re.MULTILINE)
    )
    yield CHART / "files/rules.yaml", groups
    yield CHART / "files/dashboard.json", (DEPLOY / "monitoring/dashboard.json").read_text(encoding="utf-8")


def why_no_helm(program: str) -> str:
    """Return why a program can't render the chart, "" for Helm 4."""
    try:
        done = subprocess.run([program, "version", "--short"], capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{program or 'no program'}: {getattr(error, 'strerror', error)}"
    found = done.stdout.strip()
    return "" if found.startswith("v4.") else f"{program} is {found or 'no Helm'}"


def everything(helm: str) -> Iterator[tuple[Path, str]]:
    """Yield each generated file and its text."""
    sys.path.insert(0, str(DEPLOY))
    import values_schema

    yield CHART / "values.schema.json", values_schema.text()
    yield from monitoring()
    if helm:
        yield from kustomize(helm)


def main() -> int:
    options = argparse.ArgumentParser(description="Make what is generated below deploy/.")
    options.add_argument("--check", action="store_true", help="write nothing; 1 if a file is not up to date")
    options.add_argument("--helm", default=os.environ.get("HELM", "helm"), metavar="PROGRAM")
    given = options.parse_args()
    stale, missing = 0, why_no_helm(given.helm)
    for path, text in everything("" if missing else given.helm):
        if path.exists() and path.read_text(encoding="utf-8") == text:
            continue
        stale += 1
        print(f"{path.relative_to(DEPLOY.parent)}: {'not up to date' if given.check else 'written'}")
        if not given.check:
            path.write_text(text, encoding="utf-8")
    if missing:
        print(f"deploy/kustomize: not made: it needs Helm 4, and {missing}; HELM=PROGRAM names one", file=sys.stderr)
    return 1 if missing or (given.check and stale) else 0


if __name__ == "__main__":
    sys.exit(main())
