"""Fuzz targets. The oracle of each: any bytes give a value, or the documented error of the reader, and no other exception.

`test_corpora.py` runs every target over its checked-in corpus; `fuzz.py` runs one under atheris, with coverage feedback.
"""

from __future__ import annotations

import hashlib
import io
import json
import shutil
import tempfile
import unicodedata
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
from rich.console import Console, RenderableType
from tools.sums import RECEIVER, Parties, complete, summed

from coordinator_free_bootstrap import (
    Compared,
    Graph,
    Manifest,
    canonical_json,
    check_hello,
    diff,
    parse_graph,
    parse_manifest,
)
from coordinator_free_bootstrap.errors import ConfigError, IdentityError, RemoteProtocolError, StorageError
from coordinator_free_bootstrap.identity import parse_spiffe_id
from coordinator_free_bootstrap.meaning import MEANING_CHARS_MAX, Meaning, compare, with_known
from coordinator_free_bootstrap.strict_json import loads
from peer.core.checkpoint import Checkpoint
from peer.core.encoding import ENCODINGS, checked_norm_squared, decode
from peer.core.messages import WIRE_VERSION, Hello, Opening, Phase, SumMessage
from peer.core.schema import Schema, TensorSpec
from peer.identity.certificates import Certificate
from peer.secure_sum.arithmetic import TAG_BYTES
from peer.store.checkpoint import CheckpointStore
from peer.store.state_dir import StateDir
from peer.view.live.ask import answered, view_of
from peer.view.live.status_table import status_table
from peer.view.report.faults import spans, timeline_of
from peer.view.report.report import build_report
from peer.view.report.tables import report_view
from peer.view.state.peer_status import read_status
from peer.view.state.run_files import RunFiles
from peer.view.state.tail import OBSERVED, TIMELINE
from peer.view.state.view import View
from peer.wire import convert, frames

SCHEMA = Schema((TensorSpec("weight", (3, 2)), TensorSpec("bias", (2,)), TensorSpec("mean", (), "buffer")))
READERS = (
    convert.unpack_hello,
    convert.unpack_hello_reply,
    convert.unpack_heartbeat,
    convert.unpack_select,
    convert.unpack_pass,
    convert.unpack_statistics,
    convert.unpack_sum,
    convert.unpack_acknowledgement,
    convert.unpack_push_reply,
    convert.unpack_pull,
    convert.unpack_watch,
    convert.unpack_status,
)


def messages(data: bytes) -> None:
    """Every unary message; the first byte selects it."""
    if not data:
        return
    try:
        READERS[data[0] % len(READERS)](data[1:])
    except RemoteProtocolError:
        return


def streams(data: bytes) -> None:
    """A model stream: the input is a sequence of frames with two-byte lengths, parsed as by a receiver."""
    buffer = np.zeros(4 * SCHEMA.size, np.uint8)
    writer = frames.ChunkWriter(buffer, frame_bytes_max=buffer.nbytes, float32=True)
    position, first = 0, True
    try:
        while position + 2 <= len(data):
            size = int.from_bytes(data[position : position + 2], "little")
            frame = frames.read_frame(data[position + 2 : position + 2 + size])
            position += 2 + size
            if first:
                convert.first_header(frame)
                frame, first = frame._replace(header=None), False
            if writer.write(frame):
                assert np.isfinite(buffer.view("<f4")).all()
                return
    except RemoteProtocolError:
        return


def encodings(data: bytes) -> None:
    """The four encodings and an unknown one, of any size; a decoded model is finite or is refused by `norm_squared`."""
    if not data:
        return
    encoding = [*ENCODINGS, "bzip2"][data[0] % 5]
    try:
        theta = decode(data[1:], SCHEMA, encoding)
        assert theta.shape == (SCHEMA.size,) and theta.dtype == np.float32
        with np.errstate(over="ignore"):
            checked_norm_squared(theta)
        assert np.isfinite(theta).all()
    except RemoteProtocolError:
        return


RECORD = Meaning(kind="classification", classes=("a", "b"), columns=("x", "y"), scaled="rs", open=("classes",)).text()
COMPARED = Compared(
    wire_version=WIRE_VERSION,
    manifest_digest="m",
    graph_digest="g",
    schema_digest="s",
    manifest=canonical_json(Manifest()),
    meaning=RECORD,
)
MINE = Hello(**asdict(COMPARED), sender=0, incarnation=1, round_index=0, phase=Phase.RUNNING)


def handshake(data: bytes) -> None:
    """The check of any hello, and of one that differs in its manifest only, which is compared key by key."""
    try:
        theirs = convert.unpack_hello(data)
    except RemoteProtocolError:
        theirs = replace(MINE, sender=1, manifest_digest="x", manifest=data.decode(errors="replace"))
    found = check_hello(MINE, theirs, neighbors=(1, 2), last_incarnation=3)
    assert found is None or (found.reason and "\n" not in found.reason and len(found.reason) < 20_000)


def meaning(data: bytes) -> None:
    """Any text as a neighbor's record of classes and columns."""
    text = data.decode(errors="replace")
    result = compare(RECORD, text, "peer 0", "peer 1")
    assert all(
        said.isprintable() and len(said) < 20_000 for said in (str(result.refusal), *result.warnings, *result.causes)
    )
    assert len(with_known(RECORD, text)) <= MEANING_CHARS_MAX


def graph(data: bytes) -> None:
    """A graph file."""
    try:
        found = parse_graph(data, "g.json")
    except ConfigError:
        return
    assert isinstance(found, Graph)
    _ = found.digest, found.components


def manifest(data: bytes) -> None:
    """The run object of a graph file, and the difference of two manifests."""
    try:
        value = loads(data.decode())
    except ValueError:
        return
    with suppress(ConfigError):
        parse_manifest(value, "g.json")
    diff(canonical_json(Manifest()), data.decode())


def checkpoint(data: bytes) -> None:
    """A checkpoint directory. The first byte selects the part that is the input: manifest, sealed content, or arrays."""
    if not data:
        return
    place = Path(tempfile.mkdtemp(dir=_scratch))
    try:
        home = place / "checkpoint-0000000001"
        home.mkdir()
        hostile, payload = data[1:], b""
        if data[0] % 3 == 0:
            sealed = hostile
        elif data[0] % 3 == 1:
            sealed = _sealed(hostile)
        else:
            payload = hostile
            sealed = _sealed(json.dumps(_OWNED | {"arrays": _described(payload)}).encode())
        (home / "manifest.json").write_bytes(sealed)
        (home / "arrays.safetensors").write_bytes(payload)
        store = CheckpointStore(place, peer_id=1, manifest_digest="m", graph_digest="g", schema_digest="s")
        found = store.load_latest()
        assert isinstance(found, Checkpoint) or len(store.rejected) == 1
    finally:
        shutil.rmtree(place)


_OWNED = {
    "version": 1,
    "sequence": 1,
    "round_index": 3,
    "peer_id": 1,
    "manifest_digest": "m",
    "graph_digest": "g",
    "schema_digest": "s",
    "state": {},
}
_scratch = "/dev/shm" if Path("/dev/shm").is_dir() else None


def _described(payload: bytes) -> dict[str, object]:
    return {"size_bytes": len(payload), "sha256": hashlib.sha256(payload).hexdigest()}


def _sealed(body: bytes) -> bytes:
    return b'{"body":' + body + b',"sha256":"%s"}\n' % hashlib.sha256(body).hexdigest().encode()


def sums(data: bytes) -> None:
    """What neighbors send in secure sums. The first byte selects: a key, the peers of a sum, or a message that opens one."""
    if not data:
        return
    kind, content = data[0] % 6, data[1:]
    receiver, sender = PARTIES.receiver, PARTIES.peers[1]
    if kind == 0:
        refusal = receiver.meets(1, 1, content)
    elif kind == 1:
        refusal = sender.rejects_roster(RECEIVER, PARTIES.round_index, content)
    else:
        opening = [*Opening][kind - 2]
        by, to = (RECEIVER, sender) if opening in (Opening.MEMBERS, Opening.AGREED) else (1, receiver)
        refusal = to.rejects(SumMessage(by, 1, PARTIES.round_index, opening, content))
        known = content in SAID or content[:TAG_BYTES] != receiver._received.roster.tag
        assert opening is not Opening.AGREED or refusal is not None or known, "what two others have not agreed to"
    assert refusal is None or (refusal.reason and len(refusal.reason) < 500)


def said_in_a_sum() -> list[bytes]:
    """Return inputs of `sums`: the key of a peer, a roster, and each kind of message that opens the sum."""
    parties = summed(Parties(complete(4)))
    parties.fix()
    parties.settle()
    first = {kind: data for _, _, kind, data in reversed([m for m in parties.log if 1 in m[:2]])}
    return [parties.peers[1].announcement(1), parties.roster, *(first[kind] for kind in Opening)]


PARTIES = summed(Parties(complete(4)))  # peer 1 has agreed, and the receiver knows the members
PARTIES.fix()
PARTIES.take(*next(message for message in PARTIES.outbox if message[1] == 1))
SAID = said_in_a_sum()


def certificate(data: bytes) -> None:
    """A certificate's PEM, DER in a graph file, and its name."""
    for read in (lambda: Certificate.from_pem(data, "c"), lambda: Certificate.from_text(data.decode("latin1"), "c")):
        try:
            found = read()
            _ = found.fingerprint, found.may_sign_others
        except IdentityError:
            continue
    try:
        parse_spiffe_id(data.decode("latin1"))
    except IdentityError:
        return


def status(data: bytes) -> None:
    """What reports and `peer status` show of a peer. The first byte selects: a status, a history with a summary, a timeline."""
    kind, text = data[:1], data[1:].decode(errors="replace")
    if kind == b"s":
        with suppress(ValueError, RemoteProtocolError):
            _shown(status_table(view_of(None, [answered(read_status(loads(text)))], {})))
        return
    with tempfile.TemporaryDirectory(dir=_scratch) as name:
        place = StateDir(Path(name) / "peer-3")
        place.root.mkdir()
        history, _, summary = text.partition("\0")
        place.history.write_text('{"kind":"start"}\n' + history + "\n", encoding="utf-8")
        with suppress(StorageError):
            if summary:
                place.summary.write_text(summary, encoding="utf-8")
            values = build_report(place.root).values
            json.dumps(values, allow_nan=False)
            _shown(report_view(values))
        for file in (TIMELINE, OBSERVED):
            (Path(name) / file).write_text(history + "\n", encoding="utf-8")
        with suppress(StorageError):
            run = RunFiles.read(Path(name))
            spans(timeline_of(run), 0.0, 1.0)
            json.dumps([View(run.log, None).everything(), View(run.log, None).at(1)], allow_nan=False)


def _shown(renderable: RenderableType) -> None:
    """Print a table and require that no unsafe character reaches the screen."""
    console = Console(file=io.StringIO(), width=80)
    console.print(renderable)
    text = console.file.getvalue().replace("\n", "")  # type: ignore[attr-defined]
    assert not {"Cc", "Cf", "Cs", "Co", "Zl", "Zp"} & set(map(unicodedata.category, text))


TARGETS: dict[str, Callable[[bytes], None]] = {
    each.__name__: each
    for each in (
        messages,
        streams,
        encodings,
        handshake,
        meaning,
        graph,
        manifest,
        checkpoint,
        sums,
        certificate,
        status,
    )
}
