"""Every deliberate difference from upstream's code of 1.20, in one list: `KNOWN`.

Most are things that upstream can be *taught*: the oracle gets the document amended, or is told to decide
otherwise in one point (go/eviction_differential_test.go, `Taught`), and then has to agree to the letter. The
others are *recognised*: a rule tells from document and step that this difference is the known one. What
neither explains is a failure, and so is a difference of the list that does not show any more.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

from reactor.config.pod import pod_from_document
from tests.upstream.differential.compare import Difference
from tests.upstream.differential.statistics import local_bytes
from tests.upstream.differential.words import ALLOCATABLE, DEFAULTS, Json, amount, asked

NEWER: Final = "newer upstream"
OURS: Final = "ours"
_CHARGED: Final = ("memory", "ephemeral-storage")


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A difference and the document in which it showed."""

    document: Json
    difference: Difference


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """A deliberate difference.

    `rule` is what the project does, and `reason` why, as docs/policy.md tells both. `area` is where the
    generator seeks it, None where it shows everywhere, and `kinds` as what it shows without being taught.
    `flag` and `amend` are how the oracle is taught, `recognises` tells the difference in the answers, and
    `compared` says that the comparison itself expects the newer form.
    """

    name: str
    whose: str
    rule: str
    reason: str
    kinds: tuple[str, ...]
    area: str | None = None
    flag: bool = False
    amend: Callable[[Json], None] | None = None
    recognises: Callable[[Case], bool] | None = None
    compared: bool = False


def taught(document: Json, known: Sequence[Known]) -> tuple[list[str], Json]:
    """Return what the oracle is told to decide otherwise, and the document amended for it."""
    amended = copy.deepcopy(document)
    for each in known:
        if each.amend is not None:
            each.amend(amended)
    return [each.name for each in known if each.flag], amended


def recognised(case: Case, known: Sequence[Known]) -> Known | None:
    """Return the deliberate difference that this is, None where it is news."""
    for each in known:
        is_kind = any(case.difference.kind.startswith(kind) for kind in each.kinds)
        if each.recognises is not None and is_kind and each.recognises(case):
            return each
    return None


def _pods(document: Json) -> Iterator[Json]:
    """Yield every pod of a document, also those that only ask to be admitted; one may come more than once."""
    yield from document["pods"]
    for step in document["steps"]:
        yield from step.get("pods", ())
        yield from step.get("admit", ())


def _nodes(document: Json) -> Iterator[Json]:
    for step in document["steps"]:
        for summary in (step.get("summary"), *step.get("afterReclaim", {}).values()):
            if summary is not None:
                yield summary["node"]


def _filesystems(node: Json) -> Iterator[Json]:
    for filesystem in (node.get("fs"), node.get("runtime", {}).get("imageFs")):
        if filesystem is not None:
            yield filesystem


def _write_defaults(document: Json) -> None:
    config = document["kubeletConfiguration"]
    if "evictionHard" not in config:
        config["evictionHard"] = dict(DEFAULTS)


def _merge_defaults(document: Json) -> None:
    config = document["kubeletConfiguration"]
    if config.pop("mergeDefaultEvictionSettings", False):
        config["evictionHard"] = {**DEFAULTS, **config.get("evictionHard", {})}


def _drop_absurd_statistics(document: Json) -> None:
    for node in _nodes(document):
        for filesystem in _filesystems(node):
            for available, capacity in (("availableBytes", "capacityBytes"), ("inodesFree", "inodes")):
                if available in filesystem and capacity in filesystem:
                    size = filesystem[capacity]
                    if size <= 0 or not 0 <= filesystem[available] <= size:
                        del filesystem[available]
        processes = node.get("rlimit")
        if processes and not 0 <= processes["maxpid"] - processes["curproc"] <= processes["maxpid"]:
            del node["rlimit"]


def _keep_huge_pages_off_the_disk(document: Json) -> None:
    for pod in _pods(document):
        for volume in pod["spec"].get("volumes", ()):
            if volume.get("emptyDir", {}).get("medium") == "HugePages":
                volume["emptyDir"]["medium"] = "Memory"


def _make_sidecars_containers(document: Json) -> None:
    """Have sidecars among the containers, and add what they ask for to the init containers after them."""
    for pod in _pods(document):
        spec, running = pod["spec"], []
        for container in spec.get("initContainers", ()):
            if container.pop("restartPolicy", None) == "Always":
                running.append(container)
            else:
                _add(container, running)
        if running:
            spec["initContainers"] = [each for each in spec["initContainers"] if each not in running]
            spec["containers"] = [*spec["containers"], *running]


def _add(container: Json, running: Sequence[Json]) -> None:
    for kind in ("requests", "limits"):
        for resource in _CHARGED:
            own = asked(container, kind, resource)
            others = [value for each in running if (value := asked(each, kind, resource)) is not None]
            if others and (own is not None or kind == "requests"):
                total = sum(map(amount, others), amount(own or "0"))
                container.setdefault("resources", {}).setdefault(kind, {})[resource] = _written(total)


def _add_what_the_pod_requests(document: Json) -> None:
    """Have a container of its own ask for what the pod as a whole requests beyond its containers."""
    for pod in _pods(document):
        spec = pod["spec"]
        requests = spec.pop("resources", {}).get("requests", {})
        if requests:
            own = {}
            for resource, value in requests.items():
                others = [asked(each, "requests", resource) for each in spec["containers"]]
                own[resource] = _written(
                    amount(value) - sum(amount(other) for other in others if other is not None)
                )
            spec["containers"] = [*spec["containers"], {"name": "pod", "resources": {"requests": own}}]


def _written(total: Fraction) -> str:
    return str(total) if total.denominator == 1 else f"{total * 1000}m"


def _in_force(case: Case) -> tuple[Sequence[Json], Json]:
    """Return the pods and the summary of the step in which the difference showed."""
    pods: Sequence[Json] = case.document["pods"]
    summary: Json = {"node": {}, "pods": []}
    for step in case.document["steps"][: case.difference.step + 1]:
        pods, summary = step.get("pods", pods), step.get("summary", summary)
    return pods, summary


def _storage_is_told_otherwise(case: Case) -> bool:
    """Return whether a pod's storage as told and the sum of its parts lie on two sides of its limit."""
    pods, summary = _in_force(case)
    stats = {each["podRef"]["uid"]: each for each in summary.get("pods", ())}
    dedicated = case.document["filesystems"]["dedicatedImageFs"]
    for pod in pods:
        of, limit = stats.get(pod["metadata"]["uid"]), pod_from_document(pod).ephemeral_storage_limit
        if of is not None and limit is not None:
            told = of.get("ephemeral-storage", {}).get("usedBytes", 0)
            parts = local_bytes(
                pod["spec"], of.get("containers", ()), of.get("volume", ()), dedicated=dedicated
            )
            if (told > limit.amount) != (parts > limit.amount):
                return True
    return False


def _requests_part_of_a_byte(case: Case) -> bool:
    pods, _ = _in_force(case)
    return any(
        amount(value).denominator != 1
        for pod in pods
        for container in (*pod["spec"]["containers"], *pod["spec"].get("initContainers", ()))
        for resource in _CHARGED
        if (value := asked(container, "requests", resource)) is not None
    )


# In this order the documents are amended.
KNOWN: Final = (
    Known(
        name="absurd-statistics",
        whose=OURS,
        rule=(
            "Statistics that can't be true (no capacity, less than nothing or more than the capacity "
            "available) count as unobserved."
        ),
        reason=(
            "Upstream evicts for them (kubernetes/kubernetes#52386). An error of the observer must not "
            "choose a victim."
        ),
        kinds=("met:", "conditions", "outcome:"),
        area="absurd-statistics",
        amend=_drop_absurd_statistics,
    ),
    Known(
        name="minimum-after-reclaim",
        whose=NEWER,
        rule="A node-level reclaim spares a pod only if the minimum reclaims are available too.",
        reason=(
            "1.20 compares without the minimum reclaim, and so evicts in the next pass what it spared in "
            "this one."
        ),
        kinds=("outcome:",),
        flag=True,
    ),
    Known(
        name="smaller-grace",
        whose=NEWER,
        rule=(
            "A soft eviction's grace period is at most the pod's own; a negative "
            "`evictionMaxPodGracePeriod` leaves it to the pod."
        ),
        reason="Upstream's documentation; 1.20 gives every pod the maximum, and passes a negative one on.",
        kinds=("outcome:grace",),
        area="negative-grace",
        flag=True,
    ),
    Known(
        name="message",
        whose=NEWER,
        rule=("An eviction's message names the threshold, what was available, and each container's request."),
        reason="1.20 names only the resource and the containers.",
        kinds=("message-",),
        compared=True,
    ),
    Known(
        name="oom-score",
        whose=NEWER,
        rule=(
            "A Guaranteed container's `oom_score_adj` is -997, a Burstable one's at least 3; of critical "
            "pods only node-critical ones have a Guaranteed one's."
        ),
        reason="1.20 has -998 and 2, and spares every critical pod.",
        kinds=("pod:oomScoreAdjust",),
        compared=True,
    ),
    Known(
        name="default-inodes",
        whose=NEWER,
        rule="`imagefs.inodesFree: 5%` is among the default thresholds.",
        reason="1.20 does not watch the image filesystem's inodes unless a threshold is configured.",
        kinds=("met:imagefs.inodesFree", "conditions", "outcome:"),
        area="default-inodes",
        amend=_write_defaults,
    ),
    Known(
        name="merge",
        whose=NEWER,
        rule="With `mergeDefaultEvictionSettings` hard thresholds are added to the defaults.",
        reason="1.20 does not know the key.",
        kinds=("met:", "conditions", "memcg", "outcome:"),
        area="merge",
        amend=_merge_defaults,
    ),
    Known(
        name="imagefs-inodes",
        whose=NEWER,
        rule="Inodes of the image filesystem are observed whether or not its bytes are.",
        reason="In 1.20 they count as unobserved if the bytes are missing.",
        kinds=("met:imagefs.inodesFree", "conditions", "outcome:"),
        area="imagefs-inodes",
        flag=True,
    ),
    Known(
        name="requests-despite-isolation",
        whose=NEWER,
        rule=(
            "Requests of ephemeral storage count in the ranking although `localStorageCapacityIsolation` is "
            "false."
        ),
        reason="In 1.20 it is a feature gate, without which no such request exists.",
        kinds=("outcome:ranking:nodefs", "outcome:ranking:imagefs"),
        area="isolation-off",
        flag=True,
    ),
    Known(
        name="hugepages",
        whose=NEWER,
        rule="An `emptyDir` in huge pages is not charged to a pod's disk usage.",
        reason="It lies in memory; 1.20 leaves out only `medium: Memory`.",
        kinds=("outcome:",),
        area="hugepages",
        amend=_keep_huge_pages_off_the_disk,
    ),
    Known(
        name="sidecar",
        whose=NEWER,
        rule="Sidecars (init containers with `restartPolicy: Always`) add to a pod's requests and limits.",
        reason="1.20 has no sidecars.",
        kinds=("outcome:", "admit", "message-limit"),
        area="sidecar",
        amend=_make_sidecars_containers,
    ),
    Known(
        name="pod-level",
        whose=NEWER,
        rule="Requests of a pod as a whole replace those of its containers, and decide its QoS class.",
        reason="1.20 has no pod-level resources.",
        kinds=("outcome:", "admit"),
        area="pod-level",
        amend=_add_what_the_pod_requests,
    ),
    Known(
        name="storage-told",
        whose=NEWER,
        rule=("A pod's limit of local storage is compared with the `ephemeral-storage` in its statistics."),
        reason="1.20 adds up containers and volumes itself.",
        kinds=("outcome:",),
        area="storage-told",
        recognises=_storage_is_told_otherwise,
    ),
    Known(
        name="nodefs-containers",
        whose=OURS,
        rule=(
            "With a dedicated image filesystem, a full nodefs collects dead containers before a pod is "
            "evicted."
        ),
        reason="Their logs lie there. Upstream's documentation says so; its code reclaims nothing.",
        kinds=("outcome:reclaimed",),
        flag=True,
    ),
    Known(
        name="below-capacity",
        whose=OURS,
        rule=(
            "A threshold at or above the capacity is never acted on; `config check`, `doctor`, `status`, "
            "`simulate` and the log name it."
        ),
        reason="Upstream evicts one pod after another for it.",
        kinds=("met:", "conditions", "memcg", "outcome:"),
        area="absurd-thresholds",
        flag=True,
    ),
    Known(
        name="inodes-without-request",
        whose=OURS,
        rule="Inodes are ordered by how many a pod uses; its request of ephemeral storage does not count.",
        reason="Upstream subtracts the request's bytes from the inodes.",
        kinds=("outcome:ranking:nodefs.inodesFree", "outcome:ranking:imagefs.inodesFree"),
        area="inode-request",
        flag=True,
    ),
    Known(
        name="own-allocatable",
        whose=OURS,
        rule=f"A threshold for `{ALLOCATABLE}` in the configuration itself is acted on.",
        reason="Upstream accepts it and never compares it.",
        kinds=("met:allocatableMemory.available", "conditions", "outcome:"),
        area="own-allocatable",
        flag=True,
    ),
    Known(
        name="whole-bytes",
        whose=OURS,
        rule="A pod's requests are whole bytes: the sum is cut to whole bytes.",
        reason="Only pods whose usage above the request differs by less than a byte change places.",
        kinds=("outcome:ranking:", "outcome:evicted"),
        area="fraction",
        recognises=_requests_part_of_a_byte,
    ),
)
