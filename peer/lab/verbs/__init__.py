"""The verb `experiment`."""
