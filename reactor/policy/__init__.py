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
