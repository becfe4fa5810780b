"""Event-driven node-pressure eviction for Linux and Kubernetes nodes.

Read it in the order of one pass:

    sources/    a kernel event or the ticker wakes the loop and says why
    daemon/     the nursery and the loop: observe, decide, act, journal
    observe/    fresh counters of the node and of its pods
    workloads/  the pods of a plain node: cgroups, manifests
    policy/     the decision: a pure function of configuration, state, observations, pods and now
    act/        the kill path
    brake/      memory.high against a hog that outruns the kill

What may be late, hang or die:

    disks/      filesystems, and what pods take of them
    reclaim/    what the node gives back before a pod is evicted
    cluster/    Kubernetes: which pods there are, and what the cluster is told
    steward/    the second process: journal, status, metrics; link/ is what lies between the two

What all of them share:

    model/      the words
    config/     documents (KubeletConfiguration, v1.Pod, reactor's own section) to those words
    kernel/     typed bindings and pure parsers, one module a kernel interface
    kube/ cri/ podman/    protocol clients, without policy
    threads.py  work for a worker thread, which waits where none can be started
    lean_imports.py    imports without what they bring along

For people:

    commands/ terminal/ doctor/    the command line, its tables, what the node offers
    simulate/ tune/ report/        the same decision under a virtual clock; thresholds from measurements
    lab/        a virtual node in a cgroup: demo and benchmarks

Imports go one way, from the commands down to the words; import-linter holds it (pyproject.toml).
"""

__version__ = "0.1.0"
