"""An algorithm and a task, found by the entry points in ``pyproject.toml``."""
