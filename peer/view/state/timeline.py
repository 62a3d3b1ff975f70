"""The timeline of a run: faults, deaths, refusals, restarts, gaps, failed checkpoints, as sentences with a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from coordinator_free_bootstrap.strict_json import printable
from peer.view.state.events import LoggedEvent
from peer.view.state.peer_state import ending

TOGETHER_S = 60.0  # between two peers that say the same about one peer, which is one entry
_STATES = ("dead", "suspect", "left", "alive")
_FROM_PEERS = ("refused", *_STATES)  # kinds that have in `by` who says so
TimelineEntry = dict[str, Any]


def timeline(news: Iterable[tuple[int, LoggedEvent]]) -> list[TimelineEntry]:
    """Return the entries in order; what several peers say about one neighbor is one entry with all of them in ``by``.

    Each has ``cursor``, ``at`` (Unix seconds), ``kind``, ``peer`` (whom it is about, or null), ``by`` (who says so) and ``text``.
    """
    entries: list[TimelineEntry] = []
    started: set[int | None] = set()
    met: set[tuple[int | None, int]] = set()
    said: dict[
        tuple[str, Any], tuple[TimelineEntry, float]
    ] = {}  # the last entry of a kind about a peer, and when it was last said
    for cursor, event in news:
        kind, text, subject = event.kind, _TEXTS[event.kind](event.data), event.peer
        if kind == "start":
            if event.peer in started:
                kind, text = "restart", f"started again, incarnation {event.data.get('incarnation')}"
            started.add(event.peer)
        elif kind == "neighbor":
            kind, subject = event.data["state"], event.data["neighbor"]
            first = (event.peer, subject) not in met
            met.add((event.peer, subject))
            if kind not in _STATES or (kind == "alive" and first):
                continue
        elif kind == "fault":
            subject = (event.data.get("peers") or [None])[0]
        by = [event.peer] if kind in _FROM_PEERS and event.peer is not None else []
        if kind in ("start", "restart"):  # what is said of a peer from now on is said of its new process
            said = {key: value for key, value in said.items() if key[1] != subject or key[0] == "refused"}
        entry, at = said.get((kind, subject), (None, 0.0))
        if by and entry is not None and event.at - at <= TOGETHER_S and _same(entry, kind, text, by[0]):
            entry["by"] += [each for each in by if each not in entry["by"]]
        else:
            entry = {"cursor": cursor, "at": round(event.at, 3), "kind": kind, "peer": subject, "by": by, "text": text}
            entries.append(entry)
        said[kind, subject] = entry, event.at
    return entries


def _same(entry: TimelineEntry, kind: str, text: str, by: int) -> bool:
    """Return whether a peer says what an entry says: a refusal with the same text, or a state that it has not said there."""
    return entry["text"] == text if kind == "refused" else by not in entry["by"]


def _fault(data: dict[str, Any]) -> str:
    text, result = printable(str(data.get("text") or data["do"])), str(data["result"])
    return text if result == "done" else f"{text}: {printable(result)}"


def _refused(data: dict[str, Any]) -> str:
    who = "a stranger" if data.get("neighbor") is None else f"neighbor {data['neighbor']}"
    return f"refused {who}: {data['code']}: {printable(str(data.get('reason') or ''))}"


def _neighbor(data: dict[str, Any]) -> str:
    reason = printable(str(data.get("reason") or ""))
    return f"{data['state']}: {reason}" if reason else str(data["state"])


_TEXTS: dict[str, Callable[[dict[str, Any]], str]] = {
    "start": lambda data: "started",
    "neighbor": _neighbor,
    "refused": _refused,
    "caught_up": lambda data: f"caught up from round {data.get('from_round')} to {data.get('to_round')}",
    "leave": lambda data: f"left after {data.get('rounds_completed')} rounds",
    "end": lambda data: f"completed {data.get('rounds_completed')} rounds",
    "lost": lambda data: "lost its disk",
    "fault": _fault,
    "exit": lambda data: ending("its process ended", data["exit_code"]),
    "gap": lambda data: f"the observer missed rounds {data['from_round']} to {data['to_round']}",
    "silent": lambda data: f"no answer: {printable(data['reason'])}",
    "checkpoint": lambda data: f"checkpoint of round {data.get('round_index')} failed: {printable(str(data['error']))}",
}
