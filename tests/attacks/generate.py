"""Writes the attack corpus, one script per refusal code: ``python tests/attacks/generate.py``, after a change of the wire.

A script says in JSON what the attacker sends, as bytes (``hex``) wherever they are the attack, so that the corpus does not change
when this project's own encoders do. Only what depends on the run (digests, model values) is filled in by `test_attacks.py`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from coordinator_free_bootstrap.errors import Refusal
from coordinator_free_bootstrap.manifest import Limits
from peer.wire.generated import peer_pb2

CORPUS = Path(__file__).parent / "corpus"
MODEL_BYTES = 76_840  # of task digits' own model, float32; the tests hold it
CHUNK = {"chunk": {"slot": 0}}
END = {"end": "true"}

Script = dict[str, Any]


def header(**changes: Any) -> dict[str, str]:
    """Return the first frame of a push by peer 1, wrong in ``changes``."""
    fields: dict[str, Any] = {
        "sender": 1,
        "incarnation": 7,
        "round_index": 0,
        "step": 0,
        "slot": 0,
        "index": 0,
        "total": 1,
        "sample_count": 10,
        "degree": 1,
        "mass": 1.0,
        "size_bytes": MODEL_BYTES,
        "encoding": peer_pb2.ENCODING_FLOAT32,
    }
    frame = peer_pb2.PushFrame(header=peer_pb2.ModelHeader(**(fields | changes)))
    return {"hex": frame.SerializeToString().hex()}


def beat(**changes: Any) -> dict[str, str]:
    """Return a beat by peer 1."""
    fields: dict[str, Any] = {"sender": 1, "incarnation": 7, "phase": peer_pb2.PHASE_RUNNING}
    return {"call": "Beat", "hex": peer_pb2.BeatRequest(**(fields | changes)).SerializeToString().hex()}


def announce(**changes: Any) -> dict[str, str]:
    """Return an announcement by peer 1."""
    fields: dict[str, Any] = {"sender": 1, "incarnation": 7, "total": 1, "selected": -1}
    return {"call": "Announce", "hex": peer_pb2.AnnounceRequest(**(fields | changes)).SerializeToString().hex()}


def push(*frames: dict[str, Any], **options: Any) -> dict[str, Any]:
    """Return a push of frames; ``hold`` leaves the stream open, ``expect: ""`` means that no answer is awaited."""
    return {"call": "PushModel", "frames": list(frames), **options}


def hello(**changes: Any) -> dict[str, Any]:
    """Return a hello that is right but for the changes."""
    return {"call": "Hello", "hello": changes}


def pull(**changes: Any) -> dict[str, str]:
    """Return a pull by peer 1."""
    fields: dict[str, Any] = {"sender": 1, "incarnation": 7, "slot": 0}
    return {"call": "PullModel", "hex": peer_pb2.PullRequest(**(fields | changes)).SerializeToString().hex()}


def raw(call: str, data: bytes) -> dict[str, str]:
    """Return a call with any bytes."""
    return {"call": call, "hex": data.hex()}


SELECTING = {"algorithm": "fedspd", "options": {"first_round": "paper", "align_every": 0}}
LIMITS = Limits()


def scripts() -> dict[Refusal, Script]:
    """Return the attack for each code; every step must be refused with that code."""
    return {
        Refusal.NOT_A_NEIGHBOR: {
            "title": "an observer takes part; it may read status and nothing else",
            "caller": "watcher",
            "steps": [hello(sender=1), beat(), announce(), push(header(), CHUNK, END), pull()],
        },
        Refusal.IDENTITY_MISMATCH: {
            "title": "a neighbor speaks in the name of another one, in every kind of message",
            "steps": [
                hello(sender=2),
                hello(sender=3),
                beat(sender=2),
                announce(sender=2),
                push(header(sender=2), CHUNK, END),
                pull(sender=2),
            ],
        },
        Refusal.INSECURE: {
            "title": "TLS ends in front of the peer, and a neighbor's messages come without a certificate",
            "plaintext": True,
            "handshake": False,
            "steps": [hello(), beat(), announce(), push(header(), CHUNK, END), pull(), raw("Status", b"")],
        },
        Refusal.WIRE_VERSION: {"title": "another version of the wire", "steps": [hello(wire_version=2)]},
        Refusal.MANIFEST_MISMATCH: {
            "title": "another manifest: a text that is none, one with other values, one nested deeply",
            "steps": [
                hello(manifest_digest="0" * 64, manifest="no JSON"),
                hello(manifest_digest="0" * 64, manifest='{"clusters": 64, "\\u001b[31m": "\\n"}'),
                hello(manifest_digest="0" * 64, manifest="[" * 100_000),
            ],
        },
        Refusal.GRAPH_MISMATCH: {"title": "another graph", "steps": [hello(graph_digest="0" * 64)]},
        Refusal.SCHEMA_MISMATCH: {"title": "another model", "steps": [hello(schema_digest="0" * 64)]},
        Refusal.INITIAL_MODELS_MISMATCH: {
            "title": "other first models",
            "steps": [hello(initial_models_digest="0" * 64), hello(initial_models_digest="")],
        },
        Refusal.OLD_INCARNATION: {
            "title": "messages of a life that is over are replayed",
            "steps": [
                beat(incarnation=6),
                announce(incarnation=6),
                push(header(incarnation=6), CHUNK, END),
                pull(incarnation=6),
                hello(incarnation=6),
            ],
        },
        Refusal.NO_HANDSHAKE: {
            "title": "a life that has not shaken hands",
            "steps": [beat(incarnation=8), announce(incarnation=8), push(header(incarnation=8), CHUNK, END)],
            "counted": 0,  # what a restarted peer hears first is no misbehavior
        },
        Refusal.MALFORMED: {
            "title": "bytes that are no message, fields out of range, frames out of order, streams without an end",
            "steps": [
                raw("Hello", b"\xff\xff\xff"),
                hello(incarnation=1 << 60),
                raw("Announce", b"\x0a"),
                raw("Beat", b"\x08\x01"),
                announce(total=-2),
                announce(scalars=[0.0] * 4097),
                announce(scalars=[float("nan")]),
                announce(sketch=b"\0\0\0"),
                push({"hex": "ff"}),
                push(),
                push(CHUNK),
                push(header(), header()),
                push(header(), CHUNK),
                push(header(index=1, total=1), CHUNK, END),
                push(header(mass=float("nan")), CHUNK, END),
                push(header(index=2, total=3), CHUNK, END),
                push(header(), {"hex": "1200"}),
                push(header(), {"chunk": {"slot": 0, "to": 6}}),
                raw("PullModel", b"\xff"),
            ],
        },
        Refusal.TOO_LARGE: {
            "title": "a model over the limit, and a frame one byte over the limit",
            "run": {"limits": {"frame_bytes_max": 1 << 12}},
            "steps": [
                push(header(size_bytes=LIMITS.model_bytes_max + 1), CHUNK, END),
                push(header(), {"chunk": {"slot": 0, "to": (1 << 12) + 4}}),
            ],
        },
        Refusal.WRONG_SIZE: {
            "title": "another size than the schema's: said, sent too much, sent too little",
            "steps": [
                push(header(size_bytes=MODEL_BYTES - 4), CHUNK, END),
                push(header(size_bytes=MODEL_BYTES + 4), CHUNK, END),
                push(header(), CHUNK, {"hex": "120400000000"}),
                push(header(), {"chunk": {"slot": 0, "to": 400}}, END),
            ],
        },
        Refusal.WRONG_ENCODING: {
            "title": "an encoding that is not the run's, one that does not exist, none",
            "steps": [
                push(header(encoding=peer_pb2.ENCODING_INT8), CHUNK, END),
                push(header(encoding=99), CHUNK, END),
                push(header(encoding=0), CHUNK, END),
            ],
        },
        Refusal.ROUND_OUT_OF_RANGE: {
            "title": "rounds and steps that the run does not have",
            "steps": [
                announce(round_index=4),
                announce(step=1),
                push(header(round_index=4), CHUNK, END),
                push(header(step=1), CHUNK, END),
                push(header(round_index=(1 << 31) - 1), CHUNK, END),
            ],
        },
        Refusal.ROUND_TOO_FAR_AHEAD: {
            "title": "three rounds ahead, where two are allowed",
            "steps": [announce(round_index=3), push(header(round_index=3), CHUNK, END)],
        },
        Refusal.SLOT_OUT_OF_RANGE: {
            "title": "slots that the run does not have",
            "steps": [
                push(header(slot=2), CHUNK, END),
                push(header(slot=(1 << 31) - 1), CHUNK, END),
                announce(selected=2),
                pull(slot=2),
            ],
        },
        Refusal.NOT_ANNOUNCED: {
            "title": "a model without a word before it, where a selection is announced",
            "run": SELECTING,
            "steps": [push(header(), CHUNK, END)],
            "after": [announce(total=-1, selected=1)],  # nobody folds before every neighbor has said what it selected
        },
        Refusal.CONTRADICTS_ANNOUNCEMENT: {
            "title": "a selection is announced, then another one, then another model",
            "run": SELECTING,
            "before": [announce(total=-1, selected=1)],
            "steps": [
                announce(total=-1, selected=0),
                push(header(slot=0), CHUNK, END),
                push(header(slot=1, total=2), CHUNK),
            ],
        },
        Refusal.WEIGHT_OUT_OF_RANGE: {
            "title": "a sender says that it counts a lot, or not at all",
            "steps": [
                push(header(sample_count=1_000_001), CHUNK, END),
                push(header(sample_count=0), CHUNK, END),
                push(header(mass=1.0000001e6), CHUNK, END),
                push(header(mass=0.0), CHUNK, END),
            ],
        },
        Refusal.DIGEST_MISMATCH: {
            "title": "other bytes than were hashed, a digest cut short, none",
            "steps": [
                push(
                    header(),
                    CHUNK,
                    {"hex": peer_pb2.PushFrame(end=peer_pb2.ModelEnd(digest=d)).SerializeToString().hex()},
                )
                for d in (b"\0" * 16, b"\0" * 4, b"")
            ],
        },
        Refusal.NON_FINITE: {
            "title": "one NaN, infinities, a norm that overflows; and a sketch with an infinity",
            "steps": [
                push(header(), {"chunk": {"slot": 0, "nan_at": 19209}}, END),
                announce(sketch=b"\0\0\x80\x7f"),
                push(header(), {"chunk": {"slot": 0, "scale": 1e38}}, END),
            ],
        },
        Refusal.NORM_BOUND: {
            "title": "a thousandfold model, where twice the own norm is allowed",
            "run": {"screening": {"norm_bound": 2.0}},
            "steps": [push(header(), {"chunk": {"slot": 0, "scale": 1000.0}}, END)],
        },
        Refusal.LABEL_CONFLICT: {
            "title": "the model of one cluster under the label of another one",
            "run": {"algorithm": "fedspd", "options": {"align_every": 0}},
            "steps": [push(header(total=2), {"chunk": {"slot": 1}}, END)],
        },
        Refusal.TOO_MANY_STREAMS: {
            "title": "one stream more than a neighbor may hold open",
            "run": {"limits": {"streams_per_neighbor": 2}},
            "before": [push(header(), hold=True, expect=""), push(header(slot=1), hold=True, expect="")],
            "steps": [push(header(), CHUNK, END), pull()],
        },
        Refusal.RATE_LIMITED: {
            "title": "more messages than a neighbor may send",
            "run": {"limits": {"requests_per_second": 0.6}},  # a bucket of three, of which the handshake takes one
            "before": [beat(), beat()],
            "steps": [beat(), announce(), hello(), push(header(), CHUNK, END)],
        },
        Refusal.SHUTTING_DOWN: {
            "title": "a peer that has said goodbye is still called",
            "leaving": True,
            "steps": [hello(), announce(), push(header(), CHUNK, END)],
        },
        Refusal.TOO_SLOW: {
            "title": "slow loris: a push without a header, one that stops after it or in the middle, one that trickles",
            "run": {"timeouts": {"idle_transfer_s": 0.2}},
            "steps": [
                push(hold=True),
                push(header(), hold=True),
                push(header(), {"chunk": {"slot": 0, "to": 400}}, hold=True),
                push(header(), trickle_s=0.05),
            ],
        },
    }


def texts() -> dict[str, str]:
    """Return the corpus: file names and contents."""
    return {f"{code}.json": json.dumps({"code": code, **script}, indent=1) + "\n" for code, script in scripts().items()}


if __name__ == "__main__":
    CORPUS.mkdir(exist_ok=True)
    for name, text in texts().items():
        (CORPUS / name).write_text(text)
    print(f"{len(texts())} scripts in {CORPUS}")
