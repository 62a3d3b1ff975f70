"""The verbs `deploy` and `doctor`."""
