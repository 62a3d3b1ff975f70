"""The verbs `status`, `watch`, `report`, `evaluate`, `predict` and `export`."""
