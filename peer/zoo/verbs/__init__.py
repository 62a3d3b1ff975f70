"""The verbs `data` and `list`."""
