"""The process that tells: journal, status, metrics. It may end at any moment; the guard starts it again.

It knows what the guard tells it over a socket pair (reactor.link) and what the journal still holds, and has
no state of its own that would be missed.
"""
