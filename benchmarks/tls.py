"""What TLS costs: a push with it beside one without, repeats interleaved; and the rounds of a testbed with it and without.

    python benchmarks/tls.py [--size 100] [--repeats 11] [--rounds 20] [--markdown FILE]

Pushes go from one process to another over loopback, through everything that a peer does with a model (`transport.py`).
The ratio is the median of the ratios within a repeat. Rounds are those of four peers on a complete graph; their overhead is
what is neither training nor evaluation.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import os
import statistics
import time
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
from common import show
from testbeds import QUICK, loopback_graph, run
from transport import LIMITS, MEGABYTE, TIMEOUTS, FoldingReceiver, schema_of

from coordinator_free_bootstrap import Graph, Node
from peer.core.encoding import encode
from peer.core.messages import ModelHeader, Outcome
from peer.identity.certificates import make_certificate
from peer.identity.files import KeyPair
from peer.identity.pinning import pin
from peer.wire.client import NeighborLink
from peer.wire.security import MutualTls
from peer.wire.server import PeerServer

WAYS = ("TLS", "plaintext")
MODEL = ["run.model=mlp", "run.model_options.hidden=[256,256]", "run.local_epochs=1", "run.batch_size=100"]


def both_ends() -> tuple[Graph, list[KeyPair]]:
    """Return a graph of two pinned peers and their keys."""
    made = [make_certificate("federation", peer_id) for peer_id in (0, 1)]
    pairs = [KeyPair(private, certificate, certificate.pem()) for private, certificate in made]
    graph = Graph((Node(0, "127.0.0.1:1"), Node(1, "127.0.0.1:2")), ((0, 1),))
    return pin(graph, [pair.certificate for pair in pairs]), pairs


def receive(size: int, tls: MutualTls | None, ports: Connection) -> None:
    """Serve as peer 0 until the process is ended."""

    async def main() -> None:
        secure = {"credentials": tls.server_credentials(), "identify": tls.identify} if tls else {}
        receiver = FoldingReceiver(size // 4)
        server = PeerServer(receiver, "127.0.0.1:0", limits=LIMITS, timeouts=TIMEOUTS, **secure)
        ports.send(await server.start())
        await asyncio.Event().wait()

    asyncio.run(main())


def receive_with_keys(size: int, graph: Graph, private: bytes, pem: bytes, ports: Connection) -> None:
    """Serve as peer 0; keys travel to the new process as bytes."""
    from peer.identity.certificates import Certificate

    tls = MutualTls(graph, 0, KeyPair(private, Certificate.from_pem(pem, "0"), pem)) if private else None
    receive(size, tls, ports)


def processor_seconds(pid: int) -> float:
    """Return the processor time that another process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def pushes(
    size: int, repeats: int, ports: dict[str, int], pids: dict[str, int], tls: MutualTls
) -> tuple[dict[str, list[float]], dict[str, float]]:
    """Return the seconds of each push, repeat by repeat, and the processor seconds of one push at both ends together."""
    theta = np.random.default_rng(1).standard_normal(size // 4, np.float32)
    header = ModelHeader(1, 1, 0, 0, 0, 0, 1, 100, 1.0, (), theta.nbytes, "float32")
    payload = encode(theta, schema_of(theta.size), "float32")
    links = {}
    for way, port in ports.items():
        security = tls.channel(0) if way == "TLS" else None
        links[way] = NeighborLink(0, f"127.0.0.1:{port}", limits=LIMITS, timeouts=TIMEOUTS, security=security)
    seconds: dict[str, list[float]] = {way: [] for way in links}
    used = dict.fromkeys(links, 0.0)
    for repeat in range(repeats + 2):
        for way, link in links.items():
            began, used_here, used_there = time.perf_counter(), time.process_time(), processor_seconds(pids[way])
            reply = await link.push(header, payload)
            if reply.outcome is not Outcome.FOLDED:
                raise SystemExit(f"push: {reply}")
            if repeat >= 2:  # the first two warm up connections, flow control and memory
                seconds[way].append(time.perf_counter() - began)
                used[way] += time.process_time() - used_here + processor_seconds(pids[way]) - used_there
    for link in links.values():
        await link.close()
    return seconds, {way: total / repeats for way, total in used.items()}


def throughput(size: int, repeats: int) -> list[list[object]]:
    """Return the rows of pushes: both speeds and their ratio, both processor times and theirs."""
    graph, pairs = both_ends()
    context = multiprocessing.get_context("spawn")
    ports, pids, processes = {}, {}, []
    for way in WAYS:
        ours, theirs = context.Pipe()
        keys = (pairs[0].private_key, pairs[0].chain) if way == "TLS" else (b"", b"")
        process = context.Process(target=receive_with_keys, args=(size, graph, *keys, theirs), daemon=True)
        process.start()
        processes.append(process)
        ports[way], pids[way] = ours.recv(), process.pid or 0
    try:
        seconds, used = asyncio.run(pushes(size, repeats, ports, pids, MutualTls(graph, 1, pairs[1])))
    finally:
        for process in processes:
            process.terminate()
            process.join()
    ratio = statistics.median(p / t for p, t in zip(seconds["plaintext"], seconds["TLS"], strict=True))
    speeds = [f"{size / statistics.median(seconds[way]) / 1e9:.2f} GB/s" for way in WAYS]
    name = f"push of {size / MEGABYTE:g} MB"
    rows: list[list[object]] = [[name, *speeds, f"{ratio:.2f} of plaintext's speed (aim 0.6)"]]
    if size >= 100 * MEGABYTE:  # the kernel counts in hundredths of a second
        times = [f"{1000 * used[way]:.0f} ms" for way in WAYS]
        rows.append([f"{name}, processor time, both ends", *times, f"{used['plaintext'] / used['TLS']:.2f} of TLS's"])
    return rows


def round_overhead(rounds: int, repeats: int) -> list[list[object]]:
    """Return the rows of rounds: overhead and whole round, medians over all peers and rounds but the first."""
    overheads: dict[str, list[float]] = {way: [] for way in WAYS}
    totals: dict[str, list[float]] = {way: [] for way in WAYS}
    for _ in range(repeats):
        for way in WAYS:
            graph = loopback_graph("complete", 4, [*QUICK, *MODEL, f"run.rounds={rounds}"])
            for line in run(graph, insecure=way == "plaintext").lines("round"):
                if line["round_index"] > 0:
                    seconds = line["seconds"]
                    totals[way].append(sum(seconds.values()))
                    own = seconds.get("train", 0) + seconds.get("evaluate", 0)
                    overheads[way].append(sum(seconds.values()) - own)
    rows: list[list[object]] = []
    for name, found in (("round overhead, 4 peers", overheads), ("whole round, 4 peers", totals)):
        tls, plain = (statistics.median(found[way]) for way in WAYS)
        rows.append([name, f"{1000 * tls:.1f} ms", f"{1000 * plain:.1f} ms", f"{tls / plain:.2f} times plaintext"])
    return rows


def main() -> None:
    """Measure both and print one table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=float, nargs="+", default=[1, 10, 100], help="model sizes in MB")
    parser.add_argument("--repeats", type=int, default=11)
    parser.add_argument("--rounds", type=int, default=20, help="of a testbed, 2 or more: the first one is not counted")
    parser.add_argument("--runs", type=int, default=3, help="testbeds of each kind, alternating")
    parser.add_argument("--markdown", type=Path)
    options = parser.parse_args()
    if options.runs and options.rounds < 2:
        parser.error(f"--rounds: found {options.rounds}; allowed: 2 or more, as the first round is not counted")
    rows = [row for size in options.size for row in throughput(round(size * MEGABYTE) // 4 * 4, options.repeats)]
    if options.runs:
        rows += round_overhead(options.rounds, options.runs)
    show("TLS beside plaintext", ["", *WAYS, ""], rows, options.markdown)


if __name__ == "__main__":
    main()
