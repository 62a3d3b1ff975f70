"""The view: what can be seen of a run, while it lasts and after it."""
