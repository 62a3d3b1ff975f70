"""Taking a graph file to containers, clusters and devices: nothing here runs inside a round."""
