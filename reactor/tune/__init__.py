"""`reactor tune`: this node's measurements and history, to thresholds with their reasons.

    measure (growth, reactions) ──► measured ─┐
    journals ──► history ─────────────────────┼─► model ──► tables, snippet, pages
    the operator's configuration ─────────────┴─► missed

Measuring happens in virtual nodes alone (`measure`, refused by `node` where even that would hurt). From the
numbers on everything is pure: `tail` bounds a p99.9, `latency` and `cases` are the parts of the
`model`, `missed` compares an existing configuration with it.
"""

from reactor.tune.command import TuneOptions, tune

__all__ = ["TuneOptions", "tune"]
