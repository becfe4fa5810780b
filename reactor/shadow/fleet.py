"""The files of many nodes: found, read one node after the other, and summed up by pool.

A directory has one node a file or a directory: `NODE.jsonl` and what it was rotated into, `NODE.json` (a
recording), or `NODE/journal.jsonl` and `NODE/recording*.json`; each may be compressed (`.gz`). Whatever else
lies there is named, and nothing more: no link is followed, no pipe is opened, a line or file that is too long
is passed over, and a node that fails costs its own figures alone.
"""

from __future__ import annotations

import gzip
import hashlib
import hmac
import io
import os
import re
import secrets
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import IO, Final

from reactor.errors import ConfigError, Problem, ReactorError, what_failed
from reactor.plain import open_regular
from reactor.shadow import DISAGREEMENTS, WITHIN_SECONDS, Decided, Done, Node, Pair, Verdict, node_of
from reactor.shadow.replay import Changed, Policy, changes_of
from reactor.text import printable

POOL_LABELS: Final = (
    "reactor/pool",
    "karpenter.sh/nodepool",
    "eks.amazonaws.com/nodegroup",
    "cloud.google.com/gke-nodepool",
    "kubernetes.azure.com/agentpool",
    "machine.openshift.io/machine-set",
    "pool",
)
NO_POOL: Final = "no pool"

_JOURNAL: Final = re.compile(r"(?P<stem>.+)\.jsonl(?:\.(?P<number>[0-9]{1,6}))?(?:\.gz)?")
_RECORDING: Final = re.compile(r"(?P<stem>.+?)(?P<when>-[0-9]{8}T[0-9]{6}Z)?\.json(?:\.gz)?")
_OF_DIRECTORY: Final = frozenset({"journal", "recording"})
_LONGEST_LINE: Final = 4 << 20
_LONGEST_FILE: Final = 4 << 30  # of text, whatever it is compressed to
_LEAST_LINE: Final = 1 << 10  # a shorter one counts as so long: each takes time
_PIECE_BYTES: Final = 1 << 18  # a step of a full node is larger than a buffer usually is
_MOST_FILES: Final = 200_000
_DEEPEST: Final = 6
_MOST_PROBLEMS: Final = 20  # of one node
_MOST_SHOWN: Final = 5_000
_MOST_TIMES: Final = 100_000


@dataclass(slots=True, kw_only=True)
class Source:
    """One node's files, the oldest first. `name` is by the files; a journal's own name goes before it."""

    name: str
    journals: list[Path] = field(default_factory=list)
    recordings: list[Path] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What is found at `where`: files, and directories with what is below them."""

    where: str
    sources: Sequence[Source]
    problems: Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """What one node came to; `changes` is what another policy would change, None without one.

    `recordings` are those that could be read: without a policy they are if its journals show nothing.
    """

    node: Node
    pool: str
    problems: tuple[str, ...] = ()
    changes: tuple[Changed, ...] | None = None
    recordings: int = 0
    passes: int = 0
    steps: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How nodes are read; `pool_label` None: the first of the usual ones."""

    within_seconds: float = WITHIN_SECONDS
    pool_label: str | None = None
    policy: Policy | None = None
    key: bytes | None = None  # of names that are anonymised


def sources_in(paths: Iterable[Path]) -> Found:
    """Return the nodes of directories and files, by their names. Raises OSError for one that is not there."""
    given = tuple(paths)
    by_node: dict[tuple[str, str], tuple[dict[tuple[int, str], Path], list[Path]]] = {}
    problems: list[str] = []
    others: Counter[str] = Counter()
    count = 0
    for path in given:
        for file in _files(path, problems):
            count += 1
            if count > _MOST_FILES:
                problems.append(f"{path}: more than {_MOST_FILES} files; the others are left out")
                break
            name = file.name
            if match := _JOURNAL.fullmatch(name):
                journals, _ = by_node.setdefault(_node_key(file, match["stem"]), ({}, []))
                journals[-int(match["number"] or 0), name] = file
            elif match := _RECORDING.fullmatch(name):
                by_node.setdefault(_node_key(file, match["stem"]), ({}, []))[1].append(file)
            else:
                others[str(file.parent)] += 1
    problems += [
        f"{where}: {number} other file{'s' * (number > 1)} passed over" for where, number in others.items()
    ]
    sources = [
        Source(
            name=name, journals=[one for _, one in sorted(journals.items())], recordings=sorted(recordings)
        )
        for (_, name), (journals, recordings) in sorted(by_node.items())
    ]
    return Found(where=", ".join(map(str, given)), sources=sources, problems=problems)


def journal_files(path: Path) -> list[Path]:
    """Return a journal and the files that it was rotated into, oldest first. Raises OSError without it."""
    path.stat()
    older: list[Path] = []
    while (file := path.with_name(f"{path.name}.{len(older) + 1}")).exists():
        older.append(file)
    return [*reversed(older), path]


def _node_key(file: Path, stem: str) -> tuple[str, str]:
    """Return where a file lies, and the name of its node: the directory's for a file of a plain name."""
    is_plain = stem in _OF_DIRECTORY or stem.startswith("recording-")
    return str(file.parent), printable((file.parent.name or stem) if is_plain else stem)


def _files(path: Path, problems: list[str]) -> Iterator[Path]:
    if not path.is_dir():
        path.stat()  # raises where it is not there
        yield path
        return
    root = len(path.parts)
    for where, directories, names in os.walk(path, onerror=lambda error: problems.append(what_failed(error))):
        directories.sort()
        if len(Path(where).parts) - root >= _DEEPEST:
            directories.clear()
        yield from (Path(where, name) for name in sorted(names))


def lines_of(path: Path, problems: list[str]) -> Iterator[bytes]:
    """Yield the lines of a regular file, decompressed; what is wrong with it goes to `problems`.

    A last line without its newline is left out: a crash cut it off, or a copy was made too early.
    """
    long = 0
    try:
        with closing(_opened(path)) as file:
            left = _LONGEST_FILE
            while line := file.readline(_LONGEST_LINE + 1):
                left -= max(_LEAST_LINE, len(line))
                if left < 0:
                    most = f"{_LONGEST_FILE >> 30} GiB of text, or {_LONGEST_FILE // _LEAST_LINE} lines"
                    problems.append(f"{path}: more than {most}; the rest is left out")
                    break
                if line.endswith(b"\n"):
                    yield line
                elif len(line) <= _LONGEST_LINE:
                    problems.append(f"{path}: its last line is cut off")
                else:
                    long += 1
                    while (line := file.readline(_LONGEST_LINE)) and not line.endswith(b"\n"):
                        left -= len(line)
                        if left < 0:
                            break
    except ReactorError as error:
        problems.append(str(error))
    except (OSError, EOFError, zlib.error) as error:
        problems.append(
            f"{path}: {error.strerror if isinstance(error, OSError) and error.strerror else error}"
        )
    if long:
        problems.append(
            f"{path}: {long} line{'s' * (long > 1)} of more than {_LONGEST_LINE >> 20} MiB left out"
        )


def _opened(path: Path) -> IO[bytes]:
    """Open a regular file, and no link to one. Raises OSError, and ReactorError for another kind of file."""
    file = open_regular(path, os.O_NOFOLLOW)
    if path.name.endswith(".gz"):
        return _Unzipped(file)  # type: ignore[return-value]
    return io.BufferedReader(file, _PIECE_BYTES)  # type: ignore[type-var]


class _Unzipped(gzip.GzipFile):
    """Closes its file, too."""

    def __init__(self, file: IO[bytes]) -> None:
        super().__init__(fileobj=file)
        self._file = file

    def close(self) -> None:
        super().close()
        self._file.close()


def pool_of(labels: Mapping[str, str], pool_label: str | None) -> str:
    """Return the pool that a node's labels show."""
    named = (pool_label,) if pool_label is not None else POOL_LABELS
    return next((labels[label] for label in named if labels.get(label)), NO_POOL)


def read(source: Source, options: Options) -> Read:
    """Return what a node's files come to. Raises nothing that a file can cause."""
    problems: list[str] = []
    lines = (line for path in source.journals for line in lines_of(path, problems))
    node = node_of(lines, source.name, within_seconds=options.within_seconds)
    if node.unread:
        of = source.journals[-1]
        problems.append(f"{of}: {node.unread} of {node.lines} lines are none of a journal's")
    if node.cut:
        problems.append(f"{source.name}: {node.cut} events more than are held of a node")
    changes, counted = None, (0, 0, 0)
    if options.policy is not None or (source.recordings and node.first is None):
        try:
            found = changes_of(source, node, options.policy, partial(lines_of, problems=problems), problems)
        except (ReactorError, OSError, ValueError, ArithmeticError, MemoryError, RecursionError) as error:
            problems.append(f"{source.name}: {what_failed(error)}")
        else:
            counted = found.recordings, found.passes, found.steps
            changes = None if options.policy is None else found.changes
            if found.labels and not node.labels:
                node.labels = found.labels
            if found.name and not source.journals:
                node.name = found.name
    pool = pool_of(node.labels, options.pool_label)
    made = Read(
        node=node,
        pool=pool,
        problems=tuple(map(printable, problems[:_MOST_PROBLEMS])),
        changes=changes,
        recordings=counted[0],
        passes=counted[1],
        steps=counted[2],
    )
    return made if options.key is None else anonymised(made, Names(options.key))


def read_all(sources: Sequence[Source], options: Options, jobs: int) -> Iterator[Read]:
    """Yield what each node comes to, in their order, read by as many processes. Raises ReactorError."""
    if jobs <= 1 or len(sources) <= 1:
        yield from (read(source, options) for source in sources)
        return
    size = max(1, min(16, len(sources) // (4 * jobs)))
    try:
        with ProcessPoolExecutor(max_workers=jobs) as pool:
            yield from pool.map(partial(read, options=options), sources, chunksize=size)
    except BrokenProcessPool as error:
        raise ReactorError("a process that read nodes was killed; try --jobs 1 to see of which") from error


# Names, so that a report can be given away: the same name is the same in all of it.


class Names:
    """Stands in for names: the same for the same, which nobody without the key can compute."""

    def __init__(self, key: bytes) -> None:
        self._key = key

    @staticmethod
    def fresh_key() -> bytes:
        """Return a key that nobody has: such names are the same in one report alone."""
        return secrets.token_bytes(32)

    def of(self, kind: str, name: str) -> str:
        """Return the name that stands for another, "" for none."""
        if not name:
            return ""
        digest = hmac.new(self._key, f"{kind}\0{name}".encode("utf-8", "surrogatepass"), hashlib.sha256)
        return f"{kind}-{digest.hexdigest()[:10]}"

    def pod(self, key: str) -> str:
        """Return what stands for namespace and name of a pod, each on its own."""
        namespace, slash, name = key.partition("/")
        return f"{self.of('ns', namespace)}/{self.of('pod', name)}" if slash else self.of("pod", key)


_NEVER: Final = re.compile(r"never evicted: [^;]*")
_NOBODY: Final = re.compile(r"no pod to evict: .*", re.DOTALL)


def anonymised(made: Read, names: Names) -> Read:
    """Return it without a name that was not reactor's: of nodes, pools, pods, rules; no text of others."""
    node = made.node
    plain = Node(
        name=names.of("node", node.name),
        role=node.role,
        first=node.first,
        last=node.last,
        lines=node.lines,
        unread=node.unread,
        cut=node.cut,
        decisions=node.decisions,
        is_dry=node.is_dry,
        pairs=[_plain_pair(pair, names) for pair in node.pairs],
    )
    count = len(made.problems)
    changes = made.changes
    return replace(
        made,
        node=plain,
        pool=made.pool if made.pool == NO_POOL else names.of("pool", made.pool),
        problems=(f"{plain.name}: {count} problem{'s' * (count > 1)} with its files",) if count else (),
        changes=None
        if changes is None
        else tuple(
            replace(one, pod=names.pod(one.pod), uid=names.of("uid", one.uid), by=_plain_rule(one.by, names))
            for one in changes
        ),
    )


def _plain_pair(pair: Pair, names: Names) -> Pair:
    def done(one: Done | None) -> Done | None:
        if one is None:
            return None
        return replace(one, pod=names.pod(one.pod), uid=names.of("uid", one.uid), text="")

    decided = pair.decided
    return replace(
        pair,
        decided=None if decided is None else _plain_decided(decided, names),
        kubelet=done(pair.kubelet),
        oom_kills=tuple(found for one in pair.oom_kills if (found := done(one)) is not None),
        not_ready=done(pair.not_ready),
        why=_plain_text(pair.why),
    )


def _plain_decided(decided: Decided, names: Names) -> Decided:
    return replace(
        decided,
        pod=names.pod(decided.pod),
        uid=names.of("uid", decided.uid),
        threshold=_plain_rule(decided.threshold, names),
        order=tuple(
            (names.of("uid", uid), names.pod(pod), _plain_text(why)) for uid, pod, why in decided.order
        ),
    )


def _plain_text(text: str) -> str:
    return _NOBODY.sub("no pod to evict", _NEVER.sub("never evicted", text))


def _plain_rule(threshold: str, names: Names) -> str:
    name = threshold.removeprefix("rule ")
    return threshold if name == threshold else f"rule {names.of('rule', name)}"


# Sums.


@dataclass(slots=True, kw_only=True)
class Pool:
    """What the nodes of a pool come to together. `sooner_seconds` are of decisions with the same pod."""

    name: str
    nodes: int = 0
    node_days: float = 0.0
    verdicts: Counter[Verdict] = field(default_factory=Counter)
    kubelet: int = 0
    decided: int = 0
    prevented: int = 0
    more: int = 0
    fewer: int = 0
    sooner_seconds: list[float] = field(default_factory=list)

    def add(self, made: Read) -> None:
        """Add a node."""
        self.nodes += 1
        first, last = made.node.first, made.node.last
        if first is not None and last is not None:
            self.node_days += (last - first) / 86400
        for pair in made.node.pairs:
            self.verdicts[pair.verdict] += 1
            self.kubelet += pair.kubelet is not None
            self.decided += pair.decided is not None
            self.prevented += pair.prevented
            same = pair.verdict in {Verdict.SAME, Verdict.LATER}
            if same and pair.sooner_seconds is not None and len(self.sooner_seconds) < _MOST_TIMES:
                self.sooner_seconds.append(pair.sooner_seconds)
        for one in made.changes or ():
            self.more += one.is_more
            self.fewer += not one.is_more

    @property
    def disagreements(self) -> int:
        return sum(self.verdicts[one] for one in DISAGREEMENTS)


@dataclass(slots=True, kw_only=True)
class Fleet:
    """All nodes together: sums by pool, and each disagreement and change, 5,000 at the most."""

    total: Pool = field(default_factory=lambda: Pool(name="all"))
    pools: dict[str, Pool] = field(default_factory=dict)
    disagreements: list[tuple[str, str, Pair]] = field(default_factory=list)  # node, pool
    changes: list[tuple[str, str, Changed]] = field(default_factory=list)
    nodes: list[tuple[str, str, int, int, int]] = field(default_factory=list)  # decided, kubelet, disagreed
    problems: list[str] = field(default_factory=list)
    problems_left_out: int = 0
    first: float | None = None
    last: float | None = None
    dry: set[bool] = field(default_factory=set)
    recordings: int = 0
    passes: int = 0
    steps: int = 0
    has_policy: bool = False

    def add(self, made: Read) -> None:
        """Add a node."""
        pool = self.pools.setdefault(made.pool, Pool(name=made.pool))
        for one in (self.total, pool):
            one.add(made)
        node = made.node
        found = [pair for pair in node.pairs if pair.verdict in DISAGREEMENTS]
        room = max(0, _MOST_SHOWN - len(self.disagreements))
        self.disagreements += [(node.name, made.pool, pair) for pair in found[:room]]
        room = max(0, _MOST_SHOWN - len(self.changes))
        self.changes += [(node.name, made.pool, one) for one in (made.changes or ())[:room]]
        decided = sum(pair.decided is not None for pair in node.pairs)
        kubelet = sum(pair.kubelet is not None for pair in node.pairs)
        self.nodes.append((node.name, made.pool, decided, kubelet, len(found)))
        self.add_problems(made.problems)
        self.first = min(filter(None, (self.first, node.first)), default=None)
        self.last = max(filter(None, (self.last, node.last)), default=None)
        if node.is_dry is not None:
            self.dry.add(node.is_dry)
        self.recordings += made.recordings
        self.passes += made.passes
        self.steps += made.steps
        self.has_policy |= made.changes is not None

    def add_problems(self, problems: Iterable[str]) -> None:
        """Add what could not be read; of very many the first are kept."""
        for one in problems:
            if len(self.problems) < _MOST_SHOWN:
                self.problems.append(one)
            else:
                self.problems_left_out += 1


def fleet_of(
    sources: Sequence[Source],
    options: Options,
    jobs: int,
    progress: Callable[[int], None] = lambda _: None,
) -> Fleet:
    """Return all nodes together; `progress` is called with how many have been read."""
    fleet = Fleet()
    for number, made in enumerate(read_all(sources, options, jobs), 1):
        fleet.add(made)
        progress(number)
    return fleet


def key_in(path: Path | None) -> bytes:
    """Return the key of anonymised names in a file, a fresh one without it. Raises ConfigError, OSError."""
    if path is None:
        return Names.fresh_key()
    with open_regular(path) as file:
        key = file.read(4096).strip()
    if len(key) < 16:
        got = f"{len(key)} bytes"
        raise ConfigError([Problem(path=str(path), got=got, accepted="a key of at least 16 bytes")])
    return key
