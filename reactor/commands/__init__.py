"""The commands of `reactor`: each one's module declares its arguments and calls the function that runs it.

    def add(commands): ...     # its parsers, with `call` set to what the arguments are handed to

Whatever a command needs is imported in that call alone: asking for one command loads no other, and a daemon
holds nothing of what is for people. Options that several commands share are in arguments.py.
"""

from reactor.commands import (
    bench,
    config,
    demo,
    doctor,
    explain,
    record,
    run,
    simulate,
    status,
    top,
    tune,
)

# In the order in which the help lists them.
COMMANDS = (
    run,
    simulate,
    record,
    status,
    top,
    explain,
    doctor,
    demo,
    bench,
    tune,
    config,
)
