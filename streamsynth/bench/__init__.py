"""Benchmarks: what a listener, a client and an operator would measure, with the names of the field."""
