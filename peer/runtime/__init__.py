"""A running peer: one process that drives its `PeerHost` with asyncio, gRPC and threads."""
