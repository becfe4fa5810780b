"""A client of podman's REST API, as far as images need it: HTTP/1.1 over a Unix socket.

    client.py   where its socket is; the calls, typed, each on a connection of its own, with a deadline

It knows nothing of cgroups or of policy, and is imported only where there is such a socket.
"""
