"""The commands of `reactor`: a module declares the arguments of some, and calls the functions that run them.

    def add(commands): ...     # its parsers, with `call` set to what the arguments are handed to

Whatever a command needs is imported in that call alone: asking for one command loads no other, and a daemon
holds nothing of what is for people. Options that several commands share are in arguments.py.
"""

from reactor.commands import ask, clean, cluster, config, doctor, lab, notify, run, simulate, tune

# In the order in which the help lists them.
COMMANDS = (
    run.add,
    simulate.add_simulate,
    simulate.add_record,
    ask.add_status,
    ask.add_top,
    ask.add_explain,
    doctor.add,
    lab.add_demo,
    lab.add_bench,
    tune.add,
    config.add,
    notify.add,
    clean.add,
    cluster.add,
    run.add_managed_oom,
)
