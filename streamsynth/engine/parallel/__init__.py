"""Several processes, with a device each, that run one stage together."""
