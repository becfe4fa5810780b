"""The decision, pure: no clock, no I/O, no log. Source of the rules: upstream's pkg/kubelet/eviction.

One pass, as the daemon and the simulator make it:

    state, decision = decide(policy, state, snapshot, pods, now_seconds)
    if decision.reclaim:                       # the node gives back what it can before any pod is ended
        ... run it, observe anew ...
        decision = after_reclaim(policy, state, decision, snapshot, anew, pods)
    for eviction in decision.evictions:
        ... end the pod ...
        state = record_eviction(policy, state, eviction, now_seconds)
"""
