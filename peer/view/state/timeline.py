"""The timeline of a run: faults, deaths, refusals, restarts, gaps, failed checkpoints, as sentences with a time."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

from typing_extensions import TypedDict

from coordinator_free_bootstrap.strict_json import printable
from peer.core.counters import Entry
from peer.view.state.events import EventData, LoggedEvent
from peer.view.state.peer_state import ending

TOGETHER_S = 60.0  # between two peers that say the same about one peer, which is one entry
_STATES = ("dead", "suspect", "left", "alive")
_FROM_PEERS = ("refused", *_STATES)  # kinds that have in `by` who says so


class TimelineEntry(TypedDict):
    """An entry of the timeline."""

    cursor: Annotated[int, Entry("of the event")]
    at: Annotated[float, Entry("when, Unix seconds")]
    kind: Annotated[str, Entry("of the event; of a neighbor its state; `restart`: a later start")]
    peer: Annotated[int | None, Entry("whom it is about, or null")]
    by: Annotated[list[int], Entry("peers that say so")]
    text: Annotated[str, Entry("a sentence")]


def timeline(news: Iterable[tuple[int, LoggedEvent]]) -> list[TimelineEntry]:
    """Return the entries in order; what several peers say about one neighbor is one entry with all of them in ``by``."""
    entries: list[TimelineEntry] = []
    started: set[int | None] = set()
    met: set[tuple[int | None, int]] = set()
    # the last entry of a kind about a peer, and when it was last said
    said: dict[tuple[str, int | None], tuple[TimelineEntry, float]] = {}
    for cursor, event in news:
        data, kind, text, subject = event.data, event.kind, text_of(event.data), event.peer
        if data["kind"] == "start":
            if event.peer in started:
                kind, text = "restart", f"started again, incarnation {data.get('incarnation')}"
            started.add(event.peer)
        elif data["kind"] == "neighbor":
            kind, subject = data["state"], data["neighbor"]
            first = (event.peer, subject) not in met
            met.add((event.peer, subject))
            if kind not in _STATES or (kind == "alive" and first):
                continue
        elif data["kind"] == "fault":
            subject = next(iter(data.get("peers") or ()), None)
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


def text_of(data: EventData) -> str:
    """Return what happened as a sentence; "" for an event that is no news."""
    match data["kind"]:
        case "start":
            return "started"
        case "neighbor":
            reason = printable(data.get("reason") or "")
            return f"{data['state']}: {reason}" if reason else data["state"]
        case "refused":
            who = "a stranger" if data.get("neighbor") is None else f"neighbor {data['neighbor']}"
            return f"refused {who}: {data['code']}: {printable(data.get('reason') or '')}"
        case "caught_up":
            return f"caught up from round {data.get('from_round')} to {data.get('to_round')}"
        case "leave":
            return f"left after {data.get('rounds_completed')} rounds"
        case "end":
            return f"completed {data.get('rounds_completed')} rounds"
        case "lost":
            return "lost its disk"
        case "fault":
            text = printable(data.get("text") or data["do"])
            return text if data["result"] == "done" else f"{text}: {printable(data['result'])}"
        case "exit":
            return ending("its process ended", data["exit_code"])
        case "gap":
            return f"the observer missed rounds {data['from_round']} to {data['to_round']}"
        case "silent":
            return f"no answer: {printable(data['reason'])}"
        case "checkpoint":
            return f"checkpoint of round {data.get('round_index')} failed: {printable(str(data.get('error')))}"
    return ""
