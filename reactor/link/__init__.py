"""What the guard and the steward say to each other, over one socket pair (SOCK_SEQPACKET).

    frames      guard to steward: documents in pieces of bounded size; the steward trusts the guard
    orders      what they say: the configuration in force, and the directories that are counted
    requests    steward to guard: fixed forms, which the guard checks as if a stranger had sent them
    listings    steward to guard, in pieces: what a Kubernetes node's pods ask for, and what is known of them

Both processes import this; it imports neither of them.
"""
