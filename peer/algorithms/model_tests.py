"""The tests of the last round's models: what each neighbor delivered, and what this peer offered, on this peer's test samples.

They run when the last round closes: nobody waits for this peer's models then. No number of them leaves the peer.
"""

from __future__ import annotations

from collections.abc import Iterator

from coordinator_free_bootstrap.strict_json import finite
from peer.algorithms.learner import Fields, measured
from peer.algorithms.workspace import Workspace
from peer.core.averaging import Vector
from peer.core.model_tests import Absent

FIRST_STEP = 0  # later ones relay models of others


def tested(workspace: Workspace, absent: Absent) -> list[Fields]:
    """Return an entry for each model, as in the field ``model_tests`` of a record; the delivered models are not kept.

    Args:
        workspace: of the peer, at the close of the last round, with nothing merged.
        absent: each neighbor, and why it has no test if it delivered no model.
    """
    found: list[Fields] = []
    for model_of, slot, round_index, model in _models(workspace):
        whole = workspace.models.part.joined(workspace.models.model(slot), model)  # with this peer's private tensors
        entry: Fields = {"model_of": model_of, "slot": slot, "round_index": round_index}
        found.append(finite(entry | measured(workspace.learner.evaluate(whole))))
    own = "none" if workspace.state.trained else "sat_out"
    tests = {entry["model_of"] for entry in found}
    lost = dict.fromkeys(workspace.delivered.lost, "not_kept")
    missing = {workspace.peer_id: own} | dict(absent) | lost
    found += [{"model_of": n, "missing": why} for n, why in missing.items() if n not in tests]
    return sorted(found, key=lambda entry: (entry["model_of"], entry.get("slot", 0)))


def of_neighbors(workspace: Workspace, absent: Absent) -> list[Fields]:
    """Return the entries of the present neighbors; others have come or gone by another graph file since the tests."""
    if not workspace.model_tests:
        return untested(workspace, absent)
    neighbors, named = {n for n, _ in absent}, {entry["model_of"] for entry in workspace.model_tests}
    found = [entry for entry in workspace.model_tests if entry["model_of"] in {workspace.peer_id, *neighbors}]
    found += [{"model_of": n, "missing": "new"} for n in sorted(neighbors - named)]
    return sorted(found, key=lambda entry: (entry["model_of"], entry.get("slot", 0)))


def untested(workspace: Workspace, absent: Absent) -> list[Fields]:
    """Return the entries of a peer that was not in the last round."""
    workspace.delivered.drop()  # of a last round that it left by catching up
    missing = {workspace.peer_id: "skipped"} | dict(absent)
    return [{"model_of": n, "missing": why} for n, why in sorted(missing.items())]


def _models(workspace: Workspace) -> Iterator[tuple[int, int, int, Vector]]:
    """Yield (peer, slot, round, model) of each model, one at a time."""
    yield from workspace.delivered.take()
    for slot, model in workspace.models.snapshots(workspace.round_index, FIRST_STEP).items():
        yield workspace.peer_id, slot, workspace.round_index, model
