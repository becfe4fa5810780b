"""The nursery and the loop: wake, observe, decide, act, journal."""
