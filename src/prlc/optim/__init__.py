"""Optimizers on workers and server, and learning rates over time."""
