"""The file that `reactor run --config` takes: KubeletConfiguration's own keys, and one section of reactor's.

The node's existing kubelet configuration is a valid file; everything in the section has a default.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NewType

from reactor.config.decode import CONVERTER, decode, register_scalar, strict
from reactor.config.documents import load_document
from reactor.config.kubelet import KubeletConfiguration
from reactor.config.refused import Refused, shorten
from reactor.config.scalars import Seconds, as_quantity
from reactor.errors import ConfigError, Problem
from reactor.model.settings import (
    JournalSettings,
    RealtimeSettings,
    Settings,
    SourceSettings,
)
from reactor.model.signals import Filesystem, Layout

CgroupPath = NewType("CgroupPath", str)
AbsolutePath = NewType("AbsolutePath", str)
Address = NewType("Address", str)
Interval = NewType("Interval", float)
Size = NewType("Size", int)
Positive = NewType("Positive", int)
FifoPriority = NewType("FifoPriority", int)
OomScore = NewType("OomScore", int)

_SHORTEST_INTERVAL_SECONDS = 0.1


def _cgroup(raw: Any, _: type) -> CgroupPath:
    if not isinstance(raw, str) or not raw.startswith("/") or "\0" in raw or ".." in raw.split("/"):
        raise Refused(raw, "a cgroup's path from the hierarchy's root, such as /system.slice, without ..")
    return CgroupPath("/" + "/".join(part for part in raw.split("/") if part not in {"", "."}))


def _path(raw: Any, _: type) -> AbsolutePath:
    if not isinstance(raw, str) or not raw.startswith("/") or "\0" in raw:
        raise Refused(raw, "an absolute path")
    return AbsolutePath(raw)


def _address(raw: Any, _: type) -> Address:
    accepted = "an address and a port such as 127.0.0.1:9753, or off"
    found = re.fullmatch(r"(\[[0-9a-fA-F:.]+\]|[^:\s]+):([0-9]{1,5})", raw) if isinstance(raw, str) else None
    is_off = raw == "off" or raw is False  # what YAML 1.1 makes of off
    if not is_off and (found is None or int(found[2]) > 65535):
        raise Refused(raw, accepted)
    return Address("off" if is_off else raw)


def _interval(raw: Any, _: type) -> Interval:
    seconds = CONVERTER.structure(raw, Seconds)
    if seconds < _SHORTEST_INTERVAL_SECONDS:
        raise Refused(raw, "a duration of 100ms or more")
    return Interval(seconds)


def _size(raw: Any, _: type) -> Size:
    size = as_quantity(raw).value
    if size < 4096:
        raise Refused(raw, "a size of 4Ki or more")
    return Size(size)


def _within(low: int, high: int) -> Any:
    def hook(raw: Any, _: type) -> int:
        if isinstance(raw, bool) or not isinstance(raw, int) or not low <= raw <= high:
            raise Refused(raw, f"a whole number from {low} to {high}")
        return raw

    return hook


for _scalar, _hook in (
    (CgroupPath, _cgroup),
    (AbsolutePath, _path),
    (Address, _address),
    (Interval, _interval),
    (Size, _size),
    (Positive, _within(1, 1_000_000)),
    (FifoPriority, _within(0, 99)),
    (OomScore, _within(-1000, 1000)),
):
    register_scalar(CONVERTER, _scalar, _hook)


@strict
@dataclass(frozen=True, slots=True, kw_only=True)
class _Pods:
    parents: tuple[CgroupPath, ...] = ()
    manifests: AbsolutePath | None = None


@strict
@dataclass(frozen=True, slots=True, kw_only=True)
class _Journal:
    path: AbsolutePath = AbsolutePath(JournalSettings().path)
    max_size: Size = Size(JournalSettings().max_bytes)
    files: Positive = Positive(JournalSettings().files)


@strict
@dataclass(frozen=True, slots=True, kw_only=True)
class _Realtime:
    fifo_priority: FifoPriority = FifoPriority(RealtimeSettings().fifo_priority)
    lock_memory: bool = True
    oom_score_adj: OomScore | None = field(
        default=OomScore(RealtimeSettings().oom_score_adj or 0), metadata={"key": "oomScoreAdj"}
    )


@strict
@dataclass(frozen=True, slots=True, kw_only=True)
class _Sources:
    ebpf: bool = True
    memcg: bool = True
    memory_high: bool = True
    psi: bool = True
    processes: bool = True


@strict
@dataclass(frozen=True, slots=True, kw_only=True)
class _Section:
    """The `reactor:` section; its keys are documented in docs/configuration.md."""

    node_cgroup: CgroupPath | None = None
    pods: _Pods = field(default_factory=_Pods)
    filesystems: Mapping[Filesystem, AbsolutePath] = field(default_factory=dict)
    layout: Layout | None = None
    housekeeping_interval: Interval = Interval(10.0)
    evictions_per_minute: Positive | None = None
    in_flight_deadline: Seconds = Seconds(10.0)  # noqa: RUF009 - a float
    metrics: Address = Address("127.0.0.1:9753")
    socket: AbsolutePath = AbsolutePath("/run/reactor/reactor.sock")
    state_file: AbsolutePath = AbsolutePath("/run/reactor/state.json")
    journal: _Journal = field(default_factory=_Journal)
    realtime: _Realtime = field(default_factory=_Realtime)
    sources: _Sources = field(default_factory=_Sources)
    dry_run: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class _File:
    reactor: _Section = field(default_factory=_Section)


DEFAULT_EVICTIONS_PER_MINUTE = 10


def load_settings(path: Path) -> Settings:
    """Return the settings in a file. Raises ConfigError with every problem in it."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(
            [Problem(path=str(path), got=str(error.strerror), accepted="a readable file")]
        ) from error
    except UnicodeDecodeError as error:
        raise ConfigError([Problem(path=str(path), got=str(error), accepted="UTF-8 text")]) from error
    return settings_from_text(text, str(path))


def settings_from_text(text: str, name: str) -> Settings:
    """Return the settings in `text`; `name` says where it came from. Raises ConfigError."""
    raw = load_document(text, name)
    if raw is None:
        raw = {}
    if not isinstance(raw, Mapping):
        raise ConfigError([Problem(path=name, got=shorten(raw), accepted="a mapping")])
    problems: list[Problem] = []
    kubelet, section = KubeletConfiguration(), _Section()
    try:
        kubelet = decode(raw, KubeletConfiguration)
    except ConfigError as error:
        problems.extend(error.problems)
    problems.extend(_kind_problems(raw))
    try:
        section = decode(raw, _File).reactor
    except ConfigError as error:
        problems.extend(error.problems)
    problems.extend(_parent_problems(section))
    if problems:
        raise ConfigError(problems)
    return _settings(kubelet, section)


def _kind_problems(raw: Mapping[str, object]) -> list[Problem]:
    kind = raw.get("kind")
    if kind is None or kind == "KubeletConfiguration":
        return []
    return [Problem(path="kind", got=repr(kind), accepted="KubeletConfiguration, or no kind at all")]


def _parent_problems(section: _Section) -> list[Problem]:
    """Return pod parents outside the virtual node: nothing out there is ever ended."""
    node = section.node_cgroup
    if node in {None, "/"}:
        return []
    return [
        Problem(
            path=f"reactor.pods.parents[{index}]", got=repr(parent), accepted=f"{node} or a cgroup below it"
        )
        for index, parent in enumerate(section.pods.parents)
        if parent != node and not parent.startswith(f"{node}/")
    ]


def _settings(kubelet: KubeletConfiguration, section: _Section) -> Settings:
    layout = section.layout or _layout(section.filesystems)
    node = None if section.node_cgroup in {None, "/"} else section.node_cgroup
    parents: tuple[str, ...] = section.pods.parents or ((node,) if node is not None else ())
    host, _, port = section.metrics.rpartition(":")
    return Settings(
        eviction=kubelet.eviction_settings(
            layout,
            evictions_per_minute=section.evictions_per_minute or DEFAULT_EVICTIONS_PER_MINUTE,
            in_flight_deadline_seconds=section.in_flight_deadline,
        ),
        node_cgroup=node,
        reserved_memory_bytes=kubelet.reserved_memory_bytes,
        pod_parents=parents,
        manifests_path=section.pods.manifests,
        filesystems=section.filesystems,
        housekeeping_interval_seconds=section.housekeeping_interval,
        metrics_address=None if section.metrics == "off" else (host.strip("[]"), int(port)),
        socket_path=section.socket,
        state_path=section.state_file,
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
            memcg=section.sources.memcg,
            memory_high=section.sources.memory_high,
            psi=section.sources.psi,
            processes=section.sources.processes,
        ),
        dry_run=section.dry_run,
        warnings=kubelet.warnings,
    )


def _layout(filesystems: Mapping[Filesystem, str]) -> Layout:
    """Return the layout that the configured paths describe."""
    if Filesystem.IMAGEFS not in filesystems:
        return Layout.SINGLE
    if (
        filesystems.get(Filesystem.CONTAINERFS, filesystems[Filesystem.IMAGEFS])
        == filesystems[Filesystem.IMAGEFS]
    ):
        return Layout.DEDICATED
    return Layout.SPLIT
