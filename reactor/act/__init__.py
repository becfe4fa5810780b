"""The kill path: a pod's cgroup killed as a whole, its memory freed, its end awaited.

target        a pod as a directory's descriptor and its inode, prepared before the crossing
kill          what is killed, how, and what refused
volley        one signal to every process of a cgroup; freezer: no forks meanwhile
release       a victim's memory freed soon: by this process, or by CPU for the victim; reap: its end awaited
untouchable   what is never killed; protect: this process itself; exercise: the whole once, as a trial
"""
