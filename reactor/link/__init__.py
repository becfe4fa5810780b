"""What the guard and the steward say to each other, over one socket pair (SOCK_SEQPACKET).

    frames      guard to steward: documents in pieces of bounded size; the steward trusts the guard
    requests    steward to guard: one fixed form, which the guard checks as if a stranger had sent it

Both processes import this; it imports neither of them.
"""
