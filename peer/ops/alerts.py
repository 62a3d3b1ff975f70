"""What of a running peer is worth waking somebody for, as events; and telling a program or a URL of them.

An event is a JSON object: `event`, `time`, `federation`, `peer_id`, `round_index`, `rounds`, `sentence`, `left_out`, and what
belongs to it. Telling runs on a thread of its own, so that no round waits for it.
"""

from __future__ import annotations

import logging
import os
import queue
import shlex
import signal
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from coordinator_free_bootstrap.errors import Option
from coordinator_free_bootstrap.strict_json import dumps

log = logging.getLogger("peer")
DEAD_S = 60.0
STALLED_S = 60.0  # and four times the longest of the last rounds
EVERY_S = 60.0  # between two events of one kind about one neighbor; those in between are counted
ANSWER_S = 10.0  # for a program or a URL
EVENTS = {
    "neighbor_dead": f"`neighbor` is dead for {DEAD_S:g} s",
    "neighbor_back": "after that: it answers again",
    "round_stalled": f"no round has closed for {STALLED_S:g} s, and for four times the longest of the last ten",
    "disk_full": "a checkpoint, the history or the audit log cannot be written, since the disk is full",
    "disk_error": "likewise, for another reason, which `sentence` has",
    "diverged": "a model is not finite: the training was undone (`restores`), or the peer has ended",
    "revision": "the peer has taken another graph file: digests `before` and `after`",
    "finished": "the peer has ended: `outcome` (completed, left, refused, alone, diverged, failed) and `exit_code`",
}
WAITING_MAX = 1000  # records that wait to be looked at
_LOOKED_EVERY_S = 1.0


@dataclass
class Rules:
    """From the records of a peer to events. Pure.

    Args:
        rounds: of the run.
        now: when the peer began, in seconds.
    """

    rounds: int
    now: float
    round_index: int = 0
    _dead: dict[int, float | None] = field(default_factory=dict)  # neighbor -> since when; None: told
    _lasted: list[float] = field(default_factory=list)  # the last rounds, seconds
    _stalled: bool = False
    _disk: str = ""
    _restores: int = 0

    def __post_init__(self) -> None:
        self._closed_at = self.now

    def recorded(self, kind: str, fields: Mapping[str, Any], now: float) -> Iterator[dict[str, Any]]:
        """Yield the events of a record."""
        match kind:
            case "neighbor":
                yield from self._neighbor(fields["neighbor"], fields["state"], now)
            case "round":
                self._lasted = [*self._lasted[-9:], now - self._closed_at]
                self._closed_at, self.round_index, self._stalled = now, fields["round_index"] + 1, False
                if (restores := fields.get("restores", 0)) > self._restores:
                    self._restores = restores
                    yield _event("diverged", "a training was undone, since its model was not finite", restores=restores)
            case "checkpoint" | "disk":
                yield from self._written(fields.get("error") or "")
            case "start" if fields.get("resumed_from"):
                self.round_index = fields["resumed_from"]
            case "revision":
                yield _event("revision", "another graph file was taken", **fields)
            case "exit":
                yield from _ended(fields["outcome"], fields["exit_code"])

    def due(self, now: float) -> Iterator[dict[str, Any]]:
        """Yield the events that time brings."""
        for neighbor, since in self._dead.items():
            if since is not None and now - since >= DEAD_S:
                self._dead[neighbor] = None
                yield _event("neighbor_dead", f"peer {neighbor} is dead for {DEAD_S:g} s", neighbor=neighbor)
        most = max(STALLED_S, 4 * max(self._lasted, default=0.0))
        if not self._stalled and now - self._closed_at >= most and self.round_index < self.rounds:
            self._stalled = True
            yield _event(
                "round_stalled", f"round {self.round_index} is not closed after {most:.0f} s", seconds=round(most)
            )

    def _neighbor(self, neighbor: int, state: str, now: float) -> Iterator[dict[str, Any]]:
        if state == "dead":
            self._dead.setdefault(neighbor, now)
        elif state in ("alive", "left") and neighbor in self._dead:
            told = self._dead.pop(neighbor) is None
            if told and state == "alive":
                yield _event("neighbor_back", f"peer {neighbor} answers again", neighbor=neighbor)

    def _written(self, problem: str) -> Iterator[dict[str, Any]]:
        if problem and problem != self._disk:
            yield _event("disk_full" if "full" in problem else "disk_error", problem)
        self._disk = problem


def _event(name: str, sentence: str, **fields: Any) -> dict[str, Any]:
    assert name in EVENTS, name
    return {"event": name, "sentence": sentence, **fields}


def _ended(outcome: str, code: int) -> Iterator[dict[str, Any]]:
    if outcome == "diverged":
        yield _event("diverged", "a model is not finite, and the peer has ended")
    yield _event("finished", f"the peer has ended: {outcome}, exit code {code}", outcome=outcome, exit_code=code)


class Alerts:
    """Looks at the records of a running peer, and tells of events, from `start` to `close`.

    Args:
        about: what each event has: federation, peer_id, rounds.
        command: is run for each event, with its JSON as input; None: none is.
        url: each event is posted there as JSON; None: nowhere.
        clock: of seconds.
    """

    def __init__(
        self,
        about: Mapping[str, Any],
        command: str | None,
        url: str | None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._about, self._clock = about, clock
        self._ways: dict[str, Callable[[str, bytes], None]] = {}
        if command:
            self._ways[f"{Option('on_event')}"] = lambda name, data: run_command(shlex.split(command), name, data)
        if url:
            self._ways[f"{Option('webhook')}"] = lambda _name, data: post(url, data)
        self._rules = Rules(about["rounds"], clock())
        self._records: queue.Queue[tuple[str, Mapping[str, Any], float] | None] = queue.Queue(WAITING_MAX)
        self._told_at: dict[tuple[str, Any], float] = {}
        self._left_out: dict[tuple[str, Any], int] = {}
        self._problems: dict[str, str] = {}
        self._thread = threading.Thread(target=self._run, name="alerts", daemon=True)

    def start(self) -> None:
        """Begin to look."""
        self._thread.start()

    def __call__(self, kind: str, fields: Mapping[str, Any]) -> None:
        """Take a record; one of too many is left out."""
        try:
            self._records.put_nowait((kind, fields, self._clock()))
        except queue.Full:
            return

    def close(self) -> None:
        """Tell of what came so far, and end; at most two answers are waited for."""
        try:
            self._records.put(None, timeout=ANSWER_S)
        except queue.Full:
            return
        self._thread.join(2 * ANSWER_S)

    def _run(self) -> None:
        while True:
            try:
                record = self._records.get(timeout=_LOOKED_EVERY_S)
            except queue.Empty:
                self._tell_all(self._rules.due(self._clock()))
                continue
            if record is None:
                return
            self._tell_all([*self._rules.recorded(*record), *self._rules.due(record[2])])

    def _tell_all(self, events: Iterator[dict[str, Any]] | list[dict[str, Any]]) -> None:
        for event in events:
            key, now = (event["event"], event.get("neighbor")), self._clock()
            if now - self._told_at.get(key, -EVERY_S) < EVERY_S:
                self._left_out[key] = self._left_out.get(key, 0) + 1
                continue
            self._told_at[key] = now
            self._tell(event | {"left_out": self._left_out.pop(key, 0)})

    def _tell(self, event: dict[str, Any]) -> None:
        stamp = {"time": datetime.now(UTC).isoformat(timespec="milliseconds"), "round_index": self._rules.round_index}
        data = dumps({"event": event["event"], **stamp, **self._about, **event}, separators=(",", ":")).encode()
        for option, way in self._ways.items():
            problem = ""
            try:
                way(event["event"], data)
            except (OSError, subprocess.SubprocessError, ValueError) as error:
                problem = str(error)
            if problem and problem != self._problems.get(option):
                log.warning("%s: the event %s was not taken: %s", option, event["event"], problem)
            self._problems[option] = problem


def run_command(words: list[str], name: str, data: bytes) -> None:
    """Run a program with an event as input and ``PEER_EVENT`` in its environment, `ANSWER_S` at most.

    Raises:
        OSError: it cannot be run, takes too long, or fails; the text has its last line of stderr.
    """
    with subprocess.Popen(
        words,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env=os.environ | {"PEER_EVENT": name},
        start_new_session=True,
    ) as process:
        try:
            _, said = process.communicate(data, timeout=ANSWER_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            raise OSError(f"it was ended after {ANSWER_S:g} s") from None
    if process.returncode:
        last = (said.decode(errors="replace").strip().splitlines() or [""])[-1]
        raise OSError(f"exit code {process.returncode}{f': {last[:200]}' if last else ''}")


def post(url: str, data: bytes) -> None:
    """Post an event, and wait `ANSWER_S` at most for the answer.

    Raises:
        OSError: nobody answers, or not with a status of success.
    """
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"}, method="POST")
    with urllib.request.urlopen(request, timeout=ANSWER_S):  # the owner of this device has named the URL
        return
