"""The messages of peers as protobuf over gRPC (proto/WIRE.md). The only package that imports grpc."""

import os

# gRPC's core writes lines to stderr for every failed TLS handshake, without a rate limit: any client could fill the disk.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
