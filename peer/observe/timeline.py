"""The timeline of a run: faults, deaths, refusals, restarts, gaps, failed checkpoints, as sentences with a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from coordinator_free_bootstrap.strict_json import printable
from peer.observe.events import Event

TOGETHER_S = 10.0  # in which several peers that say the same about one peer are one entry
_DEAD = ("dead", "suspect", "left", "alive")


def timeline(news: Iterable[tuple[int, Event]]) -> list[dict[str, Any]]:
    """Return the entries in order; what several peers say about one neighbor is one entry with all of them in ``by``.

    Each has ``cursor``, ``at`` (Unix seconds), ``kind``, ``peer`` (whom it is about, or null), ``by`` (who says so) and ``text``.
    """
    entries: list[dict[str, Any]] = []
    started: set[int | None] = set()
    met: set[tuple[int | None, int]] = set()
    open_entries: dict[tuple[str, Any], dict[str, Any]] = {}
    for cursor, event in news:
        kind, text = event.kind, _TEXTS[event.kind](event.data)
        subject, by = event.peer, [] if event.peer is None else [event.peer]
        if kind == "start":
            if event.peer in started:
                kind, text = "restart", f"started again, incarnation {event.data.get('incarnation')}"
            started.add(event.peer)
        elif kind == "neighbor":
            subject, state = event.data["neighbor"], event.data["state"]
            first = (event.peer, subject) not in met
            met.add((event.peer, subject))
            if state not in _DEAD or (state == "alive" and first):
                continue
            kind = state
        elif kind == "fault":
            subject = (event.data.get("peers") or [None])[0]
        elif kind not in ("refused",):
            by = []
        entry = {"cursor": cursor, "at": round(event.at, 3), "kind": kind, "peer": subject, "by": by, "text": text}
        same = open_entries.get((kind, subject)) if by and kind != "fault" else None
        if same is not None and same["text"] == text and event.at - same["at"] <= TOGETHER_S:
            same["by"] += [each for each in by if each not in same["by"]]
            continue
        open_entries[kind, subject] = entry
        entries.append(entry)
    return entries


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
    "gap": lambda data: f"the observer missed rounds {data['from_round']} to {data['to_round']}",
    "silent": lambda data: f"no answer: {printable(data['reason'])}",
    "checkpoint": lambda data: f"checkpoint of round {data.get('round_index')} failed: {printable(str(data['error']))}",
}
