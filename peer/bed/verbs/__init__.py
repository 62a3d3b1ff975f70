"""The verbs `testbed` and `chaos`."""
