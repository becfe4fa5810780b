"""`reactor bench race`: the reactor, what people would pick instead and the floors, on one node in turns.

heat.py                  a course (pace, allocators, load, page cache), and one heat by the C programs' clocks
pressed.py               the same under pressure (pressed.c)
enclosure.py             where contestants run, with nothing else in their reach (enclosure.c)
contestants.py           the reactor by each of its sources, pollers and floors, earlyoom, nohang, oomd
pressed_contestants.py   those of the courses under pressure
meeting.py               rounds of heats, contestants taking turns
results.py               what was measured, as stored; figures, comparisons; the table and the report of it
command.py               the command
"""
