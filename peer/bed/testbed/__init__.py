"""A testbed: every peer of a graph as a process on this machine."""
