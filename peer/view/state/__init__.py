"""One reducer from the events of a run to its state."""
