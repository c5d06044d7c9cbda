"""Eight-bit linear layers, made while a model loads, and a cache of them on disk."""
