"""Keys and certificates: making them, reading them, writing their fingerprints into a graph file."""
