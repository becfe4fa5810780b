"""Commands that run on a node or clean it up: `reactor run`, `managed-oom`, `notify`, `clean`, `cluster`."""

from __future__ import annotations

import argparse
import dataclasses
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from reactor.commands.arguments import (
    Commands,
    add_command,
    add_config,
    add_config_dir,
    path_given,
    warn_of,
)
from reactor.errors import ConfigError, ReactorError, what_failed
from reactor.text import counted, printable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from reactor.kernel.cgroup import CgroupTree
    from reactor.model.settings import Settings
    from reactor.run import Order


def add_run(commands: Commands) -> None:
    """Declare it."""
    command = add_command(
        commands, "run", _run, "guard this node", "sudo reactor run --config /etc/reactor/config.yaml"
    )
    add_config(command, is_needed=True)
    add_config_dir(command)
    command.add_argument(
        "--dry-run", action="store_true", help="decide and journal, but never reclaim or kill"
    )
    command.add_argument(
        "--stand-by",
        action="store_true",
        help="if a daemon already guards this node, wait and take over when it ends",
    )


def add_managed_oom(commands: Commands) -> None:
    """Declare `reactor managed-oom`."""
    add_command(
        commands,
        "managed-oom",
        _managed_oom,
        "internal: systemd runs it as systemd-oomd.service, to receive what units set by ManagedOOM…=",
        "reactor managed-oom",
    )


def _managed_oom(_: argparse.Namespace) -> int:
    from reactor.managed_oom.__main__ import main

    return main()


def _run(options: argparse.Namespace) -> int:
    from reactor.run import block_signals, guard

    block_signals()
    return guard(order(options))


def order(options: argparse.Namespace) -> Order:
    """Return what `reactor run` is to do; print the configuration's warnings. Raises ConfigError, OSError."""
    from reactor.guard.start import configuration_to_start_with
    from reactor.run import Order

    start = configuration_to_start_with(options.config, options.config_dir)
    warn_of(start.settings)
    settings = dataclasses.replace(start.settings, stand_by=options.stand_by)
    start = dataclasses.replace(start, settings=settings)
    return Order(start=start, config=options.config, dry_run=options.dry_run)


def add_clean(commands: Commands) -> None:
    """Declare it."""
    command = add_command(
        commands,
        "clean",
        _clean,
        "restore what a killed daemon has left: oom_score_adj of processes, freezers and limits of pods",
        "sudo reactor clean --config /etc/reactor/config.yaml",
    )
    add_config(command, is_needed=True)
    add_config_dir(command)


def _clean(options: argparse.Namespace) -> int:
    from reactor.guard.single_instance import is_guarded

    settings = _settings_or_defaults(options)
    if is_guarded(Path(settings.state_path)):
        raise ReactorError("a daemon guards this node: what another has left it has restored at its start")
    status = 0
    lines: list[str] = []
    for what, restore in (
        ("the OOM killer's order", _restore_scores),
        ("what was written to cgroups", _restore_cgroups),
    ):
        try:
            lines += restore(settings)
        except (ReactorError, OSError, ValueError) as error:
            print(f"reactor: {what}: {printable(what_failed(error))}", file=sys.stderr)
            status = 1
    for line in lines:
        print(line)
    if not lines and status == 0:
        print("nothing was left")
    return status


def _restore_scores(settings: Settings) -> Sequence[str]:
    """Restore what a guard that did not end in order has written. To do so again changes nothing."""
    from reactor.kernel.procfs import BOOT_ID, PROC
    from reactor.kernel.small_file import replace
    from reactor.oom_scores.written import NAME, Written

    path = Path(settings.state_path).with_name(NAME)
    written, boot = Written(str(PROC)), BOOT_ID.read_text().strip()
    written.load(str(path), boot)
    if written.held:
        written.restore()
        if written.held:
            raise ReactorError(written.refused or "processes are started faster than they are restored")
        replace(path, {**written.document(), "boot_id": boot})
    count = written.restored
    return [f"oom_score_adj: {counted(count, 'process', 'processes')} restored"] if count else []


def _restore_cgroups(_: Settings) -> Sequence[str]:
    """Thaw pods that a kill has left frozen, and restore their limits, and memory.high of the node."""
    from reactor.kernel.cgroup import CgroupTree

    return restored_in(CgroupTree.discover())


def restored_in(tree: CgroupTree) -> Sequence[str]:
    """Restore what daemons that have ended wrote to cgroups, anywhere; return a line for each."""
    from reactor.act.cgroup_changes import restore
    from reactor.kernel.cgroup_directory import CgroupVersion
    from reactor.kernel.memory_control import BorrowedHighs

    lines = restore(tree)
    if tree.version is CgroupVersion.V2:
        lines += BorrowedHighs().restore_abandoned(tree.memory_root)
    return lines


def _settings_or_defaults(options: argparse.Namespace) -> Settings:
    """Return the configuration's settings, the defaults where it can't be had: it may be what is wrong."""
    from reactor.config.settings import load_settings
    from reactor.model.settings import Settings

    try:
        return load_settings(options.config, options.config_dir)
    except (ConfigError, OSError) as error:
        settings = Settings()
        print(
            f"reactor: {printable(what_failed(error))}; looking beside {settings.state_path}", file=sys.stderr
        )
        return settings


def add_notify(commands: Commands) -> None:
    """Declare it."""
    command = add_command(
        commands,
        "notify",
        _notify,
        "try the notifications: send a test by the webhook, the commands and all else that is configured",
        "sudo reactor notify --test",
    )
    command.add_argument(
        "--test", action="store_true", required=True, help="send one event `test` by each configured way"
    )
    add_config(command, is_needed=True)
    add_config_dir(command)


def _notify(options: argparse.Namespace) -> int:
    import time

    import trio

    from reactor.config.settings import load_configuration
    from reactor.link.documents import instant
    from reactor.steward.notifications import send_trial

    settings = load_configuration(options.config, options.config_dir, may_run_commands=True).settings
    results = trio.run(send_trial, settings, instant(time.time()))
    for name, problem in results:
        if problem is None:
            print(f"{printable(name)}: sent")
        else:
            print(f"reactor: {printable(name)}: {printable(problem)}", file=sys.stderr)
    if not results:
        print(f"reactor: {options.config}: no webhook and no command is configured", file=sys.stderr)
    return 0 if results and all(problem is None for _, problem in results) else 1


_CLUSTER_EXAMPLE = "reactor cluster clean --all --kubeconfig ~/.kube/config"


def add_cluster(commands: Commands) -> None:
    """Declare it."""
    command = add_command(commands, "cluster", None, "work on a cluster's nodes", _CLUSTER_EXAMPLE)
    clean = add_command(
        command.add_subparsers(metavar="COMMAND", required=True),
        "clean",
        _clean_cluster,
        "remove the taints and conditions that an uninstalled reactor has left on nodes",
        _CLUSTER_EXAMPLE,
    )
    nodes = clean.add_mutually_exclusive_group(required=True)
    nodes.add_argument("--all", action="store_true", help="every node of the cluster")
    nodes.add_argument("--node", metavar="NAME", action="append", help="this node; may be given again")
    clean.add_argument(
        "--kubeconfig",
        metavar="FILE",
        type=path_given,
        help="how to reach the API server (in a pod: its service account)",
    )


def _clean_cluster(options: argparse.Namespace) -> int:
    import trio

    kubeconfig = None if options.kubeconfig is None else str(options.kubeconfig)
    return trio.run(_cluster_cleaned, kubeconfig, None if options.all else options.node)


async def _cluster_cleaned(kubeconfig: str | None, nodes: list[str] | None) -> int:
    """Print what was done on each node; 1 where something is left."""
    from reactor.cluster.leaving import clean
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
