"""Data sets, splits and models by name, and samples of a program as a task."""
