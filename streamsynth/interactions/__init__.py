"""Steering a video while it is made: what can be asked, when it takes effect, and what is said about it. Pure."""
