"""The bytes that a peer may send in a day, by its owner's policy."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date, datetime
from pathlib import Path

from coordinator_free_bootstrap.errors import ConfigProblem, PolicyError
from peer.core.counters import COUNTING
from peer.store.history import read_history


class DayQuota:
    """What a peer has sent today, and whether another round may pass the limit.

    A round counts as large as the largest one so far. The days are those of this machine's calendar; what earlier processes have
    sent comes from the history.

    Args:
        most: bytes a day.
        where: file, line and key of the limit, for messages.
        history: of the peer; it may not exist yet.

    Attributes:
        sent: bytes of each day.
    """

    def __init__(self, most: int, where: str, history: Path) -> None:
        self._most, self._where, self._round = most, where, 0
        self.sent: dict[date, int] = {}
        for line in read_history(history):
            if line["kind"] in COUNTING and (time := _time_of(line)):
                self.count(line, time)

    def count(self, fields: Mapping[str, object], now: datetime) -> None:
        """Count the bytes of a line of the history at its time, which has a zone."""
        if isinstance(sent := fields.get("wire_bytes_sent"), int):
            self.sent[_day(now)] = self.sent.get(_day(now), 0) + sent
            self._round = max(self._round, sent)

    def expect(self, least: int) -> None:
        """Take it that a round has this many bytes at least."""
        self._round = max(self._round, least)

    def require_a_round(self) -> None:
        """Check that a day has room for a round; otherwise the peer would wait forever.

        Raises:
            PolicyError: it has not.
        """
        if self._round > self._most:
            expected = f"at least {self._round}, the bytes of this run's largest round"
            raise PolicyError(ConfigProblem(self._where, expected, str(self._most), "Raise it, or leave this run."))

    def closed(self, now: datetime) -> str:
        """Return why no round may begin at a time with a zone; "" if one may."""
        sent = self.sent.get(_day(now), 0)
        if sent + self._round <= self._most:
            return ""
        return f"{sent} bytes sent today, and the next round could pass the {self._most} of the owner's policy ({self._where})"


def _time_of(line: Mapping[str, object]) -> datetime | None:
    try:
        return datetime.fromisoformat(str(line.get("time")))
    except ValueError:  # no peer wrote it
        return None


def _day(now: datetime) -> date:
    return now.astimezone().date()
