"""Model files: read, evaluated, used for predictions, exported, described."""
