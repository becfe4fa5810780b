"""The process in systemd-oomd's place: receives what units set by ManagedOOM…=, and keeps it for the guard.

__main__.py    the process: without privileges, run by systemd as systemd-oomd.service
relay.py       what is known of all units, and the file that the guard reads

It decides nothing and kills nothing: the guard does (reactor/rules/managed.py). Interfaces:
io.systemd.ManagedOOM and io.systemd.oom, in systemd's src/shared/varlink-io.systemd.ManagedOOM.c and
varlink-io.systemd.oom.c.
"""
