"""The commands of `reactor`: a module declares the arguments of some, and calls the functions that run them.

    def add(commands): ...     # its parsers, with `call` set to what the arguments are handed to

Whatever a command needs is imported in that call alone: asking for one command loads no other, and a daemon
holds nothing of what is for people. Options that several commands share are in arguments.py.
"""

from reactor.commands import ask, config, daemon, measure

# In the order in which the help lists them.
COMMANDS = (
    daemon.add_run,
    measure.add_simulate,
    measure.add_record,
    measure.add_shadow,
    measure.add_fleet,
    ask.add_status,
    ask.add_top,
    ask.add_explain,
    ask.add_report,
    ask.add_doctor,
    measure.add_demo,
    measure.add_bench,
    measure.add_tune,
    config.add,
    daemon.add_notify,
    daemon.add_clean,
    daemon.add_cluster,
    daemon.add_managed_oom,
)
