"""The kill path: a pod's cgroup killed as a whole, its memory freed, its end awaited.

target        a pod as a directory's descriptor and its inode, prepared before the crossing
kill          what is killed, how, and what refused
volley        one signal to every process of a cgroup; fork_limit, freezer: so that none gets away
cpu_boost     CPU for killed processes; release, reap: their memory freed here, their end awaited
untouchable   what is never killed; protect: this process itself; exercise: the whole once, as a trial
"""
