"""The nursery and the loop: wake, observe, decide, act, journal.

    loop          one nursery: signals, status, metrics, state, and a generation for each configuration
    supervisor    restarts everything but what guards memory and process ids
    generation    sources, housekeeping and the loop over them
    passes        the pass: observe, decide, act; synchronous from the wake to the kill
    endings       evictions under way; candidates: who is left out of the next
    housekeeping  what may hang: filesystems and the list of pods, in worker threads
    record        one pass as it is journaled; wording: in words
    recorder      what is kept of a pass: journal, log, metrics, the last decisions
    state         what survives a restart
    status        what `reactor status` and `reactor explain` are told
    order         the present order of eviction, for `reactor top`
    kubernetes    what talks to the API server: pods, node, evictions; parts of its own, never in the way
    connections   clients of the status socket and the metrics endpoint (http), at a bounded price

Nothing here but passes and what it calls is on the way from a wake to a kill.
"""
