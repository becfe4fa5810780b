"""Where pods come from."""
