"""eBPF: loaders (libbpf, BCC), probes, rings, and what this kernel has of all that."""
