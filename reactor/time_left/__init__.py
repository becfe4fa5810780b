"""How long until a hard memory threshold is crossed, while that may be soon.

estimate.py  the time left, from samples of what is available; pure
watch.py     samples while memory is short, and has a pass made if a soft eviction would not be in time
"""
