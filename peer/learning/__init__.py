"""Local training and evaluation in PyTorch, on flat float32 vectors. Knows no neighbors, rounds or clusters."""
