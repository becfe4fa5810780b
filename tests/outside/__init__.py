"""Suites that others wrote: fetched when they run, no part of this repository. See `make test-outside`."""
