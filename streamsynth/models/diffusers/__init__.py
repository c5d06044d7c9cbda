"""Any pipeline of diffusers, from a folder in its layout, through the pipeline's own call."""
