"""An algorithm, a task, a split and a model, found by the entry points in ``pyproject.toml``."""
