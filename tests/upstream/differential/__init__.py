"""Upstream's own eviction and image garbage collection against the project's, on random scenarios.

Layout, and who imports whom (downwards):

    __main__        what can be run: scenarios, mutants, one document
    run             all of it: many seeds, counts, a shrunk example of each kind of difference
    mutants         faults put into the project: the comparison has to see each
    policy_page     docs/policy.md's list of deliberate differences, from `known`
    shrink          the smallest document that still differs in the same way
    sides           one document's answers: the project's and the oracle's, compared
    known           every deliberate difference, in one list
    compare  compare_images  messages  written      what is the same
    scenarios  images  configuration  pods  statistics  draw     documents from a seed
    oracle          asks the programs that build-oracle.sh made of upstream's code
    words           what the documents are written with
"""
