"""The decision, pure: no clock, no I/O, no log. Source: upstream's pkg/kubelet/eviction.

One pass, as the daemon and the simulator make it:

    state, decision = decide(policy, state, snapshot, pods, now_seconds)
    if decision.reclaim:                       # node-level reclaim comes before any eviction
        ... run it, observe again ...
        state, decision = after_reclaim(policy, state, decision, snapshot, observed_again, pods)
    for eviction in decision.evictions:
        ... kill the pod ...
        ordered = EvictionOrdered(eviction=eviction, snapshot=snapshot, pods=pods)
        state = apply(policy, state, ordered, now_seconds)

Whatever else happens between two passes is an event, too (events.py); nothing else changes the state.
"""

from reactor.policy.admission import Admission, admit
from reactor.policy.decide import after_reclaim, decide
from reactor.policy.events import apply
from reactor.policy.images import images_to_collect, unused_images
from reactor.policy.oom_score import oom_score_adj
from reactor.policy.rank import rank
from reactor.policy.thresholds import absurd_thresholds, memory_level, thresholds_met

__all__ = [
    "Admission",
    "absurd_thresholds",
    "admit",
    "after_reclaim",
    "apply",
    "decide",
    "images_to_collect",
    "memory_level",
    "oom_score_adj",
    "rank",
    "thresholds_met",
    "unused_images",
]
