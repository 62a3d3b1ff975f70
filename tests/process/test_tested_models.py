"""Goal: after its end each peer has the tests of its neighbors' last models, whatever is killed in the last round.

Method: real processes in lockstep; failpoints kill one in the last round, or between the last checkpoint and its end line.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tools import invariants
from tools.beds import Bed
from tools.warm_parent import WarmParent

from peer.view.report.report import build_report

pytestmark = pytest.mark.process

Make = Callable[..., Bed]
VICTIM = 1
ROUNDS = 4
LAST = f"@{ROUNDS}"
Tests = dict[int, list[dict[str, Any]]]


def results_of(run: Bed, *but: int) -> Tests:
    """Return the field of the end lines, which the summaries repeat."""
    found: Tests = {}
    for peer_id in {*run.graph.ids} - {*but}:
        (end,) = run.history(peer_id, "end")
        assert run.summary(peer_id)["model_tests"] == end["model_tests"]
        found[peer_id] = end["model_tests"]
    return found


@pytest.fixture(scope="module")
def undisturbed(warm_parent: WarmParent, tmp_path_factory: pytest.TempPathFactory) -> Tests:
    with Bed(warm_parent, tmp_path_factory.mktemp("undisturbed"), rounds=ROUNDS) as run:
        assert run.finish()["failed"] == {}
        found = results_of(run)
        for peer_id, tests in found.items():
            assert {test["model_of"] for test in tests} == {peer_id, *run.graph.neighbors(peer_id)}
            assert not any("missing" in test for test in tests)
        return found


@pytest.mark.parametrize("point", [f"close.begin=kill{LAST}", f"close.end=kill{LAST}", f"persist.end=kill{LAST}"])
def test_a_restart_in_or_after_the_last_round_neither_loses_nor_changes_a_test(
    bed: Make, undisturbed: Tests, point: str
) -> None:
    run = bed(rounds=ROUNDS, failpoints={VICTIM: point})
    assert run.until_ended(VICTIM) == -9 and run.fired(VICTIM) == 1
    run.arm(VICTIM, "")
    run.do("restart", VICTIM)
    assert run.finish()["failed"] == {}
    invariants.completed(run)
    resumed = run.history(VICTIM, "start")[-1]["resumed_from"]
    assert resumed == (ROUNDS if point.startswith("persist") else ROUNDS - 1), "it was killed elsewhere"
    assert results_of(run) == undisturbed


def test_a_neighbor_that_dies_in_the_last_round_is_missing_with_the_reason(bed: Make, undisturbed: Tests) -> None:
    run = bed(rounds=ROUNDS, timeouts={"suspicion_s": 3.0}, failpoints={VICTIM: f"train.begin=kill{LAST}"})
    assert run.until_ended(VICTIM) == -9 and run.fired(VICTIM) == 1
    run.finish()
    invariants.completed(run, *({*run.graph.ids} - {VICTIM}))
    found = results_of(run, VICTIM)
    for peer_id, tests in found.items():
        missing = {test["model_of"]: test["missing"] for test in tests if "missing" in test}
        neighbors = run.graph.neighbors(peer_id)
        assert missing == ({VICTIM: "dead"} if VICTIM in neighbors else {})
        # up to the last training nothing differs, so the other numbers are those of an undisturbed run
        assert [t for t in tests if "missing" not in t] == [t for t in undisturbed[peer_id] if t["model_of"] != VICTIM]
    values = build_report(run.directory).values["matrix"]
    assert values["missing"] == {"dead": sum(VICTIM in run.graph.neighbors(peer_id) for peer_id in found)}
    assert {test["data_of"] for test in values["tests"]} == {*found}


def test_no_file_of_the_delivered_models_is_left(bed: Make) -> None:
    run = bed(rounds=2)
    assert run.finish()["failed"] == {}
    known = {
        "history.jsonl",
        "summary.json",
        "incarnation.json",
        "origin.json",
        "checkpoints",
        "models",
        "sent",  # its own last one
        "audit.jsonl",
        "peer.log",
        "lock",
    }
    for peer_id in run.graph.ids:
        left = {path.name for path in Path(run.place(peer_id).root).iterdir()}
        assert left <= known, left - known
