"""Local training and evaluation in PyTorch on flat float32 vectors, without neighbors, rounds and clusters."""
