"""What is told of the guard, in the steward's process: journal, metrics, the status socket, the log.

journal         lines on disk; writer: by a thread of its own, whose disk may hang
metrics         what a scrape gives; http: the endpoint, prometheus: its text
status_socket   questions of `reactor status`, `explain` and `top`
connections     clients of both, at a bounded price
restart_loops   pods that are evicted again and again
log             lines to stderr, of the guard too
"""
