"""The file that `reactor run --config` takes: KubeletConfiguration's own keys, and one section of reactor's.

The node's existing kubelet configuration is a valid file; everything in the section has a default.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from reactor.config.decode import UNKNOWN_KEY, decode
from reactor.config.documents import (
    ONLY_OURS,
    Layers,
    Named,
    directory_exposure,
    drop_in_paths,
    exposed_because,
    load_document,
)
from reactor.config.effective import SECTION, ineffective, misplaced
from reactor.config.kubelet import KubeletConfiguration
from reactor.config.section import Kubernetes, Section
from reactor.errors import ConfigError, Problem, join, shorten
from reactor.model.name_patterns import PodParent
from reactor.model.pod_lists import BUILT_IN_NEVER, MOST_LABEL_KEYS, PodLists
from reactor.model.rules import MARKING
from reactor.model.settings import (
    EventKind,
    EvictionSettings,
    HookSettings,
    JournalSettings,
    KubernetesSettings,
    NotificationSettings,
    Ranking,
    RealtimeSettings,
    ReclaimSettings,
    RestartLoopSettings,
    Role,
    Settings,
    SoftEviction,
    SourceSettings,
    SystemdOomd,
    TaintedBy,
    WebhookSettings,
)
from reactor.model.signals import Filesystem, Layout, Signal
from reactor.plain import read_with_status

DEFAULT_EVICTIONS_PER_MINUTE: Final = 10
KUBEPODS: Final = "kubepods"
_MOST_BYTES: Final = 4 << 20
_MOST_RULES: Final = 100
KEY_OF_EVENT: Final = {
    EventKind.EVICTION: "onEviction",
    EventKind.OOM_KILL: "onOOMKill",
    EventKind.SOURCE_LOST: "onSourceLost",
    EventKind.NO_VICTIM: "onNoVictim",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _File:
    reactor: Section = field(default_factory=Section)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Text:
    """What a file holds, and its status from the descriptor that it was read through."""

    path: Path
    text: str
    found: os.stat_result


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    """The settings of a file and its drop-ins, their text as one, and the files that they were read from."""

    settings: Settings
    text: str
    files: Sequence[_Text] = ()
    config_dir: Path | None = None

    @property
    def layers(self) -> Layers:
        """Return the files as one document that knows which value is from where."""
        return _layers(self.files)

    def check_exposure(self) -> None:
        """Raise ConfigError if commands are configured, and another user could write what they are from.

        A pipe is not what a daemon will read.
        """
        where = _commands_in(self.settings)
        files = [one for one in self.files if stat.S_ISREG(one.found.st_mode)]
        exposed = None if where is None else _exposed_because(files, self.config_dir)
        if exposed is not None:
            raise ConfigError([Problem(path=f"reactor.{where}", got=exposed, accepted=ONLY_OURS)])


def load_settings(path: Path, config_dir: Path | None = None) -> Settings:
    """Return the settings in a file, and its drop-ins. Raises ConfigError with every problem in them."""
    return load_configuration(path, config_dir).settings


def load_configuration(
    path: Path, config_dir: Path | None = None, *, may_run_commands: bool = False
) -> Configuration:
    """Return the settings in a file with its text. Raises ConfigError with every problem in it.

    With a `config_dir` its drop-ins are merged over the file (documents.py), and the text is that of the
    whole. With `may_run_commands` the commands are to be run: see Configuration.check_exposure. Each file has
    to be a regular one then: a daemon's next start would find no pipe.
    """
    files = _read_all(path, config_dir, may_be_pipe=not may_run_commands)
    if config_dir is None:
        text = files[0].text
        try:
            settings = settings_from_text(text, str(path))
        except ConfigError as error:
            raise ConfigError([_in_file(problem, path) for problem in error.problems]) from error
    else:
        settings, text = _layered(_layers(files))
    found = Configuration(settings=settings, text=text, files=files, config_dir=config_dir)
    if may_run_commands:
        found.check_exposure()
    return found


def _commands_in(settings: Settings) -> str | None:
    """Return the first key of the section that configures commands, None where none does."""
    if settings.reclaim.commands:
        return "reclaim"
    if settings.hooks.commands:
        return "beforeEviction"
    return next((KEY_OF_EVENT[kind] for kind in settings.notifications.commands), None)


def _read(path: Path, *, may_be_pipe: bool) -> _Text:
    try:
        text, found = read_text(path, may_be_pipe=may_be_pipe)
        return _Text(path=path, text=text, found=found)
    except OSError as error:
        raise ConfigError(
            [Problem(path=str(path), got=str(error.strerror), accepted="a readable file")]
        ) from error
    except UnicodeDecodeError as error:
        raise ConfigError([Problem(path=str(path), got=str(error), accepted="UTF-8 text")]) from error


def read_text(path: Path, *, may_be_pipe: bool = True) -> tuple[str, os.stat_result]:
    """Return what is in a file, and its status. Raises OSError, UnicodeDecodeError.

    What is larger than any configuration is refused.
    """
    content, found = read_with_status(path, _MOST_BYTES, may_be_pipe=may_be_pipe)
    return content.decode(), found


def _drop_ins(config_dir: Path) -> tuple[Path, ...]:
    try:
        return drop_in_paths(config_dir)
    except OSError as error:
        got, where = str(error.strerror), str(error.filename or config_dir)
        raise ConfigError([Problem(path=where, got=got, accepted="a readable directory")]) from error


def layers_of(path: Path, config_dir: Path | None = None) -> Layers:
    """Return a file and its drop-ins as one document that knows which value is from where.

    Raises ConfigError where one can't be read, or is no document.
    """
    return _layers(_read_all(path, config_dir))


def _read_all(path: Path, config_dir: Path | None, *, may_be_pipe: bool = True) -> Sequence[_Text]:
    paths = (path, *(_drop_ins(config_dir) if config_dir else ()))
    return [_read(one, may_be_pipe=may_be_pipe) for one in paths]


def _layers(files: Iterable[_Text]) -> Layers:
    main, *drop_ins = _documents(files)
    return Layers(main, drop_ins)


def _layered(layers: Layers) -> tuple[Settings, str]:
    """Return the settings of a file with its drop-ins, and their text as one."""
    try:
        settings = _settings_of(layers.document, layers.file_of)
    except ConfigError as error:
        raise ConfigError([layers.located(problem) for problem in error.problems]) from error
    settings = replace(settings, warnings=(*settings.warnings, *layers.void))
    return settings, json.dumps(layers.document, default=str)


def _documents(texts: Iterable[_Text]) -> list[Named]:
    """Return what each file holds. Raises ConfigError with every problem."""
    documents, problems = [], list[Problem]()
    for one in texts:
        try:
            documents.append(Named(str(one.path), load_document(one.text, str(one.path))))
        except ConfigError as error:
            problems += [_in_file(problem, one.path) for problem in error.problems]
    if problems:
        raise ConfigError(problems)
    return documents


def _in_file(problem: Problem, path: Path | str) -> Problem:
    if problem.path.startswith(str(path)):
        return problem
    return problem._replace(path=f"{path}: {problem.path}")


def _exposed_because(files: Sequence[_Text], config_dir: Path | None) -> str | None:
    """Return how others could change the files, or the directory of drop-ins. Raises ConfigError."""
    try:
        problems = [exposed_because(one.path, one.found) for one in files]
        if config_dir is not None:
            problems.append(directory_exposure(config_dir))
    except OSError as error:
        got, where = str(error.strerror), str(error.filename)
        raise ConfigError([Problem(path=where, got=got, accepted="a readable directory")]) from error
    return next((problem for problem in problems if problem is not None), None)


def settings_from_text(text: str, name: str) -> Settings:
    """Return the settings in `text`; `name` says where it came from. Raises ConfigError."""
    raw = load_document(text, name)
    if raw is None:
        raw = {}
    if not isinstance(raw, Mapping):
        raise ConfigError([Problem(path=name, got=shorten(raw), accepted="a mapping")])
    return _settings_of(raw, lambda _: name)


def _settings_of(raw: Mapping[str, object], file_of: Callable[[str], str]) -> Settings:
    """Return the settings in a document; `file_of` says which file the value at a path is from.

    Raises ConfigError with every problem.
    """
    problems: list[Problem] = []
    kubelet, section = KubeletConfiguration(), Section()
    try:
        kubelet = decode(raw, KubeletConfiguration)
    except ConfigError as error:
        problems.extend(error.problems)
    problems.extend(_kind_problems(raw))
    problems.extend(_unindented(raw))
    try:
        section = decode(raw, _File).reactor
    except ConfigError as error:
        problems.extend(map(_placed, error.problems))
    problems.extend(_parent_problems(section))
    problems.extend(_rule_problems(section))
    problems.extend(_taint_problems(section))
    problems.extend(_process_victim_problems(section))
    if problems:
        raise ConfigError(problems)
    settings = _settings(kubelet, section)
    found = (f"{file_of(path)}: {path}: {why}" for path, why in ineffective(raw, settings))
    return replace(settings, warnings=tuple(found))


def _placed(problem: Problem) -> Problem:
    """Return a problem of the section; for a key of the whole document it names its place."""
    section, _, key = problem.path.partition(".")
    if section != SECTION or problem.got != UNKNOWN_KEY:
        return problem
    return problem._replace(got=problem.got + misplaced(key))


def _kind_problems(raw: Mapping[str, object]) -> list[Problem]:
    kind = raw.get("kind")
    if kind is None or kind == "KubeletConfiguration":
        return []
    return [Problem(path="kind", got=repr(kind), accepted="KubeletConfiguration, or no kind at all")]


def _unindented(raw: Mapping[str, object]) -> Iterator[Problem]:
    """Yield a problem for each signal at the top of the document, where it would be no threshold."""
    for key in raw:
        if key in set(Signal):
            accepted = f"evictionHard.{key} (indent it below evictionHard, or evictionSoft)"
            yield Problem(path=join("", key), got="a signal at the top of the document", accepted=accepted)


def _parent_problems(section: Section) -> list[Problem]:
    """Return a problem for each pod parent outside the virtual node: nothing there is ever killed.

    And for each whose pods another one, of which one is a pattern, would have as well.
    """
    node = section.node_cgroup
    parents = [PodParent(text) for text in section.pods.parents]
    problems = []
    for index, parent in enumerate(parents):
        accepted = None
        other = next((one for one in parents[:index] if one.overlaps(parent)), None)
        if node not in {None, "/"} and parent.fence != node and not parent.fence.startswith(f"{node}/"):
            accepted = f"{node} or a cgroup below it"
        elif parent.is_pattern and section.kubernetes is not None:
            accepted = "the path of one cgroup: on a Kubernetes node the kubelet makes the pods' cgroups"
        elif other is not None:
            accepted = f"no parent that may be, hold or lie in what {other.text} matches"
        if accepted is not None:
            path = f"reactor.pods.parents[{index}]"
            problems.append(Problem(path=path, got=repr(parent.text), accepted=accepted))
    return problems


def _rule_problems(section: Section) -> list[Problem]:
    """Return a problem for each rule that has another one's name, or is for cgroups outside the node.

    And for the rules of systemd's units, where the node is none that systemd knows.
    """
    node, rules = section.node_cgroup, section.rules
    problems = []
    if section.systemd_oomd is SystemdOomd.REPLACE and node not in {None, "/"}:
        accepted = "ignore with reactor.nodeCgroup: systemd's units are the machine's"
        problems.append(Problem(path="reactor.systemdOomd", got=repr("replace"), accepted=accepted))
    if len(rules) > _MOST_RULES:
        accepted = f"{_MOST_RULES} rules at most"
        problems.append(Problem(path="reactor.rules", got=f"{len(rules)} rules", accepted=accepted))
    for index, rule in enumerate(rules):
        path = f"reactor.rules[{index}]"
        if any(rule.name == other.name for other in rules[:index]):
            accepted = "a name that no other rule has"
            problems.append(Problem(path=f"{path}.name", got=repr(rule.name), accepted=accepted))
        if rule.action in MARKING and section.kubernetes is None:
            accepted = "with reactor.kubernetes: a plain node has neither conditions nor taints"
            problems.append(Problem(path=f"{path}.action", got=repr(str(rule.action)), accepted=accepted))
        for place, cgroup in enumerate(rule.cgroups):
            fence = PodParent(cgroup).fence
            if node not in {None, "/"} and fence != node and not fence.startswith(f"{node}/"):
                accepted = f"{node} or cgroups below it"
                problems.append(Problem(path=f"{path}.cgroups[{place}]", got=repr(cgroup), accepted=accepted))
    return problems


def _taint_problems(section: Section) -> list[Problem]:
    """Return a problem where no one would taint: the node controller goes by the kubelet's conditions."""
    kubernetes = section.kubernetes
    if (
        kubernetes is None
        or kubernetes.role is Role.SOLE
        or kubernetes.taints is not TaintedBy.NODE_CONTROLLER
    ):
        return []
    accepted = (
        "reactor, unless role is sole: the node controller taints by the kubelet's own conditions alone"
    )
    return [Problem(path="reactor.kubernetes.taints", got=repr("nodeController"), accepted=accepted)]


def _process_victim_problems(section: Section) -> list[Problem]:
    """Return a problem for each namespace on a plain node, and for too many labels."""
    place = "reactor.pods.processVictims"
    accepted = "a unit or a cgroup: namespaces and labels are for a Kubernetes node (reactor.kubernetes)"
    problems = [
        Problem(path=f"{place}[{index}]", got=repr(one.pods.namespace), accepted=accepted)
        for index, one in enumerate(section.pods.process_victims)
        if one.pods.namespace is not None and section.kubernetes is None
    ]
    keys = {key for one in section.pods.process_victims for key, _ in one.pods.labels}
    if len(keys) > MOST_LABEL_KEYS:
        accepted = f"{MOST_LABEL_KEYS} keys at most, in all entries together"
        problems.append(Problem(path=place, got=f"labels of {len(keys)} keys", accepted=accepted))
    return problems


def _settings(kubelet: KubeletConfiguration, section: Section) -> Settings:
    by_layout = {layout: _eviction(kubelet, section, layout) for layout in Layout}
    node = None if section.node_cgroup in {None, "/"} else section.node_cgroup
    parents: tuple[str, ...] = section.pods.parents or _default_parents(kubelet, section, node)
    host, _, port = section.metrics.rpartition(":")
    return Settings(
        eviction=by_layout[section.layout or _layout(section.filesystems)],
        node_cgroup=node,
        memory_available=section.memory_available,
        reserved_memory_bytes=kubelet.reserved_memory_bytes,
        pod_parents=parents,
        pod_lists=PodLists(
            never=section.pods.never,
            avoid=section.pods.avoid,
            prefer=section.pods.prefer,
            priorities=tuple(section.pods.priorities.items()),
            process_victims=section.pods.process_victims,
            built_in_never=tuple(one for one in BUILT_IN_NEVER if one not in section.pods.may_evict),
            honours_oomd=section.pods.managed_oom_preference,
        ),
        manifests_path=section.pods.manifests,
        pod_oom_scores=section.pods.oom_score_adj,
        filesystems=section.filesystems,
        by_layout={} if section.layout is not None else by_layout,
        housekeeping_interval_seconds=section.housekeeping_interval,
        metrics_address=None if section.metrics == "off" else (host.strip("[]"), int(port)),
        socket_path=section.socket,
        state_path=section.state_file,
        restart_loop=RestartLoopSettings(
            evictions=section.restart_loop.evictions, within_seconds=section.restart_loop.within
        ),
        black_box=section.black_box,
        notifications=_notifications(section),
        journal=JournalSettings(
            path=section.journal.path, max_bytes=section.journal.max_size, files=section.journal.files
        ),
        realtime=RealtimeSettings(
            fifo_priority=section.realtime.fifo_priority,
            lock_memory=section.realtime.lock_memory,
            oom_score_adj=section.realtime.oom_score_adj,
        ),
        sources=SourceSettings(
            ebpf=section.sources.ebpf,
            ebpf_loader=section.ebpf.loader,
            memcg=section.sources.memcg,
            memory_high=section.sources.memory_high,
            psi=section.sources.psi,
            processes=section.sources.processes,
        ),
        kubernetes=None if section.kubernetes is None else _kubernetes(section.kubernetes),
        reclaim=ReclaimSettings(
            commands=section.reclaim,
            timeout_seconds=section.reclaim_timeout,
            pause_seconds=section.reclaim_pause,
        ),
        runtime_endpoint=section.runtime.endpoint,
        dead_containers_kept=section.runtime.keep_dead_containers,
        static_pods_path=kubelet.static_pod_path or None,
        podman=section.podman.images,
        podman_socket=section.podman.socket,
        oom_order=section.oom_order,
        kernel_kill=section.kernel_kill,
        time_left_within=section.time_left_within,
        hooks=HookSettings() if section.before_eviction is None else section.before_eviction.settings(),
        shutdown_groups=kubelet.shutdown_groups,
        rules=tuple(rule.rule() for rule in section.rules),
        systemd_oomd=section.systemd_oomd,
        dry_run=section.dry_run,
    )


def _notifications(section: Section) -> NotificationSettings:
    commands = {
        EventKind.EVICTION: section.on_eviction,
        EventKind.OOM_KILL: section.on_oom_kill,
        EventKind.SOURCE_LOST: section.on_source_lost,
        EventKind.NO_VICTIM: section.on_no_victim,
    }
    return NotificationSettings(
        commands={kind: some for kind, some in commands.items() if some},
        timeout_seconds=section.notify_timeout,
        journald=section.journald,
        wall=section.wall,
        desktop=section.desktop,
        webhook=None
        if section.webhook is None
        else WebhookSettings(
            url=section.webhook.url,
            url_path=section.webhook.url_file,
            token_path=section.webhook.token_file,
            ca_path=section.webhook.ca_file,
        ),
    )


def _default_parents(
    kubelet: KubeletConfiguration, section: Section, node_cgroup: str | None
) -> tuple[str, ...]:
    if section.kubernetes is None:
        return () if node_cgroup is None else (node_cgroup,)
    if node_cgroup is None:
        return kubepods_cgroups(kubelet.cgroup_root)
    of_kubelet, of_node = (
        tuple(parent for parent in kubepods_cgroups(root) if parent.startswith(f"{node_cgroup}/"))
        for root in (kubelet.cgroup_root, node_cgroup)
    )
    return of_kubelet or of_node


def _kubernetes(section: Kubernetes) -> KubernetesSettings:
    return KubernetesSettings(
        node_name=section.node_name,
        kubeconfig_path=section.kubeconfig,
        role=section.role,
        tainted_by=section.taints,
        pods_from=section.pods,
        kubelet_url=section.kubelet.url,
        kubelet_ca_path=section.kubelet.ca_file,
        kubelet_verified=not section.kubelet.insecure,
        kubelet_config_path=section.kubelet.config,
        evicted_pod_ttl_seconds=section.evicted_pod_ttl,
        lease_namespace=section.lease_namespace,
        lease_seconds=section.lease_duration,
    )


def _eviction(kubelet: KubeletConfiguration, section: Section, layout: Layout) -> EvictionSettings:
    settings = kubelet.eviction_settings(
        layout,
        evictions_per_minute=section.evictions_per_minute or DEFAULT_EVICTIONS_PER_MINUTE,
        in_flight_deadline_seconds=section.in_flight_deadline,
        # Where no kubelet has set up the pods' cgroup, its limit was not chosen to hold a node's threshold.
        has_kubelet=section.kubernetes is not None,
    )
    return replace(
        settings,
        commands_for=frozenset(section.reclaim),
        hard_memory_evictions_per_minute=section.hard_memory_evictions_per_minute,
        unhelpful_eviction_pause_seconds=section.unhelpful_eviction_pause,
        soft_reclaim_seconds=section.reclaim_before_soft,
        soft_in_time=section.soft_eviction is SoftEviction.IN_TIME,
        minimum_victim=section.minimum_victim_bytes,
        ranks_swap=section.ranking is Ranking.MEMORY_AND_SWAP,
    )


def _layout(filesystems: Mapping[Filesystem, str]) -> Layout:
    """Return the layout that the configured paths describe, until the devices show more."""
    if Filesystem.IMAGEFS not in filesystems:
        return Layout.SINGLE
    if (
        filesystems.get(Filesystem.CONTAINERFS, filesystems[Filesystem.IMAGEFS])
        == filesystems[Filesystem.IMAGEFS]
    ):
        return Layout.DEDICATED
    return Layout.SPLIT


def kubepods_cgroups(cgroup_root: str) -> tuple[str, str]:
    """Return the cgroup of all pods below the kubelet's cgroup root, by the cgroupfs and the systemd driver.

    A node has one of the two; the other one does not exist. Source: pkg/kubelet/cm, CgroupName.ToSystemd and
    ToCgroupfs.
    """
    names = [*(part for part in cgroup_root.split("/") if part), KUBEPODS]
    # systemd makes a slice's parents of the dashes in its name, so those of a part's own are escaped.
    escaped = [name.replace("-", "_") for name in names]
    slices = ["-".join(escaped[: count + 1]) + ".slice" for count in range(len(escaped))]
    return "/" + "/".join(names), "/" + "/".join(slices)
