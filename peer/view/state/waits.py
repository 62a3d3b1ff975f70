"""Whom a peer waits for, why, and until when, and whether it is alone: of its last answer to an observer, else of files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from coordinator_free_bootstrap.graph import Graph
from peer.core.counters import Totals
from peer.store.records import PeerStatus
from peer.view.state.peer_state import PeerState

GONE = ("dead", "left")  # states of a neighbor that no round waits for


@dataclass(frozen=True)
class Wait:
    """What a peer waits for.

    Attributes:
        stage: of its run, "" if no observer asked it.
        neighbors: those whose models are missing, or that have not accepted its models.
        reasons: one for each of them.
        until_s: seconds until the last of the suspect ones is marked dead, or the round closes without them; None if no limit is
            known.
    """

    stage: str = ""
    neighbors: tuple[int, ...] = ()
    reasons: tuple[str, ...] = ()
    until_s: float | None = None


def waits(peer: PeerState, peers: Mapping[int, PeerState], graph: Graph | None, now: float) -> Wait:
    """Return what a running peer waits for.

    Args:
        peer: of the run.
        peers: all of them.
        graph: of the run, where it is known.
        now: Unix seconds, for a peer that no observer has asked.
    """
    if peer.status != "running":
        return Wait()
    if peer.answer is not None:
        return said(peer.present_answer) if peer.present_answer is not None else Wait()
    if graph is None or graph.manifest.pace != "lockstep" or not peer.round_at:
        return Wait()
    return behind(peer, peers, graph, now)


def said(status: PeerStatus) -> Wait:
    """Return what a peer has said that it waits for."""
    neighbors = tuple(sorted({*status["waiting_for"], *status["owed_to"]}))
    return Wait(status["stage"].replace("_", " "), neighbors, tuple(reasons(status)), until_s(status))


def behind(peer: PeerState, peers: Mapping[int, PeerState], graph: Graph, now: float) -> Wait:
    """Return the live neighbors in an earlier round than a peer: its present round cannot end without their models."""
    timeouts, own = graph.manifest.timeouts, peer.rounds_completed
    late = [
        neighbor
        for neighbor in graph.neighbors(peer.peer_id)
        if peer.neighbors.get(neighbor) not in GONE
        and peers[neighbor].status not in ("missing", "completed", "left", "alone")
        and peers[neighbor].rounds_completed < own
    ]
    if not late:
        return Wait()
    suspect = [neighbor for neighbor in late if peer.neighbors.get(neighbor) == "suspect"]
    why = [
        f"models of {n}, silent and marked dead after {timeouts.suspicion_s:g} s"
        if n in suspect
        else f"models of {n}, in round {peers[n].rounds_completed}"
        for n in late
    ]
    until = peer.round_at + timeouts.round_deadline_s - now
    if suspect == late:
        until = min(until, timeouts.suspicion_s)
    return Wait("", tuple(late), tuple(why), round(max(0.0, until), 3))


def alone(peer: PeerState) -> str:
    """Return a sentence on a peer that trains without any neighbor now; "" for others."""
    if peer.status != "running":
        return ""
    states: Iterable[str]
    if (answer := peer.present_answer) is not None:
        trains, states = answer["phase"] == "running", answer["neighbors"].values()
        count, rounds = answer["totals"].get("rounds_alone", 0), answer["round_index"]
    else:
        trains, states = bool(peer.round and Totals.of(peer.round).rounds_alone), peer.neighbors.values()
        count, rounds = peer.totals.rounds_alone, peer.rounds_completed
    lonely = trains and count and not {"alive", "suspect"} & {*states}
    return f"no neighbor is live; {count} of {rounds} rounds alone so far" if lonely else ""


def until_s(status: PeerStatus) -> float | None:
    """Return the seconds until what a peer waits for is over.

    If all that it waits for are suspect or have left, that is when the last one is given up; else when the round closes
    without them.
    """
    waited = list(map(str, status["waiting_for"]))
    left = [
        status["suspicion_s"] - (status["silent_s"].get(n) or 0.0)
        for n in waited
        if status["neighbors"].get(n) in ("suspect", "left")
    ]
    only_suspects = bool(left) and len(left) == len(waited) and not status["owed_to"] and status["stage"] != "joining"
    limits = [limit for limit in (status.get("deadline_s"), max(left) if only_suspects else None) if limit is not None]
    return round(max(0.0, min(limits)), 3) if limits else None


def reasons(status: PeerStatus) -> list[str]:
    """Return one reason for each neighbor that is not there yet, or has not sent its models or not accepted ours."""
    if status["stage"] == "joining":
        return [f"peer {n} to start, now {status['neighbors'].get(str(n), 'unknown')}" for n in status["waiting_for"]]
    found = []
    for n in map(str, status["waiting_for"]):
        text = f"models of {n}, in round {status['neighbor_rounds'].get(n, '?')}"
        if status["neighbors"].get(n) == "suspect":
            silent, limit = status["silent_s"].get(n) or 0.0, status["suspicion_s"]
            text = f"models of {n}, silent for {silent:.1f} s and marked dead after {limit:g} s"
        elif status["neighbors"].get(n) == "left":
            text += f", which left {status['silent_s'].get(n) or 0.0:.1f} s ago and may be restarting"
        elif status["neighbors"].get(n) in ("dead", "unknown"):
            text += f", which is {status['neighbors'][n]}: run.start.wait_for is never_alone"
        found.append(text)
    return found + [f"{n} to accept our models" for n in status["owed_to"]]
