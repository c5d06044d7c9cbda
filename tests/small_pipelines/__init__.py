"""Pipelines of diffusers at small random sizes, from configurations alone; tokenizers are built here too."""
