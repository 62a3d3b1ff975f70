"""Benchmark 2, round overhead: seconds of a round that are neither training nor evaluation, by number of peers.

A testbed of real peers on a complete graph (the densest, and what others measure), an MLP of 85,002 parameters, one epoch a
round. A peer's overhead is the wall time of its round minus its own training and evaluation: sending, waiting for neighbors (also
for their training, since all peers share this machine's cores), folding, checkpointing.

The limit, measured in the same run: as many processes that do nothing but push the same bytes to each other with bare grpc.aio,
without TLS, and wait for all of the others before they do it again.

    python benchmarks/round_overhead.py [--peers 2 4 8 16] [--rounds 20] [--set run.algorithm=dfca] [--markdown FILE]
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import statistics
import time
from pathlib import Path
from typing import Any

from common import show
from testbeds import QUICK, loopback_graph, run

from peer.testbed.testbed import free_ports

MODEL = ["run.model=mlp", "run.model_options.hidden=[256,256]", "run.local_epochs=1", "run.batch_size=100"]
MODEL_BYTES = 4 * 85_002
# Earlier measurements of others on such a machine, same model and data: seconds per round, of which 0.25 are training.
P2PFL_S = {2: 2.47, 4: 3.49, 8: 7.2}


def measure(peers: int, rounds: int, settings: list[str]) -> tuple[float, float, float, float]:
    """Return the medians of overhead, round, training seconds, and the 95th percentile of overhead."""
    graph = loopback_graph("complete", peers, [*QUICK, *MODEL, f"run.rounds={rounds}", *settings])
    lines = [line for line in run(graph).lines("round") if line["round_index"] > 0]
    totals = [sum(line["seconds"].values()) for line in lines]
    own = [line["seconds"].get("train", 0) + line["seconds"].get("evaluate", 0) for line in lines]
    overhead = sorted(total - mine for total, mine in zip(totals, own, strict=True))
    return (
        statistics.median(overhead),
        statistics.median(totals),
        statistics.median(own),
        overhead[int(0.95 * len(overhead))],
    )


def bare_rounds(me: int, ports: list[int], size: int, rounds: int, results: Any) -> None:
    """Exchange models of ``size`` bytes with everybody for some rounds; tell the seconds of each."""
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

    async def main() -> None:
        server = grpc.aio.server()
        handler = grpc.method_handlers_generic_handler("bare", {"Push": grpc.stream_unary_rpc_method_handler(take)})
        server.add_generic_rpc_handlers((handler,))
        server.add_insecure_port(f"127.0.0.1:{ports[me]}")
        await server.start()
        channels = [grpc.aio.insecure_channel(f"127.0.0.1:{port}") for port in ports if port != ports[me]]
        model, seconds = bytes(size), []
        for _ in range(rounds):
            began = time.perf_counter()
            await asyncio.gather(*(push(channel, model) for channel in channels))
            for _ in channels:
                await arrived.get()
            seconds.append(time.perf_counter() - began)
        results.put(seconds)
        await server.stop(5.0)

    asyncio.run(main())


def bare(peers: int, rounds: int) -> float:
    """Return the median seconds of a round of the limit."""
    context = multiprocessing.get_context("spawn")
    ports, results = free_ports(peers), context.Queue()
    everybody = [
        context.Process(target=bare_rounds, args=(me, ports, MODEL_BYTES, rounds, results)) for me in range(peers)
    ]
    for process in everybody:
        process.start()
    seconds = [results.get(timeout=120) for _ in everybody]
    for process in everybody:
        process.join()
    return statistics.median(s for each in seconds for s in each[2:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", type=int, nargs="+", default=[2, 4, 8, 16])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--set", dest="settings", action="append", default=[])
    parser.add_argument("--markdown", type=Path)
    options = parser.parse_args()
    rows = []
    for peers in options.peers:
        overhead, total, own, high = measure(peers, options.rounds, options.settings)
        theirs = P2PFL_S.get(peers)
        ratio = f"{(theirs - 0.25) / overhead:.0f}x" if theirs else ""
        limit = bare(peers, options.rounds)
        measured = [f"{overhead:.3f}", f"{high:.3f}", f"{own:.3f}", f"{total:.3f}"]
        rows.append([peers, *measured, f"{limit:.3f}", f"{overhead / limit:.1f}", theirs or "", ratio])
    limits = ["bare exchange s", "overhead / bare", "p2pfl round s", "p2pfl / overhead"]
    header = ["peers", "overhead s", "95 %", "train + evaluate s", "round s", *limits]
    show("Round overhead", header, rows, options.markdown)


if __name__ == "__main__":
    main()
