"""`reactor doctor`: what this node offers to reactor, what is missing, and the remedy."""
