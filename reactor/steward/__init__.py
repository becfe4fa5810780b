"""The process that reports and reads what others write: journal, status, metrics, disks, Kubernetes.

It may end at any moment; the guard restarts it.

It knows what the guard sends over a socket pair (reactor.link) and what the journal still holds, and has
no state of its own that would be missed.
"""
