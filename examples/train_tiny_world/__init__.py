"""Trains tiny-world, the embedded video model. See README.md."""
