"""`reactor doctor`: what this node offers to reactor, what is missing, and what to do about it."""
