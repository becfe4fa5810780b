"""Reports of the guard, in the steward's process: journal, metrics, the status socket, the log.

journal         lines on disk; in a thread of its own, because a disk may hang
metrics         the metrics of a scrape; http: the endpoint
status_socket   questions of `reactor status`, `explain` and `top`
connections     clients of both, at a bounded price
events          what operators are notified of; channels: by which ways
log             lines to stderr, of the guard too
"""
