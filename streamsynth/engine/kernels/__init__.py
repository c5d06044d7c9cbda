"""Triton kernels of the decode step, each file with what launches its own. Imported on CUDA alone."""
