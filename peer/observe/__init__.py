"""What people and monitoring see of a run: status, logs, metrics, progress, the report. Nothing is decided here."""
