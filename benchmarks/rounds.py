"""What a round costs beside training and evaluation: by number of peers, and by algorithm.

    python benchmarks/rounds.py [--peers 2 4 8 16] [--rounds 20] [--set run.algorithm=dfca] [--repeats 3] [--save]

A testbed of real peers on a complete graph (the densest, and what others measure), an MLP of 85,002 parameters, one epoch a
round. Two figures:

- processor milliseconds per directed model transfer, both ends together: all threads of all peers, without the algorithm's work
  (assigning, training, merging, evaluating). Encoding, folding, heartbeats, history and checkpoints count.
- overhead: the wall time of a round minus its own training and evaluation: sending, waiting for neighbors (also for their
  training, since all peers share this machine's cores), folding, checkpointing.

Without TLS. Two limits, measured in the same run: as many processes that do nothing but push the same bytes to each other with
bare grpc.aio, and wait for all of the others before they do it again (bare); and the same with one message a model, whose bytes
are also copied, hashed, checked and folded, and with one checkpoint of two models a round (floor): what any peer must do.

By algorithm: FedSPD announces before it exchanges, and sends about 1/S of the models; beside DFCA, 8 peers each, in turn. The
median over all rounds and peers; the first rounds, in which peers start, are left out.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import statistics
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from record import new_parser, record
from testbeds import QUICK, loopback_graph, run

from peer.bed.testbed.ports import free_ports
from peer.bed.testbed.testbed import Supervisor
from peer.core.averaging import fold
from peer.host import PeerHost
from peer.runtime.world import AsyncioWorld
from peer.store.checkpoint import CheckpointStore
from peer.wire import frames
from peer.wire.memory import keep_frame_memory

MODEL = ["run.model=mlp", "run.model_options.hidden=[256,256]", "run.local_epochs=1", "run.batch_size=100"]
MODEL_BYTES = 4 * 85_002
AIM_RATIO = 1.5


WARM_UP_ROUNDS = 2  # not measured: handshakes, first allocations


@dataclass
class Measured:
    """Medians over peers and rounds; wall seconds, and processor milliseconds per directed transfer."""

    overhead_s: float
    round_s: float
    own_s: float
    overhead_high_s: float
    transfer_ms: float


def watch_processors() -> None:
    """Let each peer forked from now on write ``processor.json``: its processor seconds without work, after each round."""
    work, record = PeerHost.work, AsyncioWorld.record
    working, lock = [0.0], threading.Lock()
    rounds: list[float] = []

    def timed_work(self: PeerHost, effect: Any) -> Any:
        began = time.thread_time()
        try:
            return work(self, effect)
        finally:
            with lock:
                working[0] += time.thread_time() - began

    def noted_record(self: AsyncioWorld, kind: str, fields: dict[str, Any]) -> None:
        record(self, kind, fields)
        if kind == "round":
            rounds.append(time.process_time() - working[0])
            if len(rounds) == self.manifest.rounds:
                written = self.parts.state_dir.root / "processor.json"
                written.with_suffix(".new").write_text(json.dumps(rounds))
                written.with_suffix(".new").rename(written)

    PeerHost.work, AsyncioWorld.record = timed_work, noted_record  # type: ignore[method-assign]


def measure(peers: int, rounds: int, settings: list[str]) -> Measured:
    """Run a testbed."""
    graph = loopback_graph("complete", peers, [*QUICK, *MODEL, f"run.rounds={rounds}", *settings])
    used: dict[int, float] = {}

    def collect(_bed: Supervisor, out: Path) -> None:
        for path in out.glob("peer-*/processor.json"):
            after = json.loads(path.read_text())
            used[int(path.parent.name.removeprefix("peer-"))] = after[-1] - after[WARM_UP_ROUNDS - 1]

    outcome = run(graph, while_running=collect, insecure=True)
    lines = [line for line in outcome.lines("round") if line["round_index"] > 0]
    folded = sum(line["models_folded"] for line in lines if line["round_index"] >= WARM_UP_ROUNDS)
    if len(used) != peers:
        raise RuntimeError(f"expected the processor seconds of {peers} peers, got those of {sorted(used)}")
    totals = [sum(line["seconds"].values()) for line in lines]
    own = [line["seconds"].get("train", 0) + line["seconds"].get("evaluate", 0) for line in lines]
    overhead = sorted(total - mine for total, mine in zip(totals, own, strict=True))
    high = overhead[int(0.95 * len(overhead))]
    medians = statistics.median(overhead), statistics.median(totals), statistics.median(own)
    return Measured(*medians, high, 1000 * sum(used.values()) / folded)


class Must:
    """What a peer cannot leave out: digest and copy at both ends, norm, fold, and one durable checkpoint a round."""

    def __init__(self, size: int, directory: str) -> None:
        self.model = np.full(size // 4, 0.5, np.float32)
        self._buffer, self._average, self._total = np.empty(size, np.uint8), self.model.copy(), 1.0
        digests = {"manifest_digest": "m", "graph_digest": "g", "schema_digest": "s"}
        self._checkpoints, self._saved = CheckpointStore(Path(directory), peer_id=0, **digests), 0

    def message(self) -> bytes:
        """Return the model as a peer sends it, without a header."""
        (*_, (frame, _size)) = frames.model_frames(b"", self.model.view(np.uint8), self.model.nbytes)
        return frame

    def take(self, message: bytes) -> None:
        """Copy, check and fold a model."""
        writer = frames.ChunkWriter(self._buffer, frame_bytes_max=1 << 20, float32=True)
        writer.write(frames.read_frame(message))
        self._total = fold(self._average, self._total, self._buffer.view(np.float32))

    def save(self) -> None:
        """Write a checkpoint of two models."""
        self._checkpoints.save(self._saved, {"0": self._average, "1": self.model}, {})
        self._saved += 1


def bare_rounds(me: int, ports: list[int], size: int, rounds: int, works: bool, results: Any) -> None:
    """Exchange models of ``size`` bytes with everybody for some rounds; tell wall and processor seconds of each."""
    import grpc.aio

    arrived: asyncio.Queue[int] = asyncio.Queue()

    async def take(_requests: Any, context: Any) -> bytes:
        while await context.read() is not grpc.aio.EOF:
            pass
        arrived.put_nowait(1)
        return b""

    async def push(channel: grpc.aio.Channel, model: bytes) -> None:
        call = channel.stream_unary("/bare/Push")(wait_for_ready=True)
        await call.write(model)
        await call.done_writing()
        await call

    async def main(must: Must | None) -> None:
        async def use(_requests: Any, context: Any) -> bytes:
            assert must is not None
            must.take(await context.read())
            arrived.put_nowait(1)
            return b""

        async def send(channel: grpc.aio.Channel) -> None:
            if must is None:
                await push(channel, model)
            else:
                await channel.unary_unary("/bare/Push")(must.message(), wait_for_ready=True)

        server = grpc.aio.server()
        method = grpc.stream_unary_rpc_method_handler(use if must else take)
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("bare", {"Push": method}),))
        server.add_insecure_port(f"127.0.0.1:{ports[me]}")
        await server.start()
        channels = [grpc.aio.insecure_channel(f"127.0.0.1:{port}") for port in ports if port != ports[me]]
        model, seconds = bytes(size), []
        for _ in range(rounds):
            began, used = time.perf_counter(), time.process_time()
            await asyncio.gather(*map(send, channels))
            for _ in channels:
                await arrived.get()
            if must:
                await asyncio.to_thread(must.save)
            seconds.append((time.perf_counter() - began, time.process_time() - used))
        results.put(seconds)
        await server.stop(5.0)

    with tempfile.TemporaryDirectory() as directory:
        if works:
            keep_frame_memory()
        asyncio.run(main(Must(size, directory) if works else None))


def bare(peers: int, rounds: int, *, works: bool = False) -> tuple[float, float]:
    """Return the median seconds of a round of a limit, and its processor milliseconds per transfer."""
    context = multiprocessing.get_context("fork")  # as the testbed: no import of torch for each
    ports, results = free_ports(peers), context.Queue()
    everybody = [
        context.Process(target=bare_rounds, args=(me, ports, MODEL_BYTES, rounds, works, results))
        for me in range(peers)
    ]
    for process in everybody:
        process.start()
    measured = [results.get(timeout=120)[WARM_UP_ROUNDS:] for _ in everybody]
    for process in everybody:
        process.join()
    wall, processor = zip(*(each for rows in measured for each in rows), strict=True)
    return statistics.median(wall), 1000 * sum(processor) / len(processor) / (peers - 1)


# ---- algorithms ------------------------------------------------------------------------------------------------------

ALGORITHMS, ALGORITHM_AIM = ("dfca", "fedspd"), 1.2
SKIPPED_ROUNDS = 3


def overheads(algorithm: str, peers: int, rounds: int) -> list[float]:
    """Run one testbed; return seconds of overhead of each peer and round."""
    settings = [f"run.algorithm={algorithm}", "run.split=rotated_soft", f"run.rounds={rounds}"]
    settings += [f"run.evaluate_every={rounds}", "run.model_options.hidden=256"]
    outcome = run(loopback_graph("erdos-renyi", peers, settings, seed=1, degree=4), threads=1)
    spent = [line["seconds"] for line in outcome.lines("round") if line["round_index"] >= SKIPPED_ROUNDS]
    return [row["wait"] + row.get("fold", 0.0) + row["other"] for row in spent]


def by_algorithm(peers: int, rounds: int, repeats: int) -> list[list[object]]:
    """Return a row for each algorithm."""
    found: dict[str, list[float]] = {name: [] for name in ALGORITHMS}
    for _ in range(repeats):
        for algorithm in ALGORITHMS:
            found[algorithm] += overheads(algorithm, peers, rounds)
    first = statistics.median(found[ALGORITHMS[0]])
    medians = {name: statistics.median(seconds) for name, seconds in found.items()}
    return [[name, f"{1000 * median:.1f}", f"{median / first:.2f}"] for name, median in medians.items()]


def by_peers(sizes: list[int], rounds: int, settings: list[str]) -> tuple[list[list[object]], list[list[object]]]:
    """Return a row of processor time and one of wall time for each number of peers."""
    watch_processors()
    processor: list[list[object]] = []
    wall: list[list[object]] = []
    for peers in sizes:
        ours = measure(peers, rounds, settings)
        limit_s, limit_ms = bare(peers, rounds)
        floor_ms = bare(peers, rounds, works=True)[1]
        ratios = ours.transfer_ms / limit_ms, floor_ms, ours.transfer_ms / floor_ms
        processor.append([peers, *(f"{value:.2f}" for value in (ours.transfer_ms, limit_ms, *ratios))])
        seconds = ours.overhead_s, ours.overhead_high_s, ours.own_s, ours.round_s, limit_s
        wall.append([peers, *(f"{value:.3f}" for value in seconds), f"{ours.overhead_s / limit_s:.1f}"])
    return processor, wall


def main() -> None:
    """Measure both and print two tables."""
    parser = new_parser(__doc__)
    parser.add_argument("--peers", type=int, nargs="*", default=[2, 4, 8])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--set", dest="settings", action="append", default=[])
    parser.add_argument("--repeats", type=int, default=3, help="testbeds of each algorithm, alternating; 0: none")
    given = parser.parse_args()
    if given.repeats:
        title = "Round overhead by algorithm, 8 peers"
        columns = ["algorithm", "round overhead, ms", f"of {ALGORITHMS[0]}'s (aim {ALGORITHM_AIM})"]
        record("round-algorithms", title, columns, by_algorithm(8, 30, given.repeats), save=given.save)
    if given.peers:
        processor, wall = by_peers(given.peers, given.rounds, given.settings)
        columns = ["peers", "transfer ms", "bare ms", f"ratio (aim {AIM_RATIO})", "floor ms", "of floor"]
        record("rounds", "Round overhead, processor time of a transfer", columns, processor, save=given.save)
        columns = ["peers", "overhead s", "95 %", "train + evaluate s", "round s", "bare exchange s", "overhead / bare"]
        record("rounds-wall", "Round overhead, wall time", columns, wall, save=given.save)


if __name__ == "__main__":
    main()
