"""Secure sums: a receiver learns the weighted sum of its neighbors' models of a round, and none of the models."""
