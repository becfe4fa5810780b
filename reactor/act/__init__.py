"""The kill path: a pod's cgroup killed as a whole, its memory freed, its end awaited.

target          a pod as a directory's descriptor and its inode, prepared before the crossing; what is spared
kill            what is killed, how, and what refused; kill_path: what comes before it, and after
one_process     one process of a pod in its place
processes       processes by their pidfds, and one signal to all of a cgroup
cgroup_changes  no forks meanwhile, and CPU for the victim: noted, and always restored
reap            the end awaited, and the memory released soon
protect         this process itself
"""
