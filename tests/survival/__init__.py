"""Whom the kernel's OOM killer takes where the guard comes too late: `python -m tests.survival` counts.

In each heat a virtual node fills up to where a hard threshold is near, the guard is left as it is, starved,
stopped or killed, and one pod grows until a pod dies. An oracle that shares no code with the daemon reads the
kernel's counters of all pods until then, and says who was the policy's first at the death.

    heat.py      one heat
    oracle.py    the pods that are drawn, and who of them is first
    __main__.py  heats in all conditions, their table and their figures
"""
