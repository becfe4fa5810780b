"""What the daemon decides and reports, recorded, so that a change of its core shows each difference.

    core.py        the policy as these records use it; a rewrite of the policy changes this module alone
    deferrals.py   one case for each text of `deferred_because`
    documents.py   the shape of status, explain, metrics and journal
    scenarios.py   fixtures and seeded scenarios through `reactor simulate`
    driver.py      a seeded node through passes and events: evictions, kernel kills, reclaims, rules
    passes.py      passes of real daemons (soak, hostile suites, a race), each decided again
    recording.py   records such daemons
    files.py       the records in tests/fixtures/golden

`python -m tests.golden` records them anew; docs/contributing.md says when that is allowed.
"""
