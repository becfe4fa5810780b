"""`reactor tune`: this node's measurements and history, to thresholds with their reasons.

    measure (experiments) ──► measured ─┐
    journals ──► history ───────────────┼─► model (latency) ──► report
    the operator's configuration ───────┘

Measuring happens in virtual nodes alone; `measure` refuses it if even that would hurt. From the numbers on
everything is pure: `latency` bounds a p99.9 by few samples, `model` finds thresholds and compares an existing
configuration with them, `report` prints, draws and writes the configuration.
"""

from reactor.tune.command import TuneOptions, tune

__all__ = ["TuneOptions", "tune"]
