"""The process that watches logind, where a shutdown of the node is to be held up for its pods.

__main__.py    the process: ordinary, bounded, ends with the guard
watch.py       a lock, what logind reports, what the guard gets

It decides nothing and ends no pod: the guard does (reactor/guard/node_shutdown.py).
"""
