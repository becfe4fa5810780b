"""Event-driven node-pressure eviction for Linux and Kubernetes nodes.

Read it in the order of one pass:

    sources/    a kernel event or the ticker wakes the loop and says why
    daemon/     the nursery and the loop: observe, decide, act, journal
    observe/    fresh counters of the node and of its pods
    policy/     the decision: a pure function of configuration, state, observations, pods and now
    act/        the kill path, node-level reclaim
    workloads/  where pods come from: cgroups, manifests

    model/      the words that all of them share
    config/     documents (KubeletConfiguration, v1.Pod, reactor's own section) to those words
    kernel/     typed bindings and pure parsers, one module a kernel interface
    threads.py  work for a worker thread, which waits where none can be started
    simulate/   the same decision under a virtual clock
    lab/        a virtual node in a cgroup: demo and benchmarks

Imports go one way: cli -> daemon, simulate, lab -> sources, observe, workloads, act -> kernel ->
config, policy -> model -> errors. import-linter holds it (pyproject.toml).
"""

__version__ = "0.1.0"
