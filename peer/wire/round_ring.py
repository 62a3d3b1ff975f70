"""The last round records of a peer, for observers: they can reconnect and miss nothing that the peer still keeps."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from coordinator_free_bootstrap.strict_json import dumps
from peer.core.counters import Totals, entries
from peer.store.history import plain
from peer.store.records import AlgorithmFields, RoundLine

ROUNDS_KEPT = 512  # records of a peer; a record of a peer with 8 neighbors has about 1 kB
BATCH_RECORDS, BATCH_CHARACTERS = 64, 1 << 20  # in one message, which gRPC limits to 4 MiB
# What observers may know of a round; and, where the owner allows it, of the algorithm's state: it says how data are distributed.
OBSERVABLE_FIELDS = frozenset(
    name for table in (RoundLine, Totals) for name, each in entries(table).items() if each.observable
)
OBSERVABLE_STATE = frozenset(name for name, each in entries(AlgorithmFields).items() if each.observable)


@dataclass(frozen=True)
class RecordBatch:
    """Some records, each a JSON object.

    Attributes:
        rounds_from: records of earlier rounds are not kept, or not any more.
        after: number of the last of these records, for the next `RoundRing.batch`.
        more: whether there are further records now.
    """

    records: tuple[str, ...] = ()
    rounds_from: int = 0
    after: int = -1
    more: bool = False


class RoundRing:
    """The last `ROUNDS_KEPT` round records.

    Args:
        rounds_from: first round of this process; another process had the earlier ones.
        size: how many records are kept.
        clusters: whether observers may also know `OBSERVABLE_STATE`.
    """

    def __init__(self, rounds_from: int = 0, size: int = ROUNDS_KEPT, *, clusters: bool = False) -> None:
        self.rounds_from, self.clusters = rounds_from, clusters
        self._size = size
        self._records: deque[tuple[int, int, str]] = deque()  # number, round_index, JSON
        self._next = 0

    def add(self, line: Mapping[str, Any]) -> None:
        """Keep what observers may know of a line of the history; the oldest record goes where there are too many."""
        record = {key: value for key, value in line.items() if key in OBSERVABLE_FIELDS}
        if self.clusters and line.get("state"):
            record["state"] = {key: value for key, value in line["state"].items() if key in OBSERVABLE_STATE}
        self._records.append(
            (self._next, int(line["round_index"]), dumps(record, separators=(",", ":"), default=plain))
        )
        self._next += 1
        if len(self._records) > self._size:
            self.rounds_from = max(self.rounds_from, self._records.popleft()[1] + 1)

    def batch(self, since: int, after: int = -1) -> RecordBatch:
        """Return the next records of the round ``since`` and later ones, with numbers above ``after``."""
        found: list[str] = []
        characters = 0
        for number, round_index, text in self._records:
            if number <= after or round_index < since:
                continue
            if found and (len(found) == BATCH_RECORDS or characters + len(text) > BATCH_CHARACTERS):
                return RecordBatch(tuple(found), self.rounds_from, after, more=True)
            found.append(text)
            characters += len(text)
            after = number
        return RecordBatch(tuple(found), self.rounds_from, after)
