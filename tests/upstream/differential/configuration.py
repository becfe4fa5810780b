"""Random KubeletConfigurations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from tests.upstream.differential.draw import Draw
from tests.upstream.differential.words import (
    ALLOCATABLE,
    DEFAULTS,
    IN_BYTES,
    MEMORY,
    OLD_DEFAULTS,
    PIDS,
    SIGNALS,
    Json,
)

# Shares that single precision holds, and such as it does not.
EXACT: Final = ("25%", "50%", "12.5%", "6.25%", "75%", "3.125%")
_LOOSE: Final = ("5%", "10%", "15%", "7%", "35%", "0.5%", "33.3%", "1%", "99%", "2.5%", ".5%", "20.%")
_GRACE_PERIODS: Final = ("10s", "10s", "30s", "1m", "90s", "2m", "1m30s", "45.5s", "1ns", "1h")


def configuration(draw: Draw) -> Json:
    """Return a random configuration."""
    mostly_soft = draw.chance(0.4)
    hard = {s: _threshold(draw, s) for s in SIGNALS if draw.chance(0.15 if mostly_soft else 0.45)}
    soft = {s: _threshold(draw, s) for s in SIGNALS if draw.chance(0.6 if mostly_soft else 0.25)}
    if draw.seeks("own-allocatable", 0.5):
        (hard if draw.chance(0.5) else soft)[ALLOCATABLE] = draw.pick("1Gi", "2Gi", "25%")
    made: Json = {}
    if mostly_soft or draw.chance(0.85):
        made["evictionHard"] = _shuffled(draw, hard)
        if draw.seeks("merge"):
            made["mergeDefaultEvictionSettings"] = draw.chance(0.7)
    if soft:
        made.update(_soft(draw, _shuffled(draw, soft), hard))
    minima = {s: _minimum_reclaim(draw, s) for s in SIGNALS if draw.chance(0.25)}
    if minima:
        made["evictionMinimumReclaim"] = minima
    return made | _others(draw)


def watched(config: Json) -> frozenset[str]:
    """Return the signals for which there are thresholds."""
    hard = config.get("evictionHard")
    if hard is None or config.get("mergeDefaultEvictionSettings"):
        hard = {**DEFAULTS, **(hard or {})}
    return frozenset((*hard, *config.get("evictionSoft", ())))


def hard_thresholds(config: Json) -> Mapping[str, str]:
    """Return the hard thresholds as far as both versions agree about the defaults."""
    found: Mapping[str, str] = config.get("evictionHard", OLD_DEFAULTS)
    return found


def _shuffled(draw: Draw, chosen: Mapping[str, str]) -> dict[str, str]:
    items = list(chosen.items())
    draw.random.shuffle(items)
    return dict(items)


def _threshold(draw: Draw, signal: str) -> str:
    if draw.seeks("absurd-thresholds", 0.4):
        return draw.pick("99.9999999%", "100.0%", "64Ti" if signal in IN_BYTES else "64M")
    if draw.chance(0.4):
        is_loose = draw.chance(0.4) and (signal != MEMORY or draw.seeks("percent"))
        shares: tuple[str, ...] = _LOOSE if is_loose else ("0%", "100%", *EXACT)
        return draw.pick(*shares)
    return _amount(draw, signal)


def _amount(draw: Draw, signal: str) -> str:
    if signal not in IN_BYTES:
        return draw.pick("100", "1k", "1Ki", "500", "1000", "2k", "1", "1.5k")
    if draw.seeks("fraction", 0.3):
        return draw.pick("1048576500m", "100500m", "0.5Ki")
    return draw.pick("100Mi", "1Gi", "1.5Gi", "500M", "1G", "2Gi", "0.5Gi", "1048577", "300Ki", "12M")


def _minimum_reclaim(draw: Draw, signal: str) -> str:
    if draw.seeks("percent", 0.4):
        return draw.pick(*_LOOSE, "150%")
    if draw.chance(0.25):
        return draw.pick(*EXACT)
    return (
        draw.pick("0", "100Mi", "1Gi", "500M") if signal in IN_BYTES else draw.pick("0", "100", "1k", "500")
    )


def _soft(draw: Draw, soft: dict[str, str], hard: Mapping[str, str]) -> Json:
    graces: tuple[str, ...] = _GRACE_PERIODS
    if draw.seeks("same-value"):
        graces = ("0s", "10s")
        soft |= {s: hard[s] for s in soft if s in hard and draw.chance(0.6)}
    periods = {s: draw.pick(*graces) for s in soft}
    if draw.chance(0.1):
        periods.setdefault(draw.pick(*SIGNALS), "5m")
    return {"evictionSoft": soft, "evictionSoftGracePeriod": periods}


def _others(draw: Draw) -> Json:
    made: dict[str, Any] = {}
    if draw.chance(0.7):
        made["evictionMaxPodGracePeriod"] = draw.pick(0, 5, 5, 30, 600, 1)
    if draw.seeks("negative-grace"):
        made["evictionMaxPodGracePeriod"] = -1
    if draw.chance(0.7):
        made["evictionPressureTransitionPeriod"] = draw.pick("0s", "10s", "30s", "5m", "1m30s", "1ns")
    if draw.chance(0.3):
        made["enforceNodeAllocatable"] = draw.pick(
            [], ["pods"], ["none"], ["pods", "system-reserved"], ["system-reserved"]
        )
    if draw.chance(0.15) or draw.seeks("isolation-off"):
        made["localStorageCapacityIsolation"] = False
    if draw.chance(0.3):
        made["kernelMemcgNotification"] = True
    return made


def press_one(draw: Draw, config: Json) -> str:
    """Leave one hard threshold alone, at half of the capacity, and return its signal."""
    signal = draw.pick(*SIGNALS)
    config["evictionHard"] = {signal: "50%"}
    for key in [key for key in config if key.startswith("evictionSoft")]:
        del config[key]
    return signal


def needs_all_pods(draw: Draw, config: Json) -> bool:
    """Return whether every pod is to have statistics: for processes those that lack them are an area."""
    return PIDS in watched(config) and "pid-statistics" not in draw.areas
