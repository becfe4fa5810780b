"""What a scheduler and a network would do for pods that a controller makes: a post-renderer of Helm's.

Each pod template names the node, is in its network (the only one there is), and finds the API server where
kube-proxy would forward to it. Capabilities that this machine itself lacks are left out. (A webhook of the
server's would do as well, but a kube-apiserver of before 1.23 that is built with Go 1.18 or newer crashes at
a webhook's patch, in its JSON library.)

Run by Helm as a program: documents on standard input and output, the node's name and the server's port as
arguments.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from cluster import Cluster
from deployed import have_capability
from ruamel.yaml import YAML

NAME = "place"


def make_plugin(directory: Path, cluster: Cluster) -> Path:
    """Return a directory of plugins that has this one, called NAME, for HELM_PLUGINS."""
    port = cluster.plane.url.rpartition(":")[2]
    command = {"command": sys.executable, "args": [str(Path(__file__).resolve()), cluster.node.name, port]}
    plugin = {
        "apiVersion": "v1",
        "name": NAME,
        "version": "0.1.0",
        "type": "postrenderer/v1",
        "runtime": "subprocess",
        "runtimeConfig": {"platformCommand": [command]},
    }
    (directory / NAME).mkdir(parents=True)
    (directory / NAME / "plugin.yaml").write_text(json.dumps(plugin))
    return directory


def placed(document: dict[str, Any], node: str, port: str) -> dict[str, Any]:
    """Return a document; one with a template of pods has it for this node."""
    if document["kind"] not in {"DaemonSet", "Job"}:
        return document
    spec = document["spec"]["template"]["spec"]
    spec |= {"nodeName": node, "hostNetwork": True}
    server = {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": port}
    for container in spec["containers"]:
        container.setdefault("env", []).extend({"name": key, "value": value} for key, value in server.items())
        granted = container["securityContext"]["capabilities"]
        granted["add"] = [name for name in granted.get("add", []) if have_capability(name)]
    return document


def main() -> None:
    """Place what Helm has rendered."""
    node, port = sys.argv[1:]
    yaml = YAML(typ="safe")
    documents = [placed(each, node, port) for each in yaml.load_all(sys.stdin) if each]
    yaml.dump_all(documents, sys.stdout)


if __name__ == "__main__":
    main()
