"""What runs inside a worker: the scheduler and what it needs from a model."""
