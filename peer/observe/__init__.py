"""Observability: status, logs, metrics, progress and reports. Nothing here changes the run."""
