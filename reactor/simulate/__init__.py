"""Scenarios: the same decision under a virtual clock."""
