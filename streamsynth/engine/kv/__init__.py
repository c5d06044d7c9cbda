"""Paged key-value memory: which pages exist, who holds them, and the tensors behind them."""
