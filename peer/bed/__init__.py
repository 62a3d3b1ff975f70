"""The bed: every peer of a graph as a process on this machine, and faults among them."""
