"""Signed graph files: whose signature is accepted, and which changes break it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from coordinator_free_bootstrap import load_graph, make_graph, save_graph
from coordinator_free_bootstrap.errors import GraphError, IdentityError
from coordinator_free_bootstrap.revision import changes, next_graph, with_changes
from peer.cli.main import app
from peer.identity.certificates import Certificate
from peer.identity.files import KeyFiles, keygen, load_key_pair
from peer.identity.signing import require_signature, signed
from peer.runtime.graph_changes import SharedFile


def owner(home: Path, name: str) -> tuple[KeyFiles, Certificate]:
    files = keygen(home, "federation", name)
    return files, Certificate.from_pem(files.certificate.read_bytes(), name)


@pytest.fixture
def home(tmp_path):
    save_graph(make_graph("ring", 3), tmp_path / "graph.json")
    owner(tmp_path, "owner"), owner(tmp_path, "other")
    return tmp_path


def sign(home: Path, name: str = "owner", *words: object) -> None:
    done = CliRunner().invoke(
        app, ["graph", "sign", str(home / "graph.json"), "--key", str(home / f"{name}.key"), *map(str, words)]
    )
    assert done.exit_code == 0, done.output


def take(home: Path) -> SharedFile:
    return SharedFile(home / "graph.json", owner=home / "owner.pem")


def test_a_file_of_the_owner_is_taken_and_its_form_does_not_matter(home):
    sign(home)
    assert take(home).graph.signature == load_graph(home / "graph.json").signature != ""
    data = json.loads((home / "graph.json").read_text())
    (home / "graph.json").write_text(json.dumps(data, sort_keys=True))
    take(home)
    sign(home), take(home)


def test_no_other_file_is_taken_and_the_error_says_what_to_do(home):
    pin = Certificate.from_pem((home / "owner.pem").read_bytes(), "").fingerprint
    with pytest.raises(
        IdentityError,
        match=rf"signature: expected the signature of an owner, {pin}, got no signature\. Let the owner sign it",
    ):
        take(home)
    sign(home, "other")
    with pytest.raises(IdentityError, match="got one of another key, or of another content"):
        take(home)


@pytest.mark.parametrize(
    ("pattern", "by"),
    [
        ('"rounds": 60', '"rounds": 61'),
        ("7400|1[0-9]{4}", "9"),
        ('"name": "', '"name": "x'),
        ('"edges": \\[', '"edges": [\n    {"source": 0, "target": 9},'),
    ],
)
def test_any_other_content_breaks_the_signature(home, pattern, by):
    sign(home)
    text = (home / "graph.json").read_text()
    changed = re.sub(pattern, by, text, count=1)
    assert changed != text
    (home / "graph.json").write_text(changed)
    with pytest.raises((IdentityError, GraphError)):
        take(home)


def test_the_next_file_needs_a_signature_of_the_owner_or_of_one_that_the_file_names(home):
    import asyncio

    sign(home, "owner", "--next-owner", home / "other.pem")
    file = take(home)
    assert list(changes(make_graph("ring", 3), file.graph)) == ["owners differ: who may sign the next file"]
    following = next_graph(
        file.graph, with_changes(file.graph, manifest=file.graph.manifest.model_copy(update={"rounds": 99}))
    )
    assert following.signature == "" and following.owners == file.graph.owners
    save_graph(following, home / "graph.json")
    with pytest.raises(IdentityError, match="got no signature"):
        asyncio.run(file.read())
    sign(home, "other")
    assert asyncio.run(file.read()).run_digest == following.run_digest
    with pytest.raises(IdentityError, match="of another key"):
        take(home)  # at a start, the certificate that is given decides


def test_wrong_fields_are_refused_by_name(home):
    graph = make_graph("ring", 3)
    for field, value in (("owners", ["!"]), ("signature", "abc")):
        data = json.loads((home / "graph.json").read_text())
        data["graph"][field] = value
        (home / "wrong.json").write_text(json.dumps(data))
        with pytest.raises(GraphError, match=f"{field}: expected base64"):
            load_graph(home / "wrong.json")
    assert signed(graph, load_key_pair(KeyFiles(home / "owner.pem", home / "owner.key"))).signature


def test_random_signatures_are_refused_and_raise_nothing_else(home):
    sign(home)
    data = json.loads((home / "graph.json").read_text())
    certificate = Certificate.from_pem((home / "owner.pem").read_bytes(), "")
    for text in ("AAAA", "MAYCAQACAQA=", data["graph"]["signature"][:-8] + "AAAAAAA="):
        data["graph"]["signature"] = text
        with pytest.raises(IdentityError, match="another key"):
            require_signature(json.dumps(data).encode(), [certificate], "g.json")
