"""Chunked autoregressive video: what a rollout remembers, and how its sessions share a device."""
