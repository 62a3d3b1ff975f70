"""Keys and certificates: make and read them, and pin their fingerprints in a graph file."""
