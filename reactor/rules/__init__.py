"""The operator's rules, and those of systemd's units: a cgroup's numbers over time, and what is due by them.

    observe    the numbers of a cgroup
    policy     which rule is due, and why another is not; pure
    watch      observes in turns beside the loop, and has what is due done by the guard
    pressure   the kernel's triggers, which report a stall as it happens
    managed    what units set by ManagedOOM…=, as rules; systemd-oomd's own configuration

What a rule that is due does is a decision like others: policy/rules.py.
"""
