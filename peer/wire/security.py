"""Transport security: mutual TLS with the keys pinned in the graph file, or plaintext on request.

A channel to a neighbor trusts only that neighbor's certificate, so that no other peer, not even another neighbor, can answer
in its place. The server requires a client certificate and takes the caller's identity from gRPC's authentication context
alone: ``peer_spiffe_id`` (which gRPC sets only for a single URI name) and ``x509_pem_cert``, whose key must be pinned for
that name. The pin is checked again here, because a TLS library may accept a certificate that one neighbor has signed with
the name of another.
"""

from __future__ import annotations

import functools
import ipaddress
import logging
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple, TypeAlias

import grpc
import grpc.aio

from coordinator_free_bootstrap import Graph, Node, Observer, Subject, dns_name, parse_spiffe_id, spiffe_id
from coordinator_free_bootstrap.errors import (
    ConfigError,
    ConfigProblem,
    IdentityError,
    Option,
    Refusal,
    RefusalCode,
    RemoteProtocolError,
)
from coordinator_free_bootstrap.graph import Removed, own_address
from coordinator_free_bootstrap.handshake import was_removed
from peer.identity.certificates import Certificate
from peer.identity.expiry import last_end
from peer.identity.files import KeyFiles, KeyPair, load_key_pair, read_file
from peer.identity.sum_keys import PinnedSigner
from peer.wire.address import dialed, listened
from peer.wire.calls import Context
from peer.wire.ports import why_not_bound

log = logging.getLogger("peer")
ChannelOptions: TypeAlias = Sequence[tuple[str, object]]
Checked: TypeAlias = Subject | Refusal
CERTIFICATES_CACHED = 1024  # results of certificate checks; more than a peer has neighbors and observers


class SecureChannel(NamedTuple):
    """Credentials of a channel that accepts exactly one neighbor as its server."""

    credentials: grpc.ChannelCredentials
    server_name: str  # DNS name that the neighbor's certificate must have


class MutualTls:
    """TLS credentials and caller identification of one peer or observer.

    Args:
        graph: with the pins of all peers and observers, and their certificates unless they are in ``others``.
        subject: the own peer id or observer's name.
        pair: its key and certificate.
        others: certificates that are not in the graph.
        authorities: PEM of certificate authorities; trusted for peers that have no certificate here.

    Attributes:
        ends: when the certificates end, its own and those of the callers that it knows.
        on_key: told of each key that a caller shows for the first time, and whose it is.

    Raises:
        IdentityError: the own certificate is not the one of the graph, or a neighbor has no pinned certificate.
    """

    def __init__(
        self,
        graph: Graph,
        subject: Subject,
        pair: KeyPair,
        *,
        others: Sequence[Certificate] = (),
        authorities: bytes | None = None,
    ) -> None:
        self._graph = graph
        self._federation = graph.manifest.federation
        self._subject = subject
        self._pair = pair
        self._authorities = authorities
        self._check_own()
        self.ends: dict[Subject, datetime] = {subject: pair.certificate.parsed.not_valid_after_utc}
        neighbors = graph.neighbors(subject) if isinstance(subject, int) else graph.ids
        self._known: dict[Subject, Node | Observer | Removed] = {n: graph.node(n) for n in neighbors}
        if isinstance(subject, int):
            self._known |= {observer.name: observer for observer in graph.observers}
            self._known |= {each.id: each for each in graph.removed}
        self._roots = {name: self._trusted(name, entry, others) for name, entry in self._known.items()}
        self._checked = functools.lru_cache(CERTIFICATES_CACHED)(self._check_caller)
        self.on_key: Callable[[Subject, str], None] = lambda _subject, _fingerprint: None

    def server_credentials(self) -> grpc.ServerCredentials:
        """Return credentials that require a client certificate of a neighbor, an observer, or an authority."""
        roots = b"".join([pem for pems in self._roots.values() for pem in pems] + [self._authorities or b""])
        if not roots:
            expected = "a certificate of a neighbor or an observer, so that one can connect"
            raise IdentityError(ConfigProblem("graph file", expected, "none", "Run `peer graph pin`."))
        # for `peer health`, which calls as the peer itself and may do nothing else
        roots += self._pair.certificate.pem()
        return grpc.ssl_server_credentials(
            [(self._pair.private_key, self._pair.chain)], roots, require_client_auth=True
        )

    @property
    def fingerprint(self) -> str:
        """Of the own key."""
        return self._pair.certificate.fingerprint

    def signer(self) -> PinnedSigner:
        """Return what signs with the own key, of a peer.

        Raises:
            IdentityError: the graph file has not the certificates that this needs.
        """
        assert isinstance(self._subject, int)  # observers sum nothing
        return PinnedSigner(self._graph, self._subject, self._pair)

    def channel(self, neighbor: int) -> SecureChannel:
        """Return the credentials of a channel to a neighbor, which trust that neighbor's certificate alone."""
        roots = b"".join(self._roots[neighbor]) or self._authorities
        credentials = grpc.ssl_channel_credentials(roots, self._pair.private_key, self._pair.chain)
        return SecureChannel(credentials, dns_name(self._federation, neighbor))

    def problem_with(self, neighbor: int) -> str:
        """Return why no TLS connection to a neighbor can be made now: the own or its certificate is not valid; "" if both are."""
        now = datetime.now(UTC)
        if problem := self._pair.certificate.problem_at(now):
            return f"own certificate: {problem}, and pin it at the neighbors, who refuse this peer until then"
        known = [Certificate.from_pem(pem, f"peer {neighbor}") for pem in self._roots[neighbor]]
        problems = [certificate.problem_at(now) for certificate in known]
        return f"certificate of peer {neighbor}: {problems[0]}" if problems and all(problems) else ""

    def identify(self, context: Context) -> Subject:
        """Return the authenticated caller, from gRPC's authentication context alone.

        Raises:
            RemoteProtocolError: INSECURE without TLS, IDENTITY_MISMATCH for a wrong name or a key that is not pinned,
                NOT_A_NEIGHBOR for a peer without an edge to this one, REMOVED for a former peer.
        """
        facts = context.auth_context()
        if facts.get("transport_security_type") != [b"ssl"] or not facts.get("x509_pem_cert"):
            raise RemoteProtocolError(RefusalCode.INSECURE, "the call has no TLS client certificate")
        verdict = self._checked(facts["x509_pem_cert"][0], tuple(facts.get("peer_spiffe_id", ())))
        if isinstance(verdict, Refusal):
            raise RemoteProtocolError(verdict.code, verdict.reason)
        return verdict

    def _check_caller(self, pem: bytes, names: tuple[bytes, ...]) -> Checked:
        """Return the subject of a certificate that TLS has verified, or the refusal of its caller."""
        if len(names) != 1:
            return Refusal(RefusalCode.IDENTITY_MISMATCH, "the certificate must have exactly one URI name")
        try:
            federation, subject = parse_spiffe_id(names[0].decode(errors="replace"))
            certificate = Certificate.from_pem(pem, "the caller")
        except IdentityError as error:
            return Refusal(RefusalCode.IDENTITY_MISMATCH, str(error))
        if federation != self._federation or certificate.name != (federation, subject):
            return Refusal(
                RefusalCode.IDENTITY_MISMATCH,
                f"certificate: expected federation {self._federation}, got {federation}",
            )
        entry = self._known.get(subject)
        if entry is None:
            if (
                isinstance(subject, str) and self._authorities
            ):  # an authority may name observers, which only read status
                self.on_key(subject, certificate.fingerprint)
                return subject
            return Refusal(
                RefusalCode.NOT_A_NEIGHBOR,
                f"{names[0].decode()} has no edge to peer {self._subject} in the graph file",
            )
        if entry.pins and certificate.fingerprint not in entry.pins:
            return Refusal(
                RefusalCode.IDENTITY_MISMATCH, f"{certificate.fingerprint} is not pinned for {names[0].decode()}"
            )
        if isinstance(entry, Removed):
            return was_removed(self._subject, entry.id)
        self.on_key(subject, certificate.fingerprint)
        return subject

    def _check_own(self) -> None:
        federation, subject = self._pair.certificate.name
        if (federation, subject) != (self._federation, self._subject):
            wanted, given = spiffe_id(self._federation, self._subject), spiffe_id(federation, subject)
            fix = f"Give the folder of this peer's files with {Option('certs')}."
            raise IdentityError(ConfigProblem("own certificate", wanted, given, fix))
        listed = {o.name: o for o in self._graph.observers}
        entry = self._graph.node(self._subject) if isinstance(self._subject, int) else listed.get(self._subject)
        if entry is not None and entry.pins and self._pair.certificate.fingerprint not in entry.pins:
            expected = f"a key that is pinned for {self._subject} in the graph file"
            fix = "Pin it with `peer graph pin` and give all peers the new file, or use the pinned key."
            raise IdentityError(ConfigProblem("own key", expected, self._pair.certificate.fingerprint, fix))

    def _trusted(self, name: Subject, entry: Node | Observer | Removed, others: Sequence[Certificate]) -> list[bytes]:
        """Return the PEM texts of a subject's pinned certificates; empty only where there are authorities."""
        who = spiffe_id(self._federation, name)
        listed = [Certificate.from_text(text, f"graph file: {who}") for text in entry.certificates]
        certificates = [
            certificate
            for certificate in (*listed, *others)
            if certificate.name == (self._federation, name) and certificate.fingerprint in entry.pins
        ]
        now = datetime.now(UTC)
        for certificate in () if isinstance(entry, Removed) else certificates:
            if problem := certificate.problem_at(now):
                log.warning("neighbor's certificate cannot be used: %s: %s", who, problem)
        if end := last_end(certificates):
            self.ends[name] = end
        if not certificates and self._authorities is None and not isinstance(entry, Removed):
            fix = (
                f"Run `peer graph pin graph.json certs/*.pem`, give its certificate with {Option('certs')}, or an authority "
                f"with ca in the file of {Option('options')}."
            )
            raise IdentityError(ConfigProblem(f"graph file: {who}", "a certificate with a pinned key", "none", fix))
        return [certificate.pem() for certificate in certificates]


def load_tls(
    graph: Graph, subject: Subject, files: KeyFiles, *, certs: Path | None = None, ca: Path | None = None
) -> MutualTls:
    """Read keys and certificates; return the TLS of one subject.

    Args:
        graph: of the run.
        subject: the own peer id or observer's name.
        files: its certificate and key.
        certs: a folder of neighbors' certificates (``*.pem``), for graph files that have only pins.
        ca: a bundle of certificate authorities.

    Raises:
        IdentityError: a file is missing, unreadable, expired, not the one in the graph file, or a key is readable by others.
    """
    pair = load_key_pair(files)
    others = []
    for path in sorted(certs.glob("*.pem")) if certs else ():
        others.append(Certificate.from_pem(read_file(path, "certificate"), str(path)))
    authorities = read_file(ca, "CA bundle") if ca else None
    if authorities is not None and b"-----BEGIN CERTIFICATE-----" not in authorities:
        raise IdentityError(
            f"{Option('ca')}: {ca}: expected one or more certificates of authorities, got no PEM certificate"
        )
    return MutualTls(graph, subject, pair, others=others, authorities=authorities)


def require_loopback_or(anywhere: bool, listen: str) -> None:
    """Refuse to serve plaintext at an address that other machines can reach.

    Args:
        anywhere: whether the user accepts that anyone on the network can read and forge models.
        listen: ``host:port``.

    Raises:
        ConfigError: ``listen`` is not a loopback address, and ``anywhere`` is False.
    """
    if anywhere or is_loopback(listen):
        return
    fix = (
        f"Make keys with `peer keygen`, or set insecure_anywhere (peer run: in the file of {Option('options')}) to accept "
        "that anyone on the network can read and forge models. (docs/trouble.md#loopback-only)"
    )
    expected = "a loopback address (127.0.0.1, ::1, localhost) for plaintext"
    raise ConfigError(ConfigProblem(Option("listen"), expected, listen, fix))


def open_channel(address: str, options: ChannelOptions, security: SecureChannel | None) -> grpc.aio.Channel:
    """Open a channel to ``host:port``; plaintext if ``security`` is None. It connects with the first call."""
    target = dialed(address)
    if security is None:
        return grpc.aio.insecure_channel(target, options=options)
    named = [*options, ("grpc.ssl_target_name_override", security.server_name)]
    return grpc.aio.secure_channel(target, security.credentials, options=named)


def bind(server: grpc.aio.Server, listen: str, credentials: grpc.ServerCredentials | None) -> int:
    """Bind ``host:port`` (port 0: any free port); return the port.

    Raises:
        ConfigError: ``listen`` is not ``host:port``, or cannot be bound.
    """
    try:
        own_address(listen)
        target = listened(listen)
    except ValueError as error:
        raise ConfigError(ConfigProblem(Option("listen"), f"{error}, such as 0.0.0.0:7400", repr(listen))) from error
    try:
        port = bind_target(server, target, credentials)
    except RuntimeError:
        port = 0  # gRPC gives no reason
    if port == 0:
        raise ConfigError(_cannot_listen(listen))
    return int(port)


def bind_target(server: grpc.aio.Server, target: str, credentials: grpc.ServerCredentials | None) -> int:
    """Bind gRPC's name of an address or unix socket; return the port.

    Raises:
        RuntimeError: it cannot be bound.
    """
    bound = server.add_secure_port(target, credentials) if credentials else server.add_insecure_port(target)
    return int(bound)


def _cannot_listen(listen: str) -> ConfigProblem:
    host, _, port = listen.rpartition(":")
    try:
        why = why_not_bound(host.strip("[]"), int(port))
    except (OSError, ValueError):
        why = ""
    got = f"{listen}: the address {why or 'cannot be bound'}"
    return ConfigProblem(
        Option("listen"), "a free port of this machine", got, "Choose another port. (docs/trouble.md#port-in-use)"
    )


def is_loopback(listen: str) -> bool:
    """Return whether ``host:port`` is a loopback address; names other than localhost are not resolved."""
    host = listen.rpartition(":")[0].strip("[]")
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
