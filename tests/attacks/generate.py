"""Write the attack corpus, one script per refusal code: ``python tests/attacks/generate.py``, after a change of the wire.

A script is a list of calls in JSON. Their messages are bytes (``hex``), so that a change of this project's encoders does not
change the corpus. `test_attacks.py` fills in only the values that depend on the run: digests and models.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from coordinator_free_bootstrap.errors import RefusalCode
from coordinator_free_bootstrap.manifest import Limits
from peer.core.messages import HEADER_NUMBERS_MAX, Numbers
from peer.wire.generated import peer_pb2

CORPUS = Path(__file__).parent / "corpus"
MODEL_BYTES = 76_840  # of the model of task digits, float32; checked by the tests
DELTA_BYTES = 19_226  # of its change in int8: a byte for each of 19,210 values, and a scale for each of four tensors
CHUNK = {"chunk": {"slot": 0}}
END = {"end": "true"}
HEADER_CHUNK_END = 3  # frames of a complete push

Script = dict[str, Any]


def header(**changes: Any) -> dict[str, str]:
    """Return the first frame of a push of peer 1; valid except for ``changes``."""
    fields: dict[str, Any] = {
        "sender": 1,
        "incarnation": 7,
        "round_index": 0,
        "step": 0,
        "slot": 0,
        "index": 0,
        "total": 1,
        "sample_count": 10,
        "mass": 1.0,
        "size_bytes": MODEL_BYTES,
        "encoding": peer_pb2.ENCODING_FLOAT32,
    }
    frame = peer_pb2.PushFrame(header=peer_pb2.ModelHeader(**(fields | changes)))
    return {"hex": frame.SerializeToString().hex()}


def heartbeat(**changes: Any) -> dict[str, str]:
    """Return a heartbeat of peer 1."""
    fields: dict[str, Any] = {"sender": 1, "incarnation": 7, "phase": peer_pb2.PHASE_RUNNING}
    return {"call": "Heartbeat", "hex": peer_pb2.HeartbeatRequest(**(fields | changes)).SerializeToString().hex()}


def select(**changes: Any) -> dict[str, str]:
    """Return a selection of peer 1."""
    fields: dict[str, Any] = {"sender": 1, "incarnation": 7, "selected": -1}
    return {"call": "Select", "hex": peer_pb2.SelectRequest(**(fields | changes)).SerializeToString().hex()}


def pass_(**changes: Any) -> dict[str, str]:
    """Return a pass of peer 1."""
    fields: dict[str, Any] = {"sender": 1, "incarnation": 7}
    return {"call": "Pass", "hex": peer_pb2.PassRequest(**(fields | changes)).SerializeToString().hex()}


def sum_(**changes: Any) -> dict[str, str]:
    """Return a message of peer 1 that opens a secure sum."""
    fields: dict[str, Any] = {"sender": 1, "incarnation": 7, "kind": peer_pb2.OPENING_MEMBERS, "data": bytes(40)}
    return {"call": "Sum", "hex": peer_pb2.SumRequest(**(fields | changes)).SerializeToString().hex()}


def push(*frames: dict[str, Any], **options: Any) -> dict[str, Any]:
    """Return a push of frames.

    Options: ``hold`` leaves the stream open, ``expect: ""`` does not wait for the answer, ``whole`` puts all frames into one
    message.
    """
    return {"call": "PushModel", "frames": list(frames), **options}


def hello(**changes: Any) -> dict[str, Any]:
    """Return a hello of peer 1; valid except for ``changes``."""
    return {"call": "Hello", "hello": changes}


def pull(**changes: Any) -> dict[str, str]:
    """Return a pull of peer 1."""
    fields: dict[str, Any] = {"sender": 1, "incarnation": 7, "slot": 0}
    return {"call": "PullModel", "hex": peer_pb2.PullRequest(**(fields | changes)).SerializeToString().hex()}


def raw(call: str, data: bytes) -> dict[str, str]:
    """Return a call with any bytes."""
    return {"call": call, "hex": data.hex()}


FILES = [digit * 64 for digit in "123"]  # digests of graph files
SELECTING = {"algorithm": "fedspd", "options": {"first_round": "paper", "align_every": 0}}


def scripts() -> dict[RefusalCode, Script]:
    """Return the attack for each code; every step must be refused with that code."""
    return {
        RefusalCode.NOT_A_NEIGHBOR: {
            "title": "an observer sends the messages of a peer",
            "caller": "watcher",
            "steps": [hello(sender=1), heartbeat(), pass_(), sum_(), push(header(), CHUNK, END), pull()],
        },
        RefusalCode.IDENTITY_MISMATCH: {
            "title": "a neighbor sends every kind of message with the sender of another peer",
            "steps": [
                hello(sender=2),
                hello(sender=3),
                heartbeat(sender=2),
                pass_(sender=2),
                sum_(sender=2),
                push(header(sender=2), CHUNK, END),
                pull(sender=2),
            ],
        },
        RefusalCode.INSECURE: {
            "title": "TLS is terminated in front of the peer, and messages come without a certificate",
            "plaintext": True,
            "handshake": False,
            "steps": [hello(), heartbeat(), pass_(), sum_(), push(header(), CHUNK, END), pull(), raw("Status", b"")],
        },
        RefusalCode.WIRE_VERSION: {"title": "another wire version", "steps": [hello(wire_version=1)]},
        RefusalCode.MANIFEST_MISMATCH: {
            "title": "another manifest: invalid JSON, other values, deep nesting",
            "steps": [
                hello(manifest_digest="0" * 64, manifest="no JSON"),
                hello(manifest_digest="0" * 64, manifest='{"clusters": 64, "\\u001b[31m": "\\n"}'),
                hello(manifest_digest="0" * 64, manifest="[" * 100_000),
            ],
        },
        RefusalCode.GRAPH_MISMATCH: {"title": "another graph", "steps": [hello(graph_digest="0" * 64)]},
        RefusalCode.REVISION_BEHIND: {
            "title": "a graph file that is two revisions old; one revision old, with keys that both ends must have in common",
            "earlier": [FILES[0], FILES[1]],
            "steps": [
                hello(graph_digest=FILES[1]),
                hello(graph_digest=FILES[0], manifest='{"pace": "async"}'),
                hello(graph_digest=FILES[0], manifest="no JSON"),
            ],
        },
        RefusalCode.REVISION_AHEAD: {
            "title": "a graph file that is two revisions later; one later that has no manifest",
            "steps": [
                hello(graph_digest=FILES[2], continues=[FILES[1], "target"]),
                hello(graph_digest=FILES[2], continues=["target"], manifest="["),
            ],
        },
        RefusalCode.REMOVED: {
            "title": "a former peer goes on with its key",
            "removed": True,
            "steps": [
                hello(),
                hello(continues=["target"]),
                heartbeat(),
                pass_(),
                sum_(),
                push(header(), CHUNK, END),
                pull(),
            ],
        },
        RefusalCode.MEANING_MISMATCH: {
            "title": "other classes; no record, invalid JSON, deep nesting, text that would forge a log line",
            "steps": [
                hello(meaning='{"kind":"classification","classes":["\u001b[31m\\n","b"]}'),
                hello(meaning='{"kind":{"a":[[[]]]},"classes":7}'),
                hello(meaning=""),
                hello(meaning="no JSON"),
                hello(meaning="[" * 100_000),
            ],
        },
        RefusalCode.SCHEMA_MISMATCH: {"title": "another model", "steps": [hello(schema_digest="0" * 64)]},
        RefusalCode.FROZEN_MISMATCH: {"title": "another frozen base", "steps": [hello(frozen_digest="0" * 32)]},
        RefusalCode.INITIAL_MODELS_MISMATCH: {
            "title": "other initial models",
            "steps": [hello(initial_models_digest="0" * 64), hello(initial_models_digest="")],
        },
        RefusalCode.OLD_INCARNATION: {
            "title": "messages of an earlier incarnation are replayed",
            "steps": [
                heartbeat(incarnation=6),
                pass_(incarnation=6),
                sum_(incarnation=6),
                push(header(incarnation=6), CHUNK, END),
                pull(incarnation=6),
                hello(incarnation=6),
            ],
        },
        RefusalCode.NO_HANDSHAKE: {
            "title": "messages of an incarnation without a handshake",
            "steps": [
                heartbeat(incarnation=8),
                pass_(incarnation=8),
                sum_(incarnation=8),
                push(header(incarnation=8), CHUNK, END),
            ],
            "counted": 0,  # a restarted peer gets this refusal first, so it is not counted
        },
        RefusalCode.MALFORMED: {
            "title": "bytes that are no message, fields out of range, frames out of order, streams without an end",
            "steps": [
                raw("Hello", b"\xff\xff\xff"),
                hello(incarnation=1 << 60),
                raw("Select", b"\x0a"),
                raw("Pass", b"\x0a"),
                raw("Heartbeat", b"\x08\x01"),
                raw("Sum", b"\xff"),
                raw("Sum", b"\x08\x01"),
                sum_(),  # the run has no secure sums
                sum_(kind=0),
                sum_(kind=99),
                sum_(data=b""),
                sum_(data=bytes((1 << 15) + 1)),
                sum_(round_index=(1 << 31)),
                select(roster=bytes(200)),
                select(roster=bytes((1 << 17) + 1)),
                push(header(shares=bytes(200)), CHUNK, END),
                push(header(shares=bytes((1 << 15) + 1)), CHUNK, END),
                select(selected=-2),
                select(numbers=bytes(7)),
                push(header(numbers=bytes(8 * (HEADER_NUMBERS_MAX + 1))), CHUNK, END),
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
        RefusalCode.TOO_LARGE: {
            "title": "a model and a frame over their limits",
            "limits": {"frame_bytes_max": 1 << 12},
            "steps": [
                push(header(size_bytes=Limits().model_bytes_max + 1), CHUNK, END),
                push(header(), {"chunk": {"slot": 0, "to": (1 << 12) + 4}}),
            ],
        },
        RefusalCode.WRONG_SIZE: {
            "title": "a size that is not the schema's: in the header, too many bytes, too few bytes",
            "steps": [
                push(header(size_bytes=MODEL_BYTES - 4), CHUNK, END),
                push(header(size_bytes=MODEL_BYTES + 4), CHUNK, END),
                push(header(), CHUNK, {"hex": "120400000000"}),
                push(header(), {"chunk": {"slot": 0, "to": 400}}, END),
            ],
        },
        RefusalCode.WRONG_ENCODING: {
            "title": "an encoding that is not the run's, an unknown one, none",
            "steps": [
                push(header(encoding=peer_pb2.ENCODING_INT8), CHUNK, END),
                push(header(encoding=99), CHUNK, END),
                push(header(encoding=0), CHUNK, END),
            ],
        },
        RefusalCode.NO_BASE: {
            "title": "a delta from a model that the peer does not have",
            "run": {"encoding": "delta_int8"},
            "steps": [
                push(
                    header(encoding=peer_pb2.ENCODING_DELTA_INT8, base=base, size_bytes=DELTA_BYTES),
                    {"chunk": {"slot": 0, "to": DELTA_BYTES}},
                    END,
                )
                for base in (1, (1 << 64) - 1)
            ],
            "counted": 0,  # a restart causes it too
        },
        RefusalCode.ROUND_OUT_OF_RANGE: {
            "title": "rounds and steps that the run does not have",
            "steps": [
                pass_(round_index=4),
                pass_(step=1),
                push(header(round_index=4), CHUNK, END),
                push(header(step=1), CHUNK, END),
                push(header(round_index=(1 << 31) - 1), CHUNK, END),
            ],
        },
        RefusalCode.ROUND_TOO_FAR_AHEAD: {
            "title": "three rounds ahead, two are allowed",
            "steps": [pass_(round_index=3), push(header(round_index=3), CHUNK, END)],
        },
        RefusalCode.SLOT_OUT_OF_RANGE: {
            "title": "slots that the run does not have",
            "steps": [
                push(header(slot=2), CHUNK, END),
                push(header(slot=(1 << 31) - 1), CHUNK, END),
                select(selected=2),
                pull(slot=2),
            ],
        },
        RefusalCode.NOT_SELECTED: {
            "title": "a model without a selection before it, in a run that selects",
            "run": SELECTING,
            "steps": [push(header(), CHUNK, END)],
            "after": [select(selected=1)],  # no model is folded before all neighbors have sent their selection
        },
        RefusalCode.CONTRADICTS_SELECTION: {
            "title": "a selection, then another one of the same round, then models that do not match it",
            "run": SELECTING,
            "before": [select(selected=1)],
            "steps": [
                select(selected=0),
                push(header(slot=0), CHUNK, END),
                push(header(slot=1, total=2), CHUNK),
            ],
        },
        RefusalCode.WEIGHT_OUT_OF_RANGE: {
            "title": "a weight or sample count that is too large, or zero",
            "steps": [
                push(header(sample_count=1_000_001), CHUNK, END),
                push(header(sample_count=0), CHUNK, END),
                push(header(mass=1.0000001e6), CHUNK, END),
                push(header(mass=0.0), CHUNK, END),
            ],
        },
        RefusalCode.DIGEST_MISMATCH: {
            "title": "a wrong digest, a short one, none",
            "steps": [
                push(
                    header(),
                    CHUNK,
                    {"hex": peer_pb2.PushFrame(end=peer_pb2.ModelEnd(digest=d)).SerializeToString().hex()},
                )
                for d in (b"\0" * 16, b"\0" * 4, b"")
            ],
        },
        RefusalCode.NON_FINITE: {
            "title": "one NaN, infinities, a norm that overflows; numbers with a NaN and an infinity",
            "steps": [
                push(header(), {"chunk": {"slot": 0, "nan_at": 19209}}, END),
                select(numbers=Numbers.of(float("inf")).data),
                push(header(numbers=Numbers.of(float("nan")).data), CHUNK, END),
                push(header(), {"chunk": {"slot": 0, "scale": 1e38}}, END),
            ],
        },
        RefusalCode.NORM_BOUND: {
            "title": "a model scaled by 1000, twice the own norm is allowed",
            "run": {"screening": {"norm_bound": 2.0}},
            "steps": [push(header(), {"chunk": {"slot": 0, "scale": 1000.0}}, END)],
        },
        RefusalCode.LABEL_CONFLICT: {
            "title": "the model of one cluster with the tag of another",
            "run": {"algorithm": "fedspd", "options": {"align_every": 0}},
            "steps": [push(header(total=2), {"chunk": {"slot": 1}}, END)],
        },
        RefusalCode.TOO_MANY_STREAMS: {
            "title": "one stream more than a neighbor may have open",
            "limits": {"streams_per_neighbor": 2},
            "before": [push(header(), hold=True, expect=""), push(header(slot=1), hold=True, expect="")],
            "steps": [push(header(), CHUNK, END), pull()],
        },
        RefusalCode.RATE_LIMITED: {
            "title": "more messages than a neighbor may send",
            "limits": {"requests_per_second": 0.6},  # a bucket of three, of which the handshake takes one
            "before": [heartbeat(), heartbeat()],
            "steps": [heartbeat(), pass_(), sum_(), hello(), push(header(), CHUNK, END)],
        },
        RefusalCode.SHUTTING_DOWN: {
            "title": "calls to a peer that is leaving",
            "leaving": True,
            "steps": [hello(), pass_(), sum_(), push(header(), CHUNK, END)],
            "counted": 0,  # a neighbor that calls a peer that leaves does nothing wrong
        },
        RefusalCode.TOO_SLOW: {
            "title": "slow loris: a push without a header, one that stops after the header or in the middle, one of tiny chunks",
            "run": {"timeouts": {"suspicion_s": 0.1}},
            "steps": [
                push(hold=True),
                push(header(), hold=True),
                push(header(), {"chunk": {"slot": 0, "to": 400}}, hold=True),
                push(header(), trickle_s=0.05),
            ],
        },
    }


def also_whole(script: Script) -> Script:
    """Return an attack with each complete push made once more, as one message."""

    def is_complete(frames: list[dict[str, str]]) -> bool:
        return len(frames) == HEADER_CHUNK_END and (frames[-1] == END or frames[-1].get("hex", "").startswith("1a"))

    whole = [{**step, "whole": True} for step in script["steps"] if is_complete(step.get("frames", []))]
    return {**script, "steps": [*script["steps"], *whole]}


def texts() -> dict[str, str]:
    """Return the corpus: file names and contents."""
    made = {code: {"code": code, **also_whole(script)} for code, script in scripts().items()}
    return {f"{code}.json": json.dumps(script, indent=1) + "\n" for code, script in made.items()}


if __name__ == "__main__":
    CORPUS.mkdir(exist_ok=True)
    for name, text in texts().items():
        (CORPUS / name).write_text(text)
    print(f"{len(texts())} scripts in {CORPUS}")
