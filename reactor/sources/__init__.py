"""What wakes the loop: one Trio task a source, each with its fallback."""
