"""Event-driven node-pressure eviction for Linux and Kubernetes nodes.

Two processes. The guard decides and kills; read it in the order of one pass:

    sources/    a kernel event or the ticker wakes the loop and says why
    guard/      the process: the loop, passes, evictions, state
    observe/    fresh counters of the node and of its pods
    workloads/  which pods exist: cgroups, units, manifests
    policy/     the decision: a pure function of configuration, state, observations, pods and now
    act/        the kill path
    warrants/ oom_scores/ rules/ time_left/ blackbox/    the features, ahead of a crossing or beside the loop

The steward reads what others write, and may hang or die at any moment:

    steward/    the process: its parts, their supervision
    tell/       journal, status, metrics, log
    disks/      filesystems and the pods that fill them
    reclaim/    what is reclaimed before a pod is evicted: commands, containers, images
    cluster/    Kubernetes: the specs of pods, reports of evictions, the node's status, admission

    link/       the messages between the two
    shutdown/ managed_oom/ privileged/    small processes for what neither may do

Shared by both:

    model/      the words
    config/     documents (KubeletConfiguration, v1.Pod, reactor's own section) to those words
    kernel/     typed bindings and pure parsers, one module a kernel interface
    kube/ cri/ podman/    protocol clients, without policy
    http_client.py          HTTP/1.1 by h11 and Trio's streams, for kube/ and podman/
    threads.py  work for a worker thread, which waits where none can be started
    processes.py  imports without the modules that they would load in addition; what a child process has

For people:

    commands/ terminal/ doctor/    the command line, its tables, what the node offers
    simulate/ tune/ shadow/ report/    the same decision under a virtual clock, thresholds, comparisons, pages
    testbed/    a virtual node in a cgroup: the demo, and what tune and the tests measure on

Imports go one way, from the commands down to the words; import-linter holds it (pyproject.toml).
"""

__version__ = "0.1.0"
