"""Ending pods and giving back what the node holds."""
