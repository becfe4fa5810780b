"""The process in systemd-oomd's place: hears what units say of being killed, and tells the guard.

__main__.py        the process: without privileges, run by systemd as systemd-oomd.service
relay.py           what is known of all units, and the file that the guard reads
subscription.py    the system's units, of PID 1, which answers this one unit alone
reports.py         users' units, of their service managers, which come to the socket of systemd-oomd
units.py           what a message says of units
varlink.py         Varlink: JSON objects, each followed by a NUL, of bounded size and in bounded time

It decides nothing and kills nothing: the guard does (reactor/guard/managed_oom.py). Interfaces:
io.systemd.ManagedOOM and io.systemd.oom, in systemd's src/shared/varlink-io.systemd.ManagedOOM.c and
varlink-io.systemd.oom.c.
"""
