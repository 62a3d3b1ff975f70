"""What the files of a peer grow by in 1,000 rounds, by its number of neighbors.

    python benchmarks/years.py [--rounds 1000] [--save]

A complete graph of real processes, a linear model, dfedavg, no faults. Bytes are those of peer 0 between an early round and the
end, over the rounds in between. Rounds a year: of an hour each, 8,760.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from record import new_parser, record
from testbeds import QUICK, last_round, loopback_graph, run

from peer.bed.testbed.testbed import Supervisor
from peer.store.lines import parts_of
from peer.store.state_dir import StateDir

NEIGHBORS = (2, 4, 8)
EARLY = 50
TINY = [
    "run.algorithm=dfedavg",
    "run.task=linear",
    "run.split=linear_synth",
    "run.local_epochs=1",
    "run.batch_size=all",
]


def sizes(place: StateDir) -> tuple[int, int, int]:
    """Return the bytes of history, audit log and log."""
    history, audit = (sum(part.stat().st_size for part in parts_of(path)) for path in (place.history, place.audit))
    return history, audit, place.log.stat().st_size


def growth(neighbors: int, rounds: int) -> tuple[float, ...]:
    """Return the bytes that a round adds to each file."""
    graph = loopback_graph("complete", neighbors + 1, [*TINY, *QUICK, f"run.rounds={rounds}"])
    seen: list[tuple[int, tuple[int, int, int]]] = []

    def look(_bed: Supervisor, out: Path) -> None:
        place = StateDir.of_peer(out, 0)
        if place.history.exists() and (done := last_round(place.history)[0]) >= EARLY:
            seen.append((done, sizes(place)))

    run(graph, while_running=look, threads=1, insecure=True)
    (first, before), (last, after) = seen[0], seen[-1]
    return tuple((b - a) / (last - first) for a, b in zip(before, after, strict=True))


def main() -> None:
    """Measure and print a table."""
    parser = new_parser(__doc__)
    parser.add_argument("--rounds", type=int, default=1000)
    given = parser.parse_args()
    rows: list[list[Any]] = []
    for neighbors in NEIGHBORS:
        found = growth(neighbors, given.rounds)
        rows.append([neighbors, *(f"{each / 1e3:.2f}" for each in found), f"{sum(found) * 8760 / 1e6:.0f}"])
    columns = ["neighbors", "history MB", "audit log MB", "log MB", "all MB in a year of hourly rounds"]
    record("years", "Growth of a peer's files in 1,000 rounds", columns, rows, save=given.save)


if __name__ == "__main__":
    main()
