"""Invariants of the histories of every run, with all faults; the numbers are those of the simulation."""

from __future__ import annotations

import math

from tools.beds import Bed, Models, same_models

from peer.store.records import FIELDS
from peer.view.state.records import problem_of_line


def check(bed: Bed, *peers: int) -> None:
    """Check the safety invariants in the histories of these peers (default: all)."""
    for peer_id in peers or bed.graph.ids:
        folded_once(bed, peer_id)
        only_neighbors(bed, peer_id)
        nothing_goes_back(bed, peer_id)
        finite(bed, peer_id)
        listed_fields(bed, peer_id)


def folded_once(bed: Bed, peer_id: int) -> None:
    """I2: (neighbor, round, step, slot) is folded at most once, whichever incarnation sent it."""
    seen = set()
    for line in bed.last_rounds(peer_id).values():
        for sender, _incarnation, round_index, step, slot in line["folded"]:
            key = (sender, round_index, step, slot)
            assert key not in seen, f"peer {peer_id} folded {key} twice"
            seen.add(key)


def only_neighbors(bed: Bed, peer_id: int) -> None:
    """I6: only models of neighbors are folded."""
    neighbors = bed.graph.neighbors(peer_id)
    senders = {sender for line in bed.history(peer_id, "round") for sender, *_ in line["folded"]}
    assert senders <= set(neighbors)


def nothing_goes_back(bed: Bed, peer_id: int) -> None:
    """I7: incarnations only grow, and rounds within an incarnation."""
    lines = bed.history(peer_id)
    incarnations = [line["incarnation"] for line in lines]
    assert incarnations == sorted(incarnations), f"peer {peer_id}: an incarnation went back"
    for incarnation in set(incarnations):
        rounds = [
            line["round_index"] for line in lines if line["kind"] == "round" and line["incarnation"] == incarnation
        ]
        assert rounds == sorted(set(rounds)), f"peer {peer_id}: a round went back in incarnation {incarnation}"


def finite(bed: Bed, peer_id: int) -> None:
    """I5: no training loss is NaN (null in a history)."""
    for line in bed.history(peer_id, "round"):
        if line["active"] and "train_loss" in line:
            assert line["train_loss"] is not None and math.isfinite(line["train_loss"])


def listed_fields(bed: Bed, peer_id: int) -> None:
    """The lines of a history have only fields that `FIELDS` lists, with values as readers take them."""
    for line in bed.history(peer_id):
        unknown = line.keys() - FIELDS[line["kind"]] - {"kind", "t", "time", "incarnation"}
        assert not problem_of_line(line), f"peer {peer_id}: {problem_of_line(line)}"
        assert not unknown, f"peer {peer_id}: a {line['kind']} line has fields that FIELDS does not list: {unknown}"


def completed(bed: Bed, *peers: int) -> None:
    """L1: these peers (default: all) completed all rounds."""
    for peer_id in peers or bed.graph.ids:
        assert bed.summary(peer_id)["status"] == "completed", f"peer {peer_id}: {bed.summary(peer_id)}"
        assert bed.summary(peer_id)["rounds_completed"] == bed.graph.manifest.rounds


def marked_dead_once(bed: Bed, peer_id: int, neighbor: int) -> None:
    """L3: a dead neighbor is noticed once, so it costs one wait; the simulation bounds the length of the wait."""
    states = [line["state"] for line in bed.history(peer_id, "neighbor") if line["neighbor"] == neighbor]
    assert states.count("dead") == 1, f"peer {peer_id} saw neighbor {neighbor}: {states}"


def a_restart_changes_no_bit(run: Bed, victim: int, undisturbed: dict[int, Models]) -> None:
    """Wait until a failpoint has killed a peer, restart it, and compare the end with an undisturbed run."""
    assert run.until_ended(victim) == -9
    assert run.fired(victim) == 1
    run.arm(victim, "")
    run.do("restart", victim)
    assert run.finish()["failed"] == {}
    completed(run)
    check(run)
    same_models(undisturbed, run.models())
