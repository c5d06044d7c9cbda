"""Real things to test against: the sine engine, a fake clock, a viewer, a fault injector."""
