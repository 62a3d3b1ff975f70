"""Authentication over real sockets: false identities are refused, and true neighbors are not affected by refusals."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import numpy as np
import pytest
from certificates import Issuer, authority, issue
from grpc_health.v1 import health_pb2, health_pb2_grpc
from tools.warm_parent import executed
from wire_support import LIMITS, TIMEOUTS, Recorder, header_of, hello_of, serving

from coordinator_free_bootstrap import Graph, Manifest, Node, save_graph
from coordinator_free_bootstrap.errors import IdentityError, NeighborUnavailable, RefusalCode, RemoteProtocolError
from peer.core.messages import Heartbeat, Pass, Phase, PullRequest, Select
from peer.identity.certificates import Certificate, make_certificate
from peer.identity.files import KeyFiles, KeyPair, keygen
from peer.identity.pinning import pin
from peer.runtime.assembly import LocalSettings
from peer.runtime.process import key_files
from peer.wire.client import NeighborLink
from peer.wire.options import SERVICE
from peer.wire.security import MutualTls, SecureChannel, load_tls

pytestmark = pytest.mark.process

LINE = Graph(tuple(Node(i, f"127.0.0.1:{7400 + i}") for i in range(4)), ((0, 1), (0, 2), (2, 3)))


def pair(federation: str, subject: int | str, **options: Any) -> KeyPair:
    private, certificate = make_certificate(federation, subject, **options)
    return KeyPair(private, certificate, certificate.pem())


PAIRS = {subject: pair("federation", subject) for subject in (0, 1, 2, 3, "laptop")}
GRAPH = pin(LINE, [p.certificate for p in PAIRS.values()])


def tls_of(subject: int | str, graph: Graph = GRAPH, **options: Any) -> MutualTls:
    return MutualTls(graph, subject, PAIRS[subject], **options)


def run(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(60):
            await test()

    asyncio.run(bounded())


@asynccontextmanager
async def peer_0(tls: MutualTls | None = None) -> AsyncIterator[tuple[Recorder, int]]:
    """Serve peer 0, whose neighbors are 1 and 2."""
    tls, recorder = tls or tls_of(0), Recorder(0)
    async with serving(recorder, credentials=tls.server_credentials(), identify=tls.identify) as port:
        yield recorder, port


@asynccontextmanager
async def link_to(port: int, security: SecureChannel | None, peer_id: int = 0) -> AsyncIterator[NeighborLink]:
    link = NeighborLink(peer_id, f"127.0.0.1:{port}", limits=LIMITS, timeouts=TIMEOUTS, security=security)
    try:
        yield link
    finally:
        await link.close()


def as_caller(private: bytes | None, chain: bytes | None) -> SecureChannel:
    """Return a channel to peer 0 with any certificate, or none."""
    return SecureChannel(grpc.ssl_channel_credentials(PAIRS[0].certificate.pem(), private, chain), "peer-0.federation")


def test_authentication_context_of_grpc_has_name_and_certificate_of_the_caller() -> None:
    async def test() -> None:
        facts: dict[str, Any] = {}

        async def note(_data: bytes, context: Any) -> bytes:
            facts.update(context.auth_context())
            return b""

        server = grpc.aio.server()
        handler = grpc.unary_unary_rpc_method_handler(note)
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("S", {"M": handler}),))
        port = server.add_secure_port("127.0.0.1:0", tls_of(0).server_credentials())
        await server.start()
        security = tls_of(1).channel(0)
        options = [("grpc.ssl_target_name_override", security.server_name)]
        async with grpc.aio.secure_channel(f"127.0.0.1:{port}", security.credentials, options=options) as channel:
            await channel.unary_unary("/S/M")(b"")
        await server.stop(0)
        assert facts["transport_security_type"] == [b"ssl"]
        assert facts["peer_spiffe_id"] == [b"spiffe://federation/peer/1"]
        shown = Certificate.from_pem(facts["x509_pem_cert"][0], "shown")
        assert shown.fingerprint == PAIRS[1].certificate.fingerprint

    run(test)


def test_caller_is_the_peer_of_the_client_certificate() -> None:
    async def test() -> None:
        async with peer_0() as (recorder, port):
            for neighbor in (1, 2):
                async with link_to(port, tls_of(neighbor).channel(0)) as link:
                    assert (await link.hello(hello_of(neighbor))).hello.sender == 0
            assert recorder.callers == {1, 2} and not recorder.refusals

    run(test)


def certificate_of_another_authority() -> tuple[bytes | None, bytes | None]:
    return issue(["spiffe://federation/peer/1"], "peer-1.federation", by=authority())


def own_key_with_the_name_of_a_neighbor() -> tuple[bytes | None, bytes | None]:
    made = pair("federation", 1)
    return made.private_key, made.chain


def certificate_of_a_neighbor_without_its_key() -> tuple[bytes | None, bytes | None]:
    return PAIRS[2].private_key, PAIRS[1].chain


def peer_without_an_edge() -> tuple[bytes | None, bytes | None]:
    return PAIRS[3].private_key, PAIRS[3].chain


def no_certificate() -> tuple[bytes | None, bytes | None]:
    return None, None


@pytest.mark.parametrize(
    "attacker",
    [
        certificate_of_another_authority,
        own_key_with_the_name_of_a_neighbor,
        certificate_of_a_neighbor_without_its_key,
        peer_without_an_edge,
        no_certificate,
    ],
)
def test_false_caller_is_rejected_by_tls(attacker: Callable[[], tuple[bytes | None, bytes | None]]) -> None:
    async def test() -> None:
        async with peer_0() as (recorder, port), link_to(port, tls_of(1).channel(0)) as good:
            async with link_to(port, as_caller(*attacker())) as bad:
                with pytest.raises(NeighborUnavailable):
                    await bad.hello(hello_of(1))
                with pytest.raises(NeighborUnavailable):
                    await bad.status()
            assert not recorder.callers
            assert (await good.hello(hello_of(1))).refusal is None
            assert recorder.callers == {1}

    run(test)


def test_plaintext_call_to_a_tls_server_fails() -> None:
    async def test() -> None:
        async with peer_0() as (recorder, port), link_to(port, None) as bad:
            with pytest.raises(NeighborUnavailable):
                await bad.hello(hello_of(1))
            assert not recorder.callers

    run(test)


def by_hand(neighbor: bytes) -> Graph:
    """Return the graph with neighbor 1's certificate replaced by any other one, pinned as its key."""
    parsed = Certificate.from_pem(neighbor, "neighbor")
    nodes = [replace(node) for node in GRAPH.nodes]
    nodes[1] = replace(nodes[1], pins=(parsed.fingerprint,), certificates=(parsed.text(),))
    return replace(GRAPH, nodes=tuple(nodes))


def test_expired_certificate_is_rejected() -> None:
    async def test() -> None:
        old = pair("federation", 1, days=9, now=datetime.now(UTC) - timedelta(days=10))
        async with peer_0(tls_of(0, by_hand(old.chain))) as (recorder, port):
            async with link_to(port, as_caller(old.private_key, old.chain)) as bad:
                with pytest.raises(NeighborUnavailable):
                    await bad.hello(hello_of(1))
            async with link_to(port, tls_of(2).channel(0)) as good:
                await good.hello(hello_of(2))
            assert recorder.callers == {2}

    run(test)


def test_certificate_issued_by_a_neighbor_is_refused() -> None:
    """Neighbor 1's pinned certificate may sign others, so TLS accepts one that it issued for peer 2; the pin check does not."""

    async def test() -> None:
        issuer = authority("spiffe://federation/peer/1")
        forged_key, forged = issue(["spiffe://federation/peer/2"], "peer-2.federation", by=issuer)
        async with peer_0(tls_of(0, by_hand(issuer.pem))) as (recorder, port):
            async with link_to(port, as_caller(forged_key, forged + issuer.pem)) as bad:
                with pytest.raises(RemoteProtocolError, match="is not pinned for spiffe://federation/peer/2") as caught:
                    await bad.hello(hello_of(2))
                assert caught.value.refusal.code is RefusalCode.IDENTITY_MISMATCH
            assert not recorder.callers and recorder.refusals == [RefusalCode.IDENTITY_MISMATCH]

    run(test)


def under(issuer: Issuer, *uris: str) -> SecureChannel:
    return as_caller(*issue(list(uris), "peer-1.federation", by=issuer))


def test_with_an_authority_names_and_pins_are_still_checked() -> None:
    async def test() -> None:
        issuer = authority()
        unpinned = replace(LINE, nodes=(LINE.nodes[0], LINE.nodes[1], *GRAPH.nodes[2:]))
        tls = tls_of(0, unpinned, authorities=issuer.pem)
        async with peer_0(tls) as (recorder, port):
            async with link_to(port, under(issuer, "spiffe://federation/peer/1")) as good:
                await good.hello(hello_of(1))
                assert recorder.callers == {1}
            for uris, code, sentence in (
                (
                    ["spiffe://federation/peer/1", "spiffe://federation/peer/2"],
                    RefusalCode.IDENTITY_MISMATCH,
                    "exactly one",
                ),
                ([], RefusalCode.IDENTITY_MISMATCH, "exactly one"),
                (["spiffe://federation/peer/2"], RefusalCode.IDENTITY_MISMATCH, "is not pinned"),
                (["spiffe://federation/peer/3"], RefusalCode.NOT_A_NEIGHBOR, "no edge to peer 0"),
                (
                    ["spiffe://elsewhere/peer/1"],
                    RefusalCode.IDENTITY_MISMATCH,
                    "expected federation federation, got elsewhere",
                ),
                (["https://federation/peer/1"], RefusalCode.IDENTITY_MISMATCH, "exactly one|certificate URI"),
            ):
                async with link_to(port, under(issuer, *uris)) as bad:
                    with pytest.raises(RemoteProtocolError, match=sentence) as caught:
                        await bad.hello(hello_of(1))
                    assert caught.value.refusal.code is code, uris
            async with link_to(port, under(issuer, "spiffe://federation/observer/any")) as observer:
                assert (await observer.status())["peer_id"] == 0
            assert recorder.callers == {1}

    run(test)


def test_sender_that_is_not_the_peer_of_the_certificate_is_refused() -> None:
    async def test() -> None:
        theta = np.zeros(4, np.float32)
        async with peer_0() as (recorder, port), link_to(port, tls_of(1).channel(0)) as link:
            with pytest.raises(
                RemoteProtocolError, match="expected the authenticated caller, peer 1, got peer 2"
            ) as caught:
                await link.hello(hello_of(2))
            assert caught.value.refusal.code is RefusalCode.IDENTITY_MISMATCH
            assert (await link.heartbeat(Heartbeat(2, 7, 3, Phase.RUNNING))).code is RefusalCode.IDENTITY_MISMATCH
            assert (await link.control(Select(2, 7, 3))).code is RefusalCode.IDENTITY_MISMATCH
            assert (await link.control(Pass(2, 7, 3, 0))).code is RefusalCode.IDENTITY_MISMATCH
            reply = await link.push(header_of(16, sender=2), theta.view(np.uint8))
            assert reply.code is RefusalCode.IDENTITY_MISMATCH
            with pytest.raises(RemoteProtocolError, match="got peer 2"):
                await link.pull(PullRequest(2, 7, 0))
            assert not recorder.callers and not recorder.offers and not recorder.messages
            assert recorder.refusals == [RefusalCode.IDENTITY_MISMATCH] * 6
            assert (await link.hello(hello_of(1))).refusal is None

    run(test)


def test_server_with_the_certificate_of_another_neighbor_is_rejected() -> None:
    async def test() -> None:
        tls = tls_of(2)
        async with serving(Recorder(2), credentials=tls.server_credentials(), identify=tls.identify) as port:
            async with link_to(port, tls_of(0).channel(1), peer_id=1) as link:
                with pytest.raises(RemoteProtocolError, match="has no certificate of peer 1") as caught:
                    await link.hello(hello_of(0))
                assert caught.value.refusal.code is RefusalCode.IDENTITY_MISMATCH
                with pytest.raises(NeighborUnavailable):
                    await link.heartbeat(Heartbeat(0, 7, 3, Phase.RUNNING))
            async with link_to(port, tls_of(0).channel(2), peer_id=2) as link:
                assert (await link.hello(hello_of(0))).hello.sender == 2

    run(test)


def test_with_an_authority_the_server_of_another_peer_is_rejected() -> None:
    async def test() -> None:
        issuer = authority()
        private, chain = issue(["spiffe://federation/peer/2"], "peer-2.federation", by=issuer)
        impostor = MutualTls(LINE, 2, KeyPair(private, Certificate.from_pem(chain, "x"), chain), authorities=issuer.pem)
        mine = issue(["spiffe://federation/peer/0"], "peer-0.federation", by=issuer)
        me = MutualTls(LINE, 0, KeyPair(mine[0], Certificate.from_pem(mine[1], "x"), mine[1]), authorities=issuer.pem)
        async with serving(Recorder(2), credentials=impostor.server_credentials(), identify=impostor.identify) as port:
            async with link_to(port, me.channel(1), peer_id=1) as link:
                with pytest.raises(RemoteProtocolError, match="has no certificate of peer 1"):
                    await link.hello(hello_of(0))
            async with link_to(port, me.channel(2), peer_id=2) as link:
                assert (await link.hello(hello_of(0))).hello.sender == 2

    run(test)


def test_plaintext_server_is_rejected() -> None:
    async def test() -> None:
        async with serving(Recorder(1)) as port, link_to(port, tls_of(0).channel(1), peer_id=1) as link:
            with pytest.raises((NeighborUnavailable, RemoteProtocolError)):
                await link.hello(hello_of(0))

    run(test)


def test_observer_may_read_status_and_health_only() -> None:
    async def test() -> None:
        async with peer_0() as (recorder, port):
            security = tls_of("laptop").channel(0)
            async with link_to(port, security) as link:
                assert (await link.status())["peer_id"] == 0
                async for status, _rounds in link.watch_status(0.05):
                    assert status["phase"] == "running"
                    break
                with pytest.raises(
                    RemoteProtocolError, match="got observer laptop, which may only read status"
                ) as caught:
                    await link.hello(hello_of(1))
                assert caught.value.refusal.code is RefusalCode.NOT_A_NEIGHBOR
                assert (await link.heartbeat(Heartbeat(1, 7, 3, Phase.RUNNING))).code is RefusalCode.NOT_A_NEIGHBOR
                assert (await link.control(Select(1, 7, 3))).code is RefusalCode.NOT_A_NEIGHBOR
                assert (await link.control(Pass(1, 7, 3, 0))).code is RefusalCode.NOT_A_NEIGHBOR
                reply = await link.push(header_of(16, sender=1), np.zeros(16, np.uint8))
                assert reply.code is RefusalCode.NOT_A_NEIGHBOR
                with pytest.raises(RemoteProtocolError, match="observer"):
                    await link.pull(PullRequest(1, 7, 0))
            assert not recorder.callers and not recorder.messages
            options = [("grpc.ssl_target_name_override", security.server_name)]
            async with grpc.aio.secure_channel(f"127.0.0.1:{port}", security.credentials, options=options) as channel:
                health = health_pb2_grpc.HealthStub(channel)
                reply = await health.Check(health_pb2.HealthCheckRequest(service=SERVICE))
                assert reply.status == health_pb2.HealthCheckResponse.SERVING

    run(test)


def test_both_keys_work_while_one_is_rotated() -> None:
    async def test() -> None:
        new = pair("federation", 1)
        graph = pin(GRAPH, [new.certificate], rotate=True)
        async with peer_0(tls_of(0, graph)) as (recorder, port):
            for key in (PAIRS[1], new):
                async with link_to(port, MutualTls(graph, 1, key).channel(0)) as link:
                    await link.hello(hello_of(1))
            assert recorder.callers == {1} and not recorder.refusals
        async with peer_0(tls_of(0, pin(GRAPH, [new.certificate]))) as (recorder, port):
            async with link_to(port, MutualTls(GRAPH, 1, PAIRS[1]).channel(0)) as link:
                with pytest.raises(NeighborUnavailable):
                    await link.hello(hello_of(1))
            assert not recorder.callers
        for server_key in (PAIRS[1], new):  # and as a server: with either key of peer 1
            tls, recorder = MutualTls(graph, 1, server_key), Recorder(1)
            async with (
                serving(recorder, credentials=tls.server_credentials(), identify=tls.identify) as port,
                link_to(port, tls_of(0, graph).channel(1), peer_id=1) as link,
            ):
                assert (await link.hello(hello_of(0))).hello.sender == 1

    run(test)


def test_certificates_that_do_not_match_the_graph_file_are_an_error_at_start(tmp_path: Path) -> None:
    cases = [
        (lambda: MutualTls(GRAPH, 0, PAIRS[1]), "own certificate: expected .*peer/0, got spiffe://federation/peer/1"),
        (lambda: MutualTls(GRAPH, 0, pair("federation", 0)), "expected a key that is pinned for 0"),
        (lambda: tls_of(0, LINE), "peer/1: expected a certificate with a pinned key, got none. Run `peer graph pin"),
        (lambda: tls_of(0, replace(GRAPH, nodes=_without_certificates())), "peer/1: expected a certificate"),
        (
            lambda: MutualTls(replace(GRAPH, edges=((1, 2), (2, 3)), manifest=ALONE), 0, PAIRS[0]).server_credentials(),
            None,
        ),
    ]
    for make, sentence in cases:
        if sentence is None:
            make()
            continue
        with pytest.raises(IdentityError, match=sentence):
            make()
    (tmp_path / "ca.pem").write_text("nothing")
    files = keygen(tmp_path, "federation", 0)
    with pytest.raises(IdentityError, match="got no PEM certificate"):
        load_tls(LINE, 0, files, ca=tmp_path / "ca.pem")


ALONE = Manifest(algorithm="local")


def _without_certificates() -> tuple[Node, ...]:
    return tuple(replace(node, certificates=()) for node in GRAPH.nodes)


def test_certificates_are_read_from_a_folder(tmp_path: Path) -> None:
    graph = replace(GRAPH, nodes=_without_certificates(), observers=())
    for subject in (1, 2):
        (tmp_path / f"peer-{subject}.pem").write_bytes(PAIRS[subject].chain)
    (tmp_path / "stranger.pem").write_bytes(pair("federation", 2).chain)
    (tmp_path / "own.pem").write_bytes(PAIRS[0].chain)
    (tmp_path / "own.key").write_bytes(PAIRS[0].private_key)
    (tmp_path / "own.key").chmod(0o600)
    tls = load_tls(graph, 0, KeyFiles(tmp_path / "own.pem", tmp_path / "own.key"), certs=tmp_path)

    async def test() -> None:
        async with peer_0(tls) as (recorder, port), link_to(port, tls_of(1).channel(0)) as link:
            await link.hello(hello_of(1))
            assert recorder.callers == {1}

    run(test)


@pytest.mark.parametrize(
    ("arguments", "exit_code", "sentence"),
    [
        ([], 20, r"expected the (private key|certificate), got no file.* \(docs/trouble.md#no-key\)"),
        (
            ["--insecure", "--listen", "0.0.0.0:7499"],
            10,
            r"expected a loopback address .* \(docs/trouble.md#loopback-only\)",
        ),
        (["--certs", "open"], 20, "other users can access the private key"),
        (["--certs", "other"], 20, "expected the key of .*, got another key"),
        (["--certs", "expired"], 20, "expired on"),
    ],
)
def test_unusable_key_ends_the_peer_without_plaintext(
    tmp_path: Path, arguments: list[str], exit_code: int, sentence: str
) -> None:
    save_graph(GRAPH, tmp_path / "graph.json")
    files = {"open": pair("federation", 0), "good": pair("federation", 0)}
    files["expired"] = pair("federation", 0, days=9, now=datetime.now(UTC) - timedelta(days=10))
    places = {"open": ("open", "open"), "other": ("good", "open"), "expired": ("expired", "expired")}
    for name, (key, certificate) in places.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "peer-0.pem").write_bytes(files[certificate].chain)
        (tmp_path / name / "peer-0.key").write_bytes(files[key].private_key)
        (tmp_path / name / "peer-0.key").chmod(0o644 if name == "open" else 0o600)
    done = executed("run", "--id", 0, "--neighbors", "graph.json", *arguments, cwd=tmp_path)
    assert done.returncode == exit_code, done.stderr
    assert re.search(sentence, done.stderr), done.stderr
    assert "PRIVATE KEY" not in done.stderr + done.stdout and len(done.stderr.splitlines()) == 1
    assert not (tmp_path / "state/peer-0/history.jsonl").exists()


def test_keys_are_found_by_the_folder(tmp_path: Path) -> None:
    """`peer keygen` names them by the peer; on a device with one peer they may be `peer.pem` and `peer.key`."""
    settings = LocalSettings.at(tmp_path / "state", certs=tmp_path)
    assert key_files(3, settings) == KeyFiles.of(tmp_path, 3)
    plain = KeyFiles(tmp_path / "peer.pem", tmp_path / "peer.key")
    plain.certificate.touch()
    plain.key.touch()
    assert key_files(3, settings) == plain
    assert key_files(3, LocalSettings.at(tmp_path / "state")) == KeyFiles.of(tmp_path / "state" / "identity", 3)
    KeyFiles.of(tmp_path, 3).certificate.touch()
    KeyFiles.of(tmp_path, 3).key.touch()
    assert key_files(3, settings) == KeyFiles.of(tmp_path, 3)
