"""Warrants: the kernel is given a decision before its crossing, and kills at the crossing itself.

    certainty   whether it is certain which pod the crossing evicts; pure
    warrants    drafts, arms, renews and withdraws them; one of them: what it was decided on, and what became
                of it; the pods as the kernel knows them

The guard has this prepare before a crossing, and asks it first in each pass (guard/ahead.py).
"""
