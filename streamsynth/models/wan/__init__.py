"""Wan 2.1 and 2.2: a video diffusion transformer, its text encoder, schedules and causal autoencoders."""
