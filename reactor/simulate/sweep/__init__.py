"""`reactor simulate --sweep`: many thresholds over recorded scenarios, and what each would have done.

axes      what is varied: `memory.available<100Mi..1Gi/50Mi@30s,2m` to thresholds, and their combinations
outcome   each combination over each scenario: crossings, evictions, time under pressure
command   the scenarios in files, the answers to standard output and files
present   rows to a table, CSV, JSON and a report with plots
"""
