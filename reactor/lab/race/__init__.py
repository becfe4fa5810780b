"""`reactor bench race`: the reactor, what people would pick instead and the floors, on one node in turns.

course.py       what is run: pace, number of allocators, load, page cache
heat.py         one heat of a course, by the clocks of the allocators and an observer
enclosure.py    where contestants run, with nothing else in their reach (enclosure.c)
contestant.py   what a contestant is
own.py          the reactor by each of its sources, pollers and floors
peers.py        earlyoom, nohang, oomd: their programs, with the same threshold and their fastest settings
meeting.py      rounds of heats, contestants taking turns
results.py      what was measured, as stored: figures, spread of the floor, comparisons
report.py       results to a table in the terminal and to a report
command.py      the command
"""
