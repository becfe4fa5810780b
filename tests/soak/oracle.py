"""Who had to be killed, and who must not have been: from the kernel's counters over time and nothing else.

Written from the rules of the eviction, and sharing no code with what it judges. Pure: no clock, no file.

A daemon reads its counters at some instant between the crossing and the kill, one after the other, while pods
go on growing. So each pod has an interval of working sets in that window, and a victim is right where some
reading within the intervals puts it first. With pods at rest exactly one is; how often more than one was is
counted.

All instants are CLOCK_MONOTONIC nanoseconds, all sizes bytes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final, NamedTuple

from tests.soak.falls import Growth, Need, need

MISSED_NS: Final = 1_000_000_000
# A watch in the kernel may lag behind moving page cache by 1 MiB, and v1 looks at its levels only with every
# 128th page that a CPU charges (mem_cgroup_event_ratelimit): so much short is not missed.
_NOT_NOTICED_BYTES: Final = 2 << 20
# The per-CPU batches of the kernel let usage swing by this about a level that it stands at.
_SAME_CROSSING_NS: Final = 20_000_000
_HELPS_SHARE: Final = 0.5
# What of the files in memory that a killed pod left a daemon need not count: the kernel's statistics lag
# behind by 64 pages for each CPU, and the memory that the kernel itself holds for the cgroup stays.
_UNCOUNTED_BYTES: Final = 768 << 10
# Those files count only while this part of the threshold is available: they may never be removed.
_LEFT_SHARE: Final = 2
# Near the level the counters are read every half a millisecond. Where a gap is longer, or a reading itself,
# the observer was kept from it, and can't tell that a kill was wrong.
_BLIND_NS: Final = 3_000_000
# A canary shows once in this time that it still runs: which of two that are closer died first is not known.
_BEAT_NS: Final = 1_000_000
# Who is asked to end shows it once it gets a CPU: either of two may be first.
_ASKED_NS: Final = 20_000_000
# How soon a daemon that was stopped with a kill in hand carries it out, and how long such stops are.
_AT_ONCE_NS: Final = 5_000_000
_STOP_NS: Final = 200_000_000
# Between two kills for what no kill ends (unhelpfulEvictionPause, which the soak configures so).
PAUSE_NS: Final = 2_000_000_000
# An eviction in time is decided on at some moment of this time before.
_DECIDED_NS: Final = 300_000_000
IN_VAIN: Final = "killed another though what grows may not be evicted"
WRONG_POD: Final = "killed the wrong pod"
NEEDLESS: Final = "killed another where one sufficed"


class Counters(NamedTuple):
    """One cgroup's counters as the kernel showed them. A tuple: there are a million of them in a run."""

    usage_bytes: int
    inactive_file_bytes: int

    @property
    def working_set_bytes(self) -> int:
        """Return what the cgroup can't do without: usage less inactive page cache."""
        return max(0, self.usage_bytes - self.inactive_file_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """The node's and the pods' counters, read one after the other between two instants; pods by instance.

    `peak_bytes` is the most that the node used since the sample before; 0 where the kernel does not tell.
    `cached_before_bytes` is its inactive page cache in that sample (None: not known).
    """

    began_ns: int
    ended_ns: int
    node: Counters
    pods: Mapping[int, Counters]
    peak_bytes: int = 0
    cached_before_bytes: int | None = None

    @property
    def seen_bytes(self) -> int:
        """Return the most that the node's working set was, with the page cache of this sample."""
        return max(self.node.working_set_bytes, self.peak_bytes - self.node.inactive_file_bytes)

    @property
    def most_bytes(self) -> int:
        """Return the most that the node's working set can have been since the sample before.

        Page cache that has come since need not have counted as inactive yet.
        """
        cached_bytes = self.node.inactive_file_bytes
        if self.cached_before_bytes is not None:
            cached_bytes = min(cached_bytes, self.cached_before_bytes)
        return max(0, max(self.node.usage_bytes, self.peak_bytes) - cached_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """What decides a pod's place besides its usage."""

    priority: int = 0
    request_bytes: int = 0
    is_critical: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Life:
    """One instance of a pod: a name that is made anew is another.

    `ended_ns`: ended by the soak itself. `processes_gone_ns`: its last process had ended, by whomever.
    `holds` are the kinds of memory that it took, for who reads the evidence.
    """

    instance: int
    name: str
    spec: Spec
    born_ns: int
    ended_ns: int | None = None
    processes_gone_ns: int | None = None
    holds: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kill:
    """An instance that died without the soak having ended it, at the death of its canary.

    What it holds counts as available until `gone_ns`: its processes have ended, its tmpfs is removed. Of what
    is left once they have ended its page cache on a disk is the node's: `tmpfs_bytes` are its files in tmpfs.
    `is_kernels`: the kernel's OOM killer has killed in it. What is dying already the kernel does not count as
    killed, so the daemon did not kill before it. `struck_ns`: when the process that died first last showed
    that it ran, None where that is not known. Its memory may be back before its death shows. `seen_ns`: when
    the death was seen. Where a canary got no CPU before it died, only that is sure: then `at_ns` is a guess.
    """

    instance: int
    at_ns: int
    seen_ns: int | None = None
    struck_ns: int | None = None
    gone_ns: int | None = None
    tmpfs_bytes: int | None = None
    is_kernels: bool = False

    @property
    def since_ns(self) -> int:
        """Return from when on it may have been killed."""
        return self.at_ns if self.struck_ns is None else min(self.struck_ns, self.at_ns)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What was configured: how much is to be available, hard and soft; how much more after an eviction.

    `in_time`: a pod may be asked to end before the soft grace period is over.
    """

    capacity_bytes: int
    hard_bytes: int
    minimum_reclaim_bytes: int = 0
    soft_bytes: int | None = None
    soft_grace_ns: int = 0
    in_time: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Episode:
    """What happened. `rules` are all that may have been in force; `away` when there was no daemon to act.

    `unresolved` says that an earlier threshold may still have been short of its minimum reclaim,
    `soft_met_ns` since when the soft one may have been met for the daemon (None: not before).
    `leaks` are instances that grew and may not be evicted, where nothing else grew. `growths` is what was
    planned to be taken, whatever has become of it.
    `slowness` is how many times as long as usual everything takes, and may be apart.
    """

    samples: Sequence[Sample]
    lives: Mapping[int, Life]
    kills: Sequence[Kill]
    rules: Sequence[Rules]
    crossed_ns: int | None = None
    away: Sequence[tuple[int, int]] = ()
    unresolved: bool = False
    soft_met_ns: int | None = None
    leaks: frozenset[int] = frozenset()
    growths: Sequence[Growth] = ()
    slowness: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """What is to be said of one kill: `wrong` is None where it was right.

    `acceptable` are those who would have been right. Within `window` it was decided: from the reason to the
    kill. `past_bytes` is how far the node had gone past the hard threshold by then. `is_unseen`: the counters
    were not read closely enough to say that it was wrong. `need` is of an eviction that only the forecast
    caused: the soft threshold had not been met for its grace period.
    """

    kill: Kill
    acceptable: tuple[int, ...]
    wrong: str | None
    helped: bool | None
    window: tuple[int, int]
    past_bytes: int = 0
    is_unseen: bool = False
    is_soft: bool = False
    need: Need | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What is to be said of an episode. `missed` says for how long nobody was killed, once for each time."""

    crossings: int
    kills: tuple[Judged, ...]
    missed: tuple[str, ...]

    @property
    def is_right(self) -> bool:
        """Tell whether nothing is to be said against the daemon."""
        return not self.missed and all(judged.wrong is None for judged in self.kills)


Key = tuple[bool, int, int]


def place(spec: Spec, working_set_bytes: int) -> Key:
    """Return a pod's place in the order of eviction, the first to go least.

    Above its request before within it, then lower priority, then more usage above the request.
    """
    within = working_set_bytes <= spec.request_bytes
    return (within, spec.priority, spec.request_bytes - working_set_bytes)


def acceptable(
    present: Mapping[int, tuple[Spec, Sequence[int]]], only_some_of_the_time: frozenset[int] = frozenset()
) -> tuple[int, ...]:
    """Return the instances that come first by some reading of the working sets that were seen of each.

    A pod that was there only some of the time may have been read or not: it may be chosen, and need not be.
    """
    first = {
        instance: (place(spec, max(seen)), place(spec, min(seen)))
        for instance, (spec, seen) in present.items()
        if seen and not spec.is_critical
    }
    return tuple(
        instance
        for instance, (best, _) in first.items()
        if all(
            best <= worst
            for other, (_, worst) in first.items()
            if other != instance and other not in only_some_of_the_time
        )
    )


def judge(episode: Episode) -> Verdict:
    """Return the verdict of an episode."""
    kills = _in_order(episode)
    judged = list[Judged]()
    for kill in kills:
        judged.append(_judge_after(episode, kill, judged))
    if episode.leaks:
        return Verdict(crossings=_crossings(episode, judged), kills=tuple(_judge_in_vain(judged)), missed=())
    return Verdict(
        crossings=_crossings(episode, judged),
        kills=tuple(judged),
        missed=() if any(one.helped is False for one in judged) else tuple(_missed(episode, kills)),
    )


def _judge_after(episode: Episode, kill: Kill, judged: Sequence[Judged]) -> Judged:
    """Return what is to be said of a kill after those before it.

    A hard threshold waits for nobody who was asked to end for a soft one and has not ended yet: whoever comes
    first by then goes, and that may be another.
    """
    found = _judge_kill(episode, kill, [one.kill for one in judged])
    if found.wrong != NEEDLESS:
        return found
    ended_ns = {one.kill.instance: episode.lives[one.kill.instance].processes_gone_ns for one in judged}
    waited_for = [
        one.kill
        for one in judged
        if not one.is_soft or kill.at_ns >= (ended_ns[one.kill.instance] or math.inf)
    ]
    overtaken = _judge_kill(episode, kill, waited_for)
    return overtaken if overtaken.wrong is None and not overtaken.is_soft else found


def _judge_in_vain(judged: Sequence[Judged]) -> Iterator[Judged]:
    """Yield the kills for what no kill ends: of the daemon's one is right in each pause."""
    last_ns: int | None = None
    for one in judged:
        if one.kill.is_kernels or one.wrong is not None:
            yield one
        elif last_ns is not None and one.kill.at_ns - last_ns < PAUSE_NS:
            yield replace(one, wrong=IN_VAIN)
        else:
            last_ns = one.kill.at_ns
            yield one


def _in_order(episode: Episode) -> list[Kill]:
    """Return the kills as they came; two that can't be told apart in the order in which both are right."""
    kills = sorted(episode.kills, key=lambda kill: kill.at_ns)
    for number, (first, second) in enumerate(pairwise(kills)):
        earlier = kills[:number]
        apart_ns = (second.at_ns - first.at_ns) / episode.slowness
        if apart_ns >= _ASKED_NS:
            continue
        found = _judge_kill(episode, first, earlier)
        if found.wrong != WRONG_POD or (apart_ns >= _BEAT_NS and not found.is_soft):
            continue
        turned = [replace(second, at_ns=first.at_ns), replace(first, at_ns=second.at_ns)]
        if all(
            _judge_kill(episode, one, [*earlier, *turned[:place]]).wrong is None
            for place, one in enumerate(turned)
        ):
            kills[number : number + 2] = turned
    return kills


def _judge_kill(episode: Episode, kill: Kill, earlier: Sequence[Kill]) -> Judged:
    life = episode.lives[kill.instance]
    reason = _reason(episode, kill, earlier)
    from_ns = kill.at_ns if reason is None else reason[0]
    found = _need(episode, kill, earlier, from_ns) if reason is not None and reason[1] else None
    if found is not None:  # decided just now, and not when the soft threshold was met
        from_ns = max(from_ns, kill.since_ns - int(_DECIDED_NS * episode.slowness))
    from_ns = max(from_ns, life.born_ns, *(one.at_ns for one in earlier))
    window = _window(episode.samples, from_ns, kill.at_ns)
    present: dict[int, tuple[Spec, list[int]]] = {}
    gone = {one.instance for one in earlier}
    for sample in window:
        for instance, counters in sample.pods.items():
            if instance not in gone and instance in episode.lives:
                spec = episode.lives[instance].spec
                present.setdefault(instance, (spec, []))[1].append(counters.working_set_bytes)
    partly = frozenset(
        instance
        for instance, (_, seen) in present.items()
        if len(seen) < len(window) or not _lives_through(episode.lives[instance], from_ns, kill.at_ns)
    )
    right = acceptable(present, partly)
    wrong = None
    if kill.is_kernels:
        wrong = None  # not the daemon's choice
    elif reason is None:
        wrong = _needless(episode, kill, earlier)
    elif life.spec.is_critical:
        wrong = "killed a critical pod"
    elif not window:
        wrong = None  # the samples were overwritten: nothing can be said
    elif kill.instance not in right:
        wrong = WRONG_POD
    # One that is so young that no sample has it: how much it used is not known here.
    is_unsampled = wrong == WRONG_POD and kill.instance not in present
    is_doubtful = _is_blind(episode, kill) or (reason is None and _may_have_reason(episode, kill, earlier))
    is_unseen = is_unsampled or (wrong is not None and not life.spec.is_critical and is_doubtful)
    return Judged(
        kill=kill,
        acceptable=right,
        wrong=None if is_unseen else wrong,
        is_unseen=is_unseen,
        helped=_helped(episode, kill),
        window=(from_ns, kill.at_ns),
        past_bytes=_past_bytes(episode, window),
        is_soft=reason is not None and reason[1],
        need=found,
    )


def _need(episode: Episode, kill: Kill, earlier: Sequence[Kill], met_ns: int) -> Need | None:
    """Return what an eviction was that came in time; None of one that did not."""
    rules = episode.rules[0]
    until_ns = met_ns + rules.soft_grace_ns
    before = next((one for one in reversed(episode.samples) if one.ended_ns <= kill.at_ns), None)
    is_late = kill.at_ns >= until_ns - int(_SAME_CROSSING_NS * episode.slowness)
    if not rules.in_time or rules.soft_bytes is None or is_late or before is None:
        return None
    gone = {one.instance for one in earlier}
    return need(
        [one for one in episode.growths if one.instance not in gone],
        before.began_ns,
        _available(episode, before, rules.capacity_bytes, earlier, None),
        until_ns,
        soft_bytes=rules.soft_bytes,
        hard_bytes=rules.hard_bytes,
    )


def _may_have_reason(episode: Episode, kill: Kill, earlier: Sequence[Kill]) -> bool:
    """Return whether a kill had a reason if it came as late as it can have, or was decided on before a stop.

    A daemon that is stopped between its last look and the kill kills as soon as it goes on.
    """
    ways = [] if kill.seen_ns is None else [replace(kill, at_ns=max(kill.at_ns, kill.seen_ns))]
    at_once_ns = int(_AT_ONCE_NS * episode.slowness)
    ways += [
        replace(kill, at_ns=from_ns, struck_ns=None)
        for from_ns, to_ns in episode.away
        if to_ns - from_ns < _STOP_NS * episode.slowness and 0 <= kill.at_ns - to_ns < at_once_ns
    ]
    return any(_reason(episode, one, earlier) is not None for one in ways)


def _needless(episode: Episode, kill: Kill, earlier: Sequence[Kill]) -> str:
    """Return what is wrong with a kill without a reason."""
    if not any(kill.at_ns - one.at_ns < MISSED_NS * episode.slowness for one in earlier):
        return "killed without a crossing"
    ended_ns = [episode.lives[one.instance].processes_gone_ns for one in earlier]
    if all(one is not None and one < kill.at_ns for one in ended_ns):
        return "killed another for memory whose files were still to be removed"
    return NEEDLESS


def _is_blind(episode: Episode, kill: Kill) -> bool:
    """Tell whether the counters were not read closely in the time before a kill in which it was decided."""
    samples, blind_ns = episode.samples, int(_BLIND_NS * episode.slowness)
    if not samples or samples[0].ended_ns > kill.since_ns:
        return True  # they do not reach back so far
    around = _window(samples, kill.since_ns - 2 * blind_ns, kill.at_ns)
    long_reading = any(sample.ended_ns - sample.began_ns > blind_ns for sample in around)
    gap = any(after.began_ns - before.ended_ns > blind_ns for before, after in pairwise(around))
    return long_reading or gap


def _past_bytes(episode: Episode, window: Sequence[Sample]) -> int:
    least = min(rules.capacity_bytes - rules.hard_bytes for rules in episode.rules)
    return max((sample.seen_bytes - least for sample in window), default=0)


def _lives_through(life: Life, from_ns: int, to_ns: int) -> bool:
    return life.born_ns <= from_ns and (life.ended_ns is None or life.ended_ns > to_ns)


def _reason(episode: Episode, kill: Kill, earlier: Sequence[Kill]) -> tuple[int, bool] | None:
    """Return since when there was reason to kill somebody, and whether only a soft threshold's.

    None where there was none: less than the threshold was never short, with what killed pods still held
    counted as available. After a kill the minimum reclaim is wanted too.
    """
    resolved_bytes = 0 if not earlier and not episode.unresolved else None
    for is_soft in (False, True):
        lasting = [
            began_ns
            for rules in episode.rules
            for began_ns, ended_ns, grace_ns in _short(
                episode, rules, earlier, is_soft=is_soft, reclaim_bytes=resolved_bytes, is_sure=True
            )
            if began_ns <= kill.at_ns
            and _lasts(
                _met_since(episode, rules, began_ns) if is_soft else began_ns,
                ended_ns,
                grace_ns,
                kill,
                int(_SAME_CROSSING_NS * episode.slowness),
            )
        ]
        if lasting:
            return max(lasting), is_soft
        if not is_soft and resolved_bytes == 0 and (since_ns := _unresolved_since(episode, kill)) is not None:
            return since_ns, False
    if not earlier and episode.crossed_ns is not None and episode.crossed_ns <= kill.at_ns:
        return episode.crossed_ns, False  # so fast that no sample shows it
    return None


def _unresolved_since(episode: Episode, kill: Kill) -> int | None:
    """Return since when a minimum reclaim may have been wanted without a kill before, None where it was not.

    A crossing that the soak itself has ended the daemon may have seen: it is not over before that is there.
    """
    after_ns = int(_SAME_CROSSING_NS * episode.slowness)
    for rules in episode.rules:
        met = [began_ns for began_ns, _, _ in _short(episode, rules, (), is_soft=False, reclaim_bytes=0)]
        for began_ns, ended_ns, _ in _short(episode, rules, (), is_soft=False, reclaim_bytes=None):
            seen = [at_ns for at_ns in met if began_ns <= at_ns <= kill.at_ns]
            if seen and _lasts(began_ns, ended_ns, 0, kill, after_ns):
                return min(seen)
    return None


def soft_met_ns(episode: Episode) -> int | None:
    """Return since when the soft threshold may have been met for the daemon, after an episode; see there."""
    began = [_met_since(episode, rules, None) for rules in episode.rules]
    return min((at_ns for at_ns in began if at_ns is not None), default=None)


def _met_since(episode: Episode, rules: Rules, at_ns: int | None) -> int | None:
    """Return since when the soft threshold may have been met for the daemon, `at_ns` where not before.

    Only the daemon knows whether it looked while enough was available: what ends a grace period is that it
    has seen that, at the latest when it next looks at everything. A kill does not end it.
    """
    began = [began_ns for began_ns, _, _ in _short(episode, rules, (), is_soft=True, reclaim_bytes=None)]
    before = [at_ns, episode.soft_met_ns, *began]
    return min((one for one in before if one is not None and (at_ns is None or one <= at_ns)), default=at_ns)


def _lasts(began_ns: int | None, ended_ns: int, grace_ns: int, kill: Kill, after_ns: int) -> bool:
    """Tell whether shortness explains a kill: it lasted the grace period, and had not ended long before."""
    return began_ns is not None and kill.at_ns - began_ns >= grace_ns and kill.since_ns - ended_ns < after_ns


def _short(
    episode: Episode,
    rules: Rules,
    earlier: Sequence[Kill],
    *,
    is_soft: bool,
    reclaim_bytes: int | None,
    is_sure: bool = False,
) -> Iterator[tuple[int, int, int]]:
    """Yield when too little was available, credited: from, to, and the grace period.

    `is_sure`: of the files that killed pods left only what has to be counted is credited.
    """
    wanted_bytes = rules.soft_bytes if is_soft else rules.hard_bytes
    if wanted_bytes is None:
        return
    least_bytes = wanted_bytes // _LEFT_SHARE if is_sure else None
    wanted_bytes += rules.minimum_reclaim_bytes if reclaim_bytes is None else reclaim_bytes
    grace_ns = rules.soft_grace_ns if is_soft and not rules.in_time else 0
    began_ns = ended_ns = before_ns = None
    same_ns = _SAME_CROSSING_NS * episode.slowness
    # What was short before an earlier kill was that one's reason.
    since_ns = max((kill.at_ns for kill in earlier), default=0)
    for sample in episode.samples:
        if sample.ended_ns <= since_ns:
            before_ns = sample.began_ns
            continue
        if _available(episode, sample, rules.capacity_bytes, earlier, least_bytes) < wanted_bytes:
            if began_ns is None:
                # It became short after the sample before this one began, which reads its pods last.
                began_ns = sample.began_ns if before_ns is None else before_ns
            ended_ns = sample.ended_ns
        elif began_ns is not None and ended_ns is not None and sample.began_ns - ended_ns > same_ns:
            yield began_ns, ended_ns, grace_ns
            began_ns = None
        before_ns = sample.began_ns
    if began_ns is not None and ended_ns is not None:
        yield began_ns, ended_ns, grace_ns


def _available(
    episode: Episode, sample: Sample, capacity_bytes: int, killed: Sequence[Kill], least_bytes: int | None
) -> int:
    """Return what was available, with what those that were killed before are still giving back.

    Where `least_bytes` is given, files that are left count only above that, and less what is uncounted.
    """
    dying_bytes = left_bytes = 0
    for kill in killed:
        is_credited = kill.at_ns <= sample.ended_ns and (
            kill.gone_ns is None or sample.began_ns < kill.gone_ns
        )
        if kill.instance not in sample.pods or not is_credited:
            continue
        held_bytes = sample.pods[kill.instance].working_set_bytes
        gone_ns = episode.lives[kill.instance].processes_gone_ns
        if gone_ns is None or sample.began_ns < gone_ns:
            dying_bytes += held_bytes
        else:
            if kill.tmpfs_bytes is not None:
                held_bytes = min(held_bytes, kill.tmpfs_bytes)
            left_bytes += max(0, held_bytes - (0 if least_bytes is None else _UNCOUNTED_BYTES))
    available_bytes = capacity_bytes - sample.most_bytes + dying_bytes
    return available_bytes + (left_bytes if least_bytes is None or available_bytes >= least_bytes else 0)


def _window(samples: Sequence[Sample], from_ns: int, to_ns: int) -> Sequence[Sample]:
    """Return the samples between two instants, and one before and after: what moved lies between them."""
    first = next((at for at, sample in enumerate(samples) if sample.ended_ns > from_ns), len(samples))
    last = next((at for at, sample in enumerate(samples) if sample.began_ns >= to_ns), len(samples) - 1)
    return samples[max(0, first - 1) : last + 1]


def _helped(episode: Episode, kill: Kill) -> bool | None:
    """Tell whether half of what the victim held came back by the end; None where nothing was held.

    If all that is still missing went outside the pods, and the others took less, that is no help either.
    """
    before = next((one for one in reversed(episode.samples) if one.ended_ns <= kill.at_ns), None)
    if before is None or kill.instance not in before.pods:
        return None
    held_bytes = before.pods[kill.instance].working_set_bytes
    end = episode.samples[-1]
    back_bytes = _beside(before, kill) - _beside(end, kill)
    lost_bytes = held_bytes - back_bytes
    missing_bytes = min(
        rules.hard_bytes - rules.capacity_bytes + end.node.working_set_bytes for rules in episode.rules
    )
    taken_bytes = end.node.working_set_bytes - before.node.working_set_bytes + back_bytes
    is_lost = lost_bytes >= missing_bytes > 0 and lost_bytes > taken_bytes
    return None if held_bytes == 0 else back_bytes >= _HELPS_SHARE * held_bytes and not is_lost


def _beside(sample: Sample, kill: Kill) -> int:
    """Return what the node uses without the other pods: the victim's, and nobody's."""
    others = sum(one.working_set_bytes for instance, one in sample.pods.items() if instance != kill.instance)
    return sample.node.working_set_bytes - others


def _crossings(episode: Episode, judged: Sequence[Judged]) -> int:
    strictest = max(episode.rules, key=lambda rules: rules.hard_bytes)
    hard = sum(1 for _ in _short(episode, strictest, (), is_soft=False, reclaim_bytes=0))
    soft = sum(1 for one in judged if one.is_soft)
    return max(hard + soft, 1 if judged and episode.crossed_ns is not None else 0)


def _missed(episode: Episode, kills: Sequence[Kill]) -> Iterator[str]:
    """Yield for how long too little was available and nobody was killed by a daemon that was there."""
    mildest = min(episode.rules, key=lambda rules: rules.hard_bytes)
    mildest = replace(mildest, hard_bytes=mildest.hard_bytes - _NOT_NOTICED_BYTES)
    for began_ns, ended_ns, _ in _short(episode, mildest, kills, is_soft=False, reclaim_bytes=0):
        starts = [began_ns, *(kill.at_ns for kill in kills), *(to_ns for _, to_ns in episode.away)]
        since = [one for one in starts if began_ns <= one <= ended_ns]
        ends = [*since[1:], ended_ns, *(from_ns for from_ns, _ in episode.away)]
        for start_ns in since:
            end_ns = min(one for one in ends if one > start_ns or one == ended_ns)
            if any(from_ns <= start_ns < to_ns for from_ns, to_ns in episode.away):
                continue
            if end_ns - start_ns > MISSED_NS * episode.slowness and _somebody(episode, kills, start_ns):
                yield f"nobody was killed for {(end_ns - start_ns) / 1e9:.2f} s"


def _somebody(episode: Episode, kills: Sequence[Kill], at_ns: int) -> bool:
    gone = {kill.instance for kill in kills}
    return any(
        instance not in gone
        and not life.spec.is_critical
        and _lives_through(life, at_ns, at_ns + int(MISSED_NS * episode.slowness))
        for instance, life in episode.lives.items()
    )
