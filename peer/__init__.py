"""Federated learning without a server: one process per client, models streamed between graph neighbors."""

__version__ = "0.1.0"
