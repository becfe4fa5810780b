"""The soak: thousands of crossings on a virtual node, each judged by an oracle of its own.

    stage.c       the pods' processes and memory, the kernel's counters over time, deaths: by its own clock
    stage.py      its other end: pods, orders, samples
    oracle.py     who had to be killed, from the samples alone; pure
    guarded.py    the daemon under test: configured, reloaded, stopped, crashed, measured
    pods.py       the virtual node's pods as cgroups: made, removed, made again
    plan.py       what happens in a crossing, drawn from the seed
    falls.py      what goes on past a soft threshold, and whether an eviction in time was needed; pure
    episode.py    one crossing from its first byte to the verdict
    disagreement.py  what is kept of a verdict that says wrong
    slope.py      whether a series is flat
    figures.py    what is counted, printed and stored
    __main__.py   the run

The oracle shares no code with the daemon. It is written from the rules of the eviction: over-request first,
then priority, then usage above request; critical pods never; nobody for memory that a killed pod still holds.
Run by `make soak`.
"""
