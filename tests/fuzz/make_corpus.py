"""Write the seeds of the fuzz corpora, small valid inputs of each target: PYTHONPATH=.:tests python tests/fuzz/make_corpus.py."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import targets
import xxhash
from safetensors.numpy import save

from coordinator_free_bootstrap import Manifest, canonical_json, dump_graph, make_graph
from coordinator_free_bootstrap.errors import Refusal, RefusalCode
from coordinator_free_bootstrap.identity import spiffe_id
from peer.core.encoding import ENCODINGS, encode
from peer.core.messages import (
    Heartbeat,
    HelloReply,
    ModelHeader,
    Numbers,
    Opening,
    Pass,
    Phase,
    PullRequest,
    Select,
    Statistics,
    SumMessage,
)
from peer.identity.certificates import make_certificate
from peer.wire import convert, frames

CORPUS = Path(__file__).parent / "corpus"


def seeds() -> dict[str, list[bytes]]:
    """Return valid inputs of each target."""
    hello = convert.pack_hello(targets.MINE)
    replies = [
        hello,
        convert.pack_hello_reply(HelloReply(targets.MINE, Refusal(RefusalCode.GRAPH_MISMATCH, "why"))),
        convert.pack_heartbeat(Heartbeat(1, 7, 3, Phase.RUNNING)),
        convert.pack_select(Select(1, 7, 0, 1, Numbers.of(1.0, 2.0))),
        convert.pack_pass(Pass(1, 7, 0, 0)),
        convert.pack_statistics(Statistics(1, 7, Numbers.of(1, 2.0))),
        convert.pack_sum(SumMessage(1, 7, 0, Opening.REVEALS, b"tag and what follows")),
        convert.pack_acknowledgement(Refusal(RefusalCode.NO_HANDSHAKE, "why")),
        convert.pack_push_reply(Refusal(RefusalCode.NON_FINITE, "why")),
        convert.pack_pull(PullRequest(1, 7, 1)),
        convert.pack_watch(1.0),
        convert.pack_status({"peer_id": 1, "incarnation": 7, "round_index": 3, "phase": "running"}),
    ]
    theta = np.arange(targets.SCHEMA.size, dtype=np.float32)
    header = ModelHeader(1, 7, 0, 0, 0, 0, 1, 10, 1.0, theta.nbytes, "float32", numbers=Numbers.of(0.5))
    stream = [convert.pack_header(header)]
    stream += [frames.chunk_frame(memoryview(theta.tobytes()[i : i + 16])) for i in range(0, theta.nbytes, 16)]
    stream.append(frames.end_frame(xxhash.xxh3_128(theta.tobytes()).digest()))
    small_model, _size = next(frames.model_frames(convert.pack_header(header), theta.tobytes(), theta.nbytes))
    arrays = save({"slot/0": theta})
    whole = targets._OWNED | {"arrays": targets._described(b"")}
    small = make_graph("ring", 3)
    peer_status = {
        **{
            "peer_id": 1,
            "incarnation": 7,
            "phase": "running",
            "stage": "exchanging",
            "round_index": 3,
            "rounds_total": 60,
        },
        **{
            "persisted_round": 2,
            "waiting_for": [2],
            "owed_to": [4],
            "waiting_s": 1.5,
            "unchanged_s": 1.5,
            "suspicion_s": 5.0,
        },
        **{"neighbors": {"2": "suspect", "4": "alive"}, "neighbor_rounds": {"2": 3}, "silent_s": {"2": 1.0, "4": None}},
        **{
            "metric": {"name": "accuracy", "higher_is_better": True, "share": True, "value": 0.5},
            "cluster_index": 1,
            "totals": {"models_sent": 3},
            "refusals": {"too_slow": 1},
        },
        **{"storage_error": "", "open_streams": 0},
    }
    state = {"mixture": [0.5, 0.5], "confusion": [[1, 2], [3, 4]], "relay": 1.0}
    round_line = {
        **{
            "kind": "round",
            "t": 1.0,
            "time": "2026-11-22T17:00:00+00:00",
            "incarnation": 7,
            "round_index": 0,
            "state": state,
        },
        **{
            "metric_value": 0.5,
            "cluster_index": 1,
            "seconds": {"train": 0.5},
            "models_sent": 2,
            "neighbors_alive": 2,
            "missing": [],
        },
    }
    refused_line = {"kind": "refused", "neighbor": 2, "code": "too_slow", "reason": "\u202e"}
    summary = {
        "status": "completed",
        "metric_value": 0.5,
        "refusals": {"too_slow": 1},
        "algorithm": "dfca",
        "true_cluster": 1,
    }
    fault = {
        "kind": "fault",
        "time": "2026-11-22T17:00:00+00:00",
        "do": "kill",
        "undo": "restart",
        "result": "done",
        "peers": [1],
    }
    files = json.dumps(round_line) + "\n" + json.dumps(refused_line) + "\0" + json.dumps(summary)
    return {
        "status": [b"s" + json.dumps(peer_status).encode(), b"h" + files.encode(), b"t" + json.dumps(fault).encode()],
        "messages": [bytes((kind,)) + data for kind, data in enumerate(replies)],
        "streams": [b"".join(len(f).to_bytes(2, "little") + f for f in sent) for sent in (stream, [small_model])],
        "encodings": [
            bytes((kind,)) + bytes(encode(theta, targets.SCHEMA, encoding)) for kind, encoding in enumerate(ENCODINGS)
        ],
        "handshake": [hello, b'{"clusters": 3, "timeouts": {"suspicion_s": 2}}'],
        "meaning": [
            targets.RECORD.encode(),
            b'{"kind": "regression", "target": "y", "read": ["a"], "open": ["target"]}',
        ],
        "sums": [bytes((kind,)) + data for kind, data in enumerate(targets.SAID)],
        "graph": [
            dump_graph(small).encode(),
            b'{"nodes": [{"id": 0, "address": "a:1"}, {"id": 1, "address": "[::1]:2"}], "links": [{"source": 0, "target": 1}]}',
        ],
        "manifest": [canonical_json(Manifest()).encode(), b'{"clusters": 4, "options": {"relay": true}}'],
        "checkpoint": [
            b"\0" + targets._sealed(json.dumps(whole).encode()),
            b"\1" + json.dumps(whole).encode(),
            b"\2" + arrays,
        ],
        "certificate": [
            make_certificate("lab", 3)[1].pem(),
            make_certificate("lab", "x")[1].text().encode(),
            spiffe_id("lab", 3).encode(),
        ],
    }


if __name__ == "__main__":
    for target, inputs in seeds().items():
        place = CORPUS / target
        place.mkdir(parents=True, exist_ok=True)
        for number, data in enumerate(inputs):
            (place / f"seed-{number}").write_bytes(data)
