"""A process that keeps the rights which the steward gives up before it reads its first byte.

    __main__    the process: runs the operator's commands, and reads project quotas
    messages    what the steward asks of it
    client      the steward's end
    quotas      the walker's end

The guard says at the start which commands may be run, by a sealed file (`link.orders`); nothing that the
steward says adds to that. The process exists only where commands are configured, or a filesystem keeps
project quotas.
"""
