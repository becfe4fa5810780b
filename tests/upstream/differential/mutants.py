"""Whether the comparison sees anything: each fault put into the project has to make scenarios differ."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final


@dataclass(frozen=True, slots=True)
class Mutant:
    """A file below reactor/, a text of it that stands there once, and what it is replaced by."""

    path: str
    old: str
    new: str


MUTANTS: Final = (
    Mutant("policy/decide.py", "< period_seconds", "<= period_seconds"),
    Mutant("policy/thresholds.py", ">= threshold.grace_period_seconds", "> threshold.grace_period_seconds"),
    Mutant("policy/thresholds.py", "taken_at_seconds > before_seconds", "taken_at_seconds >= before_seconds"),
    Mutant("policy/thresholds.py", "observation.available < wanted", "observation.available <= wanted"),
    Mutant("policy/thresholds.py", "wanted >= observation.capacity", "wanted > observation.capacity"),
    Mutant("policy/thresholds.py", "{Signal.MEMORY_AVAILABLE: 0,", "{Signal.MEMORY_AVAILABLE: 2,"),
    Mutant("sources/levels.py", "capacity - wanted + observation", "capacity - wanted - observation"),
    Mutant("model/thresholds.py", "if self.available < 0:", "if self.available < -9999999:"),
    Mutant("model/thresholds.py", "self.capacity <= 0", "self.capacity < 0"),
    Mutant("model/thresholds.py", "_single(_single(float(self.percent)) / 100)", "float(self.percent) / 100"),
    Mutant("policy/decide.py", "observations,\n        with_minimum_reclaim=True,\n", "observations,\n"),
    Mutant("policy/decide.py", "[1].signals, with_minimum_reclaim=True)", "[1].signals)"),
    Mutant(
        "policy/decide.py",
        "grace_period_seconds=0 if threshold.is_hard else",
        "grace_period_seconds=1 if threshold.is_hard else",
    ),
    Mutant("policy/in_time.py", "own if most < 0 else min(most, own)", "own if most < 0 else max(most, own)"),
    Mutant("policy/in_time.py", "return own if most < 0", "return own if most < -1"),
    Mutant(
        "policy/decide.py",
        "        if evictions := evictions and",
        "        if evictions := False and",
    ),
    Mutant(
        "policy/rank.py",
        "place.exceeds_request is False,\n        pod.priority,",
        "pod.priority,\n        place.exceeds_request is False,",
    ),
    Mutant("policy/rank.py", "amount > request", "amount >= request"),
    Mutant("policy/rank.py", "else place.request - amount", "else -amount"),
    Mutant("policy/rank.py", "preference, priority, is_known, less", "preference, is_known, priority, less"),
    Mutant("policy/rank.py", "is_known, less", "is_known, -less"),
    Mutant(
        "policy/disks.py",
        "in islice(_broken_limits(pod, used, layout), 1):",
        "in [*_broken_limits(pod, used, layout)][-1:]:",
    ),
    Mutant("policy/disks.py", "used_bytes > limit.amount > 0", "used_bytes >= limit.amount > 0"),
    Mutant(
        "policy/disks.py",
        "limit.amount and used_bytes > limit",
        "limit.amount and used_bytes >= limit",
    ),
    Mutant("policy/disks.py", "(container.logs,)\n", "(container.logs, container.rootfs)\n"),
    Mutant(
        "policy/disks.py",
        "return (False, True) if signal in _NODEFS else (True, False)",
        "return (True, True)",
    ),
    Mutant("policy/disks.py", "removed_with_pod else volume.is_local", "removed_with_pod else True"),
    Mutant(
        "policy/disks.py",
        "(Reclaim.CONTAINERS,) if signal in _NODEFS else (Reclaim.CONTAINERS, Reclaim.IMAGES)",
        "(Reclaim.CONTAINERS, Reclaim.IMAGES)",
    ),
    Mutant(
        "policy/admission.py",
        "pod.qos_class is not QosClass.BEST_EFFORT",
        "pod.qos_class is QosClass.GUARANTEED",
    ),
    Mutant("policy/admission.py", 'toleration.key not in {"", _TAINT_KEY}', "toleration.key != _TAINT_KEY"),
    Mutant("policy/images.py", "< gc.high_threshold_percent", "<= gc.high_threshold_percent"),
    Mutant("policy/images.py", "max(1, capacity", "max(0, capacity"),
    Mutant("policy/images.py", ">= gc.minimum_age_seconds", "> gc.minimum_age_seconds"),
    Mutant(
        "policy/images.py",
        "(image.last_used_seconds) < now_seconds",
        "(image.last_used_seconds) <= now_seconds",
    ),
    Mutant(
        "policy/images.py",
        "(_or_never(image.last_used_seconds), _or_never(image.first_detected_seconds))",
        "(_or_never(image.first_detected_seconds), _or_never(image.last_used_seconds))",
    ),
    Mutant("policy/messages.py", "if usage > (requested", "if usage >= (requested"),
    Mutant("policy/messages.py", '",".join([resource] * times)', '""'),
    Mutant("policy/admission.py", "1000 - 1000 * memory", "999 - 1000 * memory"),
    Mutant(
        "model/pods.py",
        "SYSTEM_CRITICAL_PRIORITY = 2_000_000_000",
        "SYSTEM_CRITICAL_PRIORITY = 2_000_001_000",
    ),
    Mutant(
        "config/pod.py", "starting = _maximum(starting, together)", "starting = _sum((starting, together))"
    ),
    Mutant("config/pod.py", "return {**self.limits, **self.requests}", "return {**self.requests}"),
    Mutant("config/kubelet.py", "(*own, *allocatable, *containerfs)", "(*own, *containerfs)"),
    Mutant("model/quantity.py", "return -((-self.amount", "return ((self.amount"),
    Mutant("simulate/replay.py", "now_seconds) <= _NOTIFIER", "now_seconds) < _NOTIFIER"),
)


def run_mutants(root: Path, oracle: Path, seeds: range, *, jobs: int, only: str) -> int:
    """Run each mutant until a difference shows. Returns 1 where one is not seen, or fits no more."""
    unseen = 0
    for mutant in MUTANTS:
        if only in mutant.path:
            verdict = _verdict(mutant, root, oracle, seeds, jobs)
            unseen += verdict != "seen"
            print(f"{verdict:15} {mutant.path}: {mutant.old.strip()!r} -> {mutant.new.strip()!r}", flush=True)
    return 1 if unseen else 0


def _verdict(mutant: Mutant, root: Path, oracle: Path, seeds: range, jobs: int) -> str:
    with tempfile.TemporaryDirectory(prefix="reactor-mutant-") as folder:
        copied = Path(folder, "reactor")
        shutil.copytree(root / "reactor", copied, ignore=shutil.ignore_patterns("__pycache__"))
        target = copied / mutant.path
        text = target.read_text(encoding="utf-8")
        if text.count(mutant.old) != 1:
            return "fits no more"
        target.write_text(text.replace(mutant.old, mutant.new), encoding="utf-8")
        module = "tests.upstream.differential"
        command = [sys.executable, "-m", module, "run", "--quick", "--oracle", str(oracle)]
        run = subprocess.run(
            [*command, "--jobs", str(jobs), "--seeds", f"{seeds.start}:{seeds.stop}"],
            env={**os.environ, "PYTHONPATH": f"{folder}:{root}"},
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
        )
    if run.returncode not in {0, 1}:
        return f"failed: {run.stderr[-300:]}"
    return "seen" if run.returncode == 1 else "NOT SEEN"
