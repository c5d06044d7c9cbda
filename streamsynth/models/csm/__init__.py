"""Talkers in the CSM layout (Sesame): a backbone that reads text and frames, a depth decoder that writes a frame."""
