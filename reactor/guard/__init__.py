"""The process that kills: wake, observe, decide, act, record.

    run           the process, from taking the lock to its end; signals
    daemon        one nursery: the steward, state, and a loop for each configuration (Reloads)
    build         puts everything together, and has the table of features
    loop          wakes, the pass that follows, and the reclaims that follow a pass
    pass_         the pass: observe, decide, act; synchronous from the wake to the kill
    approach      has everything prepare for a crossing that is near; ahead: kills by the kernel itself
    node          the policy's state and the pods; it changes by events
    evictor       begins evictions; endings: sees each to its end
    record        one pass as it is journaled; recorder: its line, its log, its counts
    reports       status, top, explain, what is scraped; incidents: what befalls the node
    state         what survives a restart
    steward_link  the other process: started again, given records, answered, and not trusted
    kubernetes    pods as the steward reports them, reports to the API server, evicted pods kept down

Nothing here but passes and what it calls is on the way from a wake to a kill.
"""
