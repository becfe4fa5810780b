"""The process that kills: wake, observe, decide, act, record.

    run           the process, from taking the lock to its end; signals
    loop          one nursery: the steward, state, and a generation for each configuration
    generation    sources, housekeeping and the loop over them
    passes        the pass: observe, decide, act; synchronous from the wake to the kill
    evictor       evictions under way; candidates: who is left out of the next
    housekeeping  what may hang: filesystems and the list of pods, in worker threads
    record        one pass as it is journaled; wording: in words; tally: counted
    recorder      what is kept of a pass: a line for the steward, the log, the last decisions
    state         what survives a restart
    steward_link  the other process: started again, given records, answered, and not trusted
    status        the guard's part of `reactor status`; order: the present order of eviction, for `top`
    kubernetes    pods as the steward tells of them, reports to the API server, evicted pods kept down

Nothing here but passes and what it calls is on the way from a wake to a kill.
"""
