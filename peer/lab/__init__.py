"""Experiment files, their runs (as processes, or with all peers simulated in one process), and their tables."""
