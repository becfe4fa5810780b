"""The decision, pure: no clock, no I/O, no log. Source of the rules: upstream's pkg/kubelet/eviction.

One pass, as the daemon and the simulator make it:

    state, decision = decide(policy, state, snapshot, pods, now_seconds)
    if decision.reclaim:                       # node-level reclaim comes before any eviction
        ... run it, observe again ...
        state, decision = after_reclaim(policy, state, decision, snapshot, observed_again, pods)
    for eviction in decision.evictions:
        ... kill the pod ...
        state = record_eviction(policy, state, eviction, now_seconds)
"""

from reactor.policy.admission import Admission, admit
from reactor.policy.decide import after_reclaim, decide
from reactor.policy.images import images_to_collect, unused_images
from reactor.policy.in_flight import record_eviction
from reactor.policy.oom_score import oom_score_adj
from reactor.policy.oom_victims import record_oom_kill
from reactor.policy.rank import rank
from reactor.policy.thresholds import absurd_thresholds, memory_level, thresholds_met

__all__ = [
    "Admission",
    "absurd_thresholds",
    "admit",
    "after_reclaim",
    "decide",
    "images_to_collect",
    "memory_level",
    "oom_score_adj",
    "rank",
    "record_eviction",
    "record_oom_kill",
    "thresholds_met",
    "unused_images",
]
