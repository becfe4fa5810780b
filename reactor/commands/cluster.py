"""`reactor cluster clean`."""

from __future__ import annotations

import argparse

from reactor.commands.arguments import Commands, add_command

_EXAMPLE = "reactor cluster clean --all --kubeconfig ~/.kube/config"


def add(commands: Commands) -> None:
    """Declare it."""
    command = add_command(commands, "cluster", None, "work on a cluster's nodes", _EXAMPLE)
    clean = add_command(
        command.add_subparsers(metavar="COMMAND", required=True),
        "clean",
        _clean,
        "remove the taints and conditions that a reactor which is gone has left on nodes",
        _EXAMPLE,
    )
    nodes = clean.add_mutually_exclusive_group(required=True)
    nodes.add_argument("--all", action="store_true", help="every node of the cluster")
    nodes.add_argument("--node", metavar="NAME", action="append", help="this node; may be repeated")
    clean.add_argument(
        "--kubeconfig", metavar="FILE", help="how to reach the API server (in a pod: its service account)"
    )


def _clean(options: argparse.Namespace) -> int:
    import trio

    return trio.run(_cleaned, options.kubeconfig, None if options.all else options.node)


async def _cleaned(kubeconfig: str | None, nodes: list[str] | None) -> int:
    """Print what was done on each node; 1 where something is left."""
    from reactor.cluster.cleaning import clean
    from reactor.kube.client import ApiClient
    from reactor.kube.credentials import credentials_of
    from reactor.text import printable

    client = ApiClient(credentials_of(kubeconfig))
    status = 0
    try:
        async for cleaned in clean(client, nodes):
            print(printable(str(cleaned)), flush=True)
            status = status if cleaned.problem is None else 1
    finally:
        client.close()
    return status
