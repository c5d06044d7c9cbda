"""Trains tiny-speech: a codec and a talker that speak English, distilled from a synthetic voice."""
