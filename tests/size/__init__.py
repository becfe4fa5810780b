"""What a reader of the core has to hold, in figures: `make size`.

traced.py    the daemon with a look at every call from the wake to SIGKILL
figures.py   the figures, from the tree and from such a kill
__main__.py  the table, and whether a row is worse than the committed one
"""
