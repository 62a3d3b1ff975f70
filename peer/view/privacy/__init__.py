"""What a run tells of its peers: from the graph, and from the models that it sent."""
