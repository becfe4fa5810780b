"""A client of the container runtime interface (CRI), which the kubelet speaks: gRPC over a Unix socket.

    client.py     where the runtime's socket is; the calls, typed, and which version of the interface the
                  runtime speaks; one call: HTTP/2 through h2 on a connection of its own, with a deadline
    messages.py   what is asked and answered, by the interface's field numbers; protobuf's wire format to
                  frozen dataclasses and back

It knows nothing of cgroups or of policy. It needs the extra `kubernetes` and is imported only where a
runtime is used.
"""
