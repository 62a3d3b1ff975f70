"""The wire: what peers say, as protobuf over gRPC. The only package that imports grpc."""

import os

# gRPC's core writes lines to stderr for every failed TLS handshake, outside of our rate limit: a stranger could fill a disk.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
