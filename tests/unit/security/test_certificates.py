"""Key files: modes, dates, matching pairs. Certificates: exactly one name. Pins in a graph."""

import json
import stat
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from certificates import authority, issue
from typer.testing import CliRunner

from coordinator_free_bootstrap import Graph, Manifest, Node, load_graph, save_graph
from coordinator_free_bootstrap.errors import GraphError, IdentityError
from peer.cli.main import app
from peer.identity.certificates import Certificate, make_certificate
from peer.identity.files import KeyFiles, keygen, load_key_pair, mode_problem
from peer.identity.pinning import pin

GRAPH = Graph((Node(0, "127.0.0.1:7400"), Node(1, "127.0.0.1:7401")), ((0, 1),))


def test_keygen_writes_a_private_key_and_a_certificate_with_one_name(tmp_path):
    files = keygen(tmp_path / "certs", "lab", 3)
    assert files == KeyFiles(tmp_path / "certs/peer-3.pem", tmp_path / "certs/peer-3.key")
    assert stat.S_IMODE(files.key.stat().st_mode) == 0o600
    pair = load_key_pair(files)
    assert pair.certificate.name == ("lab", 3) and not pair.certificate.may_sign_others
    assert pair.certificate.fingerprint.startswith("sha256:") and len(pair.certificate.fingerprint) == 71
    assert b"PRIVATE" in pair.private_key and "PRIVATE" not in repr(pair)
    assert Certificate.from_text(pair.certificate.text(), "graph").fingerprint == pair.certificate.fingerprint


def test_keygen_does_not_overwrite_files(tmp_path):
    files = keygen(tmp_path, "lab", "laptop")
    before = files.key.read_bytes()
    with pytest.raises(IdentityError, match=r"laptop\.key: expected no file of this name, .* To rotate"):
        keygen(tmp_path, "lab", "laptop")
    assert files.key.read_bytes() == before


def test_keygen_error_names_the_path_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(IdentityError, match=r"--out: expected a path that can be written, got .*file"):
        keygen(tmp_path / "file", "lab", 3)


def missing(files):
    files.key.unlink()


def missing_certificate(files):
    files.certificate.unlink()


def unreadable(files):
    files.key.unlink()
    files.key.mkdir(mode=0o700)


def too_open(files):
    files.key.chmod(0o604)


def open_to_the_group(files):
    files.key.chmod(0o640)


def no_key(files):
    files.key.write_text("hello")


def no_certificate(files):
    files.certificate.write_bytes(b"\xff")


def swapped(files):
    files.key.write_bytes(make_certificate("lab", 3)[0])


def expired(files):
    rewrite(files, now=datetime.now(UTC) - timedelta(days=10), days=9)


def not_yet_valid(files):
    rewrite(files, now=datetime.now(UTC) + timedelta(days=3))


def too_large(files):
    files.certificate.write_bytes(b"-" * ((1 << 20) + 1))


def rewrite(files, **options):
    private, certificate = make_certificate("lab", 3, **options)
    files.key.write_bytes(private)
    files.certificate.write_bytes(certificate.pem())


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (missing, "expected the private key, got no file. Make one with `peer keygen`"),
        (missing_certificate, r"expected the certificate, got no file\. .* --insecure"),
        (unreadable, "expected the private key, got"),
        (too_open, "expected mode 0600, got 0604.*Run chmod 600"),
        (open_to_the_group, "expected mode 0600, got 0640"),
        (no_key, "expected an unencrypted private key in PEM"),
        (no_certificate, "expected a certificate in PEM"),
        (swapped, "expected the key of .*, got another key"),
        (expired, "expired on .* UTC; make a new one"),
        (not_yet_valid, "valid only from .* clock"),
        (too_large, "expected at most 1048576 bytes, got more"),
    ],
)
def test_damaged_key_files_are_an_identity_error(tmp_path, damage, sentence):
    files = keygen(tmp_path, "lab", 3)
    damage(files)
    with pytest.raises(IdentityError, match=sentence):
        load_key_pair(files)


@pytest.mark.parametrize(
    ("mode", "own", "mounted"),
    [
        (0o600, True, True),
        (0o400, True, True),
        (0o440, False, True),
        (0o640, False, True),
        (0o660, False, False),
        (0o644, False, False),
        (0o604, False, False),
        (0o610, False, False),
        (0o602, False, False),
    ],
)
def test_allowed_modes_of_a_private_key(mode, own, mounted):
    assert (mode_problem(mode, mounted=False) is None) is own
    assert (mode_problem(mode, mounted=True) is None) is mounted


@pytest.mark.parametrize(
    ("uris", "sentence"),
    [
        ([], "expected exactly one URI name in the certificate, got 0"),
        (["spiffe://lab/peer/1", "spiffe://lab/peer/2"], "expected exactly one URI name in the certificate, got 2"),
        (["https://lab/peer/1"], "got 'https"),
        (["spiffe://lab/peer/01"], "got 'spiffe"),
        (["spiffe://lab/admin/1"], "got 'spiffe"),
        (["spiffe://lab/observer/Laptop"], "got 'spiffe"),
    ],
)
def test_certificate_without_exactly_one_spiffe_name_is_refused(uris, sentence):
    _, certificate = issue(uris, "peer-1.lab")
    with pytest.raises(IdentityError, match=sentence):
        Certificate.from_pem(certificate, "x.pem")


def test_pin_writes_keys_at_their_subjects_and_keeps_old_ones_on_rotation(tmp_path):
    first, second, laptop = (make_certificate("federation", subject)[1] for subject in (0, 0, "laptop"))
    graph = pin(GRAPH, [first, laptop])
    assert graph.node(0).pins == (first.fingerprint,) and not graph.node(1).pins
    assert graph.observers[0].pins == (laptop.fingerprint,)
    both = pin(graph, [second], rotate=True)
    assert both.node(0).pins == (first.fingerprint, second.fingerprint) and len(both.node(0).certificates) == 2
    assert both.observers == graph.observers and both.digest == GRAPH.digest
    assert pin(both, [second]).node(0).pins == (second.fingerprint,)
    save_graph(both, tmp_path / "g.json")
    assert load_graph(tmp_path / "g.json") == both
    with pytest.raises(GraphError, match="expected at most 4, got 5"):
        for _ in range(3):
            both = pin(both, [make_certificate("federation", 0)[1]], rotate=True)


def test_wrong_certificates_are_not_pinned():
    for certificate, sentence in (
        (make_certificate("other", 0)[1], "expected federation federation.*, got other"),
        (make_certificate("federation", 7)[1], "expected a peer of the graph, got peer 7"),
        (
            Certificate.from_pem(authority("spiffe://federation/peer/0").pem, "a.pem"),
            "expected a key usage without keyCertSign, got one that",
        ),
    ):
        with pytest.raises(IdentityError, match=sentence):
            pin(GRAPH, [certificate])


def test_keygen_and_graph_pin_commands(tmp_path):
    runner, certs = CliRunner(), tmp_path / "certs"
    save_graph(GRAPH, tmp_path / "g.json")
    for arguments in (["--id", "0"], ["--id", "1"], ["--observer", "laptop"]):
        made = runner.invoke(app, ["keygen", *arguments, "--out", str(certs)])
        assert made.exit_code == 0 and made.stdout.startswith("sha256:")
        assert "PRIVATE" not in made.output
    pems = [str(path) for path in sorted(certs.glob("*.pem"))]
    done = runner.invoke(app, ["graph", "pin", str(tmp_path / "g.json"), pems[1], "--out", str(tmp_path / "h.json")])
    assert done.exit_code == 0 and "peers without a pin: 1" in done.stderr
    assert runner.invoke(app, ["graph", "pin", str(tmp_path / "g.json"), *pems]).exit_code == 0
    assert all(node.pins and node.certificates for node in load_graph(tmp_path / "g.json").nodes)
    assert runner.invoke(app, ["graph", "pin", str(tmp_path / "g.json"), *pems, "--pins-only"]).exit_code == 0
    data = json.loads((tmp_path / "g.json").read_text())
    assert [sorted(node) for node in data["nodes"]] == [["address", "id", "pins"]] * 2
    assert data["graph"]["observers"][0]["name"] == "laptop"
    for wrong in ([], ["--id", "1", "--observer", "x"]):
        assert runner.invoke(app, ["keygen", *wrong, "--out", str(certs)]).exit_code != 0


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"certificates": ("a b",)}, "node 0: certificates: expected base64"),
        ({"certificates": ("A" * 8193,)}, "up to 8192 characters"),
        ({"certificates": ("AA==",) * 5}, "certificates: expected at most 4, got 5"),
    ],
)
def test_invalid_certificates_in_a_graph_file_are_refused(change, sentence):
    with pytest.raises(GraphError, match=sentence):
        replace(GRAPH, nodes=(replace(GRAPH.nodes[0], **change), GRAPH.nodes[1]))


def test_invalid_observers_in_a_graph_file_are_refused():
    from coordinator_free_bootstrap import Observer

    for observers, sentence in (
        ((Observer("a"), Observer("a")), "got .a. 2 times"),
        ((Observer("A b"),), "lower-case letters"),
        (tuple(Observer(f"o{i}") for i in range(257)), "expected at most 256, got 257"),
        ((Observer("a", ("x",)),), "observer .a.: pins"),
    ):
        with pytest.raises(GraphError, match=sentence):
            replace(GRAPH, observers=observers)
    assert len(replace(GRAPH, observers=tuple(Observer(f"o{i}") for i in range(256))).observers) == 256
    assert Graph(GRAPH.nodes, GRAPH.edges, Manifest(), "", (Observer("a"),)).digest == GRAPH.digest
