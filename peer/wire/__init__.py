"""The messages of peers as protobuf over gRPC (proto/WIRE.md). The only package that imports grpc."""

import os

# gRPC's core writes lines to stderr for every failed TLS handshake, without a rate limit: any client could fill the disk.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
# Its handlers start threads in a forked child, such as a worker of a data loader: beside open calls, a fourth of them died
# of SIGSEGV. No child of a peer calls gRPC.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
