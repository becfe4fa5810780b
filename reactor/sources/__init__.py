"""What wakes the loop: one Trio task a source, each with its fallback.

catalogue      every source, once: name, chain, cgroup version, feature, purpose
wakes          a source leaves a wake for the loop there; the ticker, the last resort of every chain
chain          one source watches at a time, the next stands in; the back-off between attempts
memory         the chain for memory: eBPF, memcg, memory_high; beside it PSI
levels         the usage at which a memory threshold is crossed
processes      the chain for process ids: eBPF, the process connector
oom            the chain for the kernel's OOM kills; oom_steps: ebpf-oom, oom-counters
ebpf_watch     what the eBPF sources of memory and process ids have in common
swap           swap, read as often as it fills
"""
