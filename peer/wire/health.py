"""Health check of a peer, through the standard gRPC health service (grpc.health.v1)."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from coordinator_free_bootstrap import dns_name
from coordinator_free_bootstrap.errors import IdentityError, NeighborUnavailable, Option
from peer.identity.files import KeyFiles, load_key_pair
from peer.wire.address import dialed


def check_health(address: str, files: KeyFiles | None, timeout_s: float) -> None:
    """Return if the health status of the peer at an address is SERVING.

    Args:
        address: ``host:port``.
        files: the peer's own certificate and key, which its server accepts for this call; None uses plaintext.
        timeout_s: for connecting and the answer together.

    Raises:
        NeighborUnavailable: it does not answer, or its status is not SERVING.
        IdentityError: the key or certificate cannot be used.
    """
    with _channel(address, files) as channel:
        try:
            reply = health_pb2_grpc.HealthStub(channel).Check(
                health_pb2.HealthCheckRequest(), timeout=timeout_s, wait_for_ready=False
            )
        except grpc.RpcError as error:
            raise NeighborUnavailable(f"no answer at {address}: {error.code().name}: {error.details()}") from error
    if reply.status != health_pb2.HealthCheckResponse.SERVING:
        status = health_pb2.HealthCheckResponse.ServingStatus.Name(reply.status)
        raise NeighborUnavailable(f"health of the peer at {address}: expected SERVING, got {status}")


def answers_here(listen: str, files: KeyFiles, timeout_s: float = 2.0) -> bool:
    """Return whether this peer answers on this machine, at the address or only at the port on which it listens.

    Args:
        listen: ``host:port``; the host may be any interface, or the name of a router.
        files: this peer's certificate and key, with which no other peer answers.
        timeout_s: for each address.

    Raises:
        IdentityError: see `check_health`.
    """
    port = listen.rpartition(":")[2]
    for address in (f"127.0.0.1:{port}", f"[::1]:{port}", listen):
        with suppress(NeighborUnavailable):
            check_health(address, files, timeout_s)
            return True
    return False


def own_key_files(folder: Path) -> KeyFiles:
    """Return the key pair of the one peer whose files are in a folder.

    Raises:
        IdentityError: there is no peer key in the folder, or there are several.
    """
    keys = sorted(folder.glob("peer-*.key"))
    if len(keys) != 1:
        raise IdentityError(
            f"{folder}: expected exactly one file peer-*.key, the peer's own, got {len(keys)}. Give its folder with "
            f"{Option('certs')}, or {Option('insecure')} if the peer runs with it."
        )
    return KeyFiles(keys[0].with_suffix(".pem"), keys[0])


def _channel(address: str, files: KeyFiles | None) -> grpc.Channel:
    if files is None:
        return grpc.insecure_channel(dialed(address))
    pair = load_key_pair(files)
    federation, subject = pair.certificate.name
    credentials = grpc.ssl_channel_credentials(pair.certificate.pem(), pair.private_key, pair.chain)
    options = [("grpc.ssl_target_name_override", dns_name(federation, subject))]
    return grpc.secure_channel(dialed(address), credentials, options=options)
