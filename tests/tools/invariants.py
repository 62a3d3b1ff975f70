"""What must hold in the histories of any run, whatever happened to it. The names are those of the simulation's."""

from __future__ import annotations

import math

from tools.beds import Bed


def check(bed: Bed, *peers: int) -> None:
    """Hold the safety invariants that histories show for these peers (default: all)."""
    for peer_id in peers or bed.graph.ids:
        folded_once(bed, peer_id)
        only_neighbors(bed, peer_id)
        nothing_goes_back(bed, peer_id)
        finite(bed, peer_id)


def folded_once(bed: Bed, peer_id: int) -> None:
    """I2: (neighbor, round, step, slot) is folded at most once, whichever life of the neighbor sent it."""
    seen = set()
    for line in bed.last_rounds(peer_id).values():
        for sender, _life, round_index, step, slot in line["folded"]:
            key = (sender, round_index, step, slot)
            assert key not in seen, f"peer {peer_id} folded {key} twice"
            seen.add(key)


def only_neighbors(bed: Bed, peer_id: int) -> None:
    """I6: nobody else's models are folded."""
    neighbors = bed.graph.neighbors(peer_id)
    senders = {sender for line in bed.history(peer_id, "round") for sender, *_ in line["folded"]}
    assert senders <= set(neighbors)


def nothing_goes_back(bed: Bed, peer_id: int) -> None:
    """I7: incarnations only grow, also in what was folded from each neighbor; within one life rounds only grow."""
    lines = bed.history(peer_id)
    lives = [line["incarnation"] for line in lines]
    assert lives == sorted(lives), f"peer {peer_id}: an incarnation went back"
    for life in set(lives):
        rounds = [line["round_index"] for line in lines if line["kind"] == "round" and line["incarnation"] == life]
        assert rounds == sorted(set(rounds)), f"peer {peer_id}: a round went back in life {life}"


def finite(bed: Bed, peer_id: int) -> None:
    """I5: no loss and no accuracy is lost to NaN (a history writes null for it)."""
    for line in bed.history(peer_id, "round"):
        if line["active"] and "train_loss" in line:
            assert line["train_loss"] is not None and math.isfinite(line["train_loss"])


def completed(bed: Bed, *peers: int) -> None:
    """L1: these peers (default: all) finished all rounds."""
    for peer_id in peers or bed.graph.ids:
        assert bed.summary(peer_id)["status"] == "completed", f"peer {peer_id}: {bed.summary(peer_id)}"
        assert bed.summary(peer_id)["rounds_completed"] == bed.graph.manifest.rounds


def waited_at_most(bed: Bed, peer_id: int, seconds: float) -> None:
    """L3: no round of this peer waited longer."""
    longest = max(line["seconds"]["wait"] for line in bed.history(peer_id, "round"))
    assert longest <= seconds, f"peer {peer_id} waited {longest:.1f} s in a round, allowed are {seconds:g} s"
