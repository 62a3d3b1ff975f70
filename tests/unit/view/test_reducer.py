"""Events of a run to its state at a cursor: a table of events, replay at a round, and files read in any pieces."""

import json
import random

import pytest
from tools.fake_run import ACCURACY, FINAL, ROUNDS, STATUS, accuracy_at, write_graph, write_peer

from peer.store.history import HistoryWriter
from peer.store.state_dir import StateDir
from peer.view.report.report import build_report
from peer.view.state.agreement import adjusted_rand_index
from peer.view.state.events import LoggedEvent
from peer.view.state.peer_state import PeerState
from peer.view.state.peer_status import read_status
from peer.view.state.reducer import STRIDE, EventLog, RunState, reduce
from peer.view.state.tail import FileTail, RunTail
from peer.view.state.view import View


def fold(*events: dict) -> PeerState:
    state = RunState()
    for at, data in enumerate(events):
        state = reduce(state, LoggedEvent(float(at + 1), 3, data))
    return state.peers[3]


START = {"kind": "start", "incarnation": 1, "true_cluster": 1}
ROUND = {"kind": "round", "round_index": 0, "metric_value": 0.5, "folded": [[1, 9, 0, 0, 0]], "models_sent": 2}
ALIVE = {"kind": "neighbor", "neighbor": 1, "state": "alive"}
END = {"kind": "end", "rounds_completed": 1, "metric_value": 0.75, "models_sent": 1}
HELD, FREE = ({"kind": "process", "held": held} for held in (True, False))
SUMMARY = {"kind": "summary", "summary": {"status": "diverged", "incarnation": 1, "loss": None}}
LATER = {"kind": "summary", "summary": {"status": "diverged", "incarnation": 2}}
AGAIN = {"kind": "start", "incarnation": 2}
ANSWER = {"kind": "status", "status": read_status(STATUS | {"round_index": 0, "metric": ACCURACY})}
LOST = {"kind": "lost"}


@pytest.mark.parametrize(
    ("events", "status", "rounds", "value"),
    [
        ([FREE], "missing", 0, None),
        ([HELD], "running", 0, None),
        ([START], "dead", 0, None),
        ([START, HELD], "running", 0, None),
        ([START, ROUND, HELD], "running", 1, 0.5),
        ([START, ROUND, HELD, FREE], "dead", 1, 0.5),
        ([START, ROUND, END], "completed", 1, 0.75),
        ([START, ROUND, END, AGAIN, HELD], "running", 1, 0.5),
        ([START, ROUND, {"kind": "leave"}], "left", 1, 0.5),
        ([START, ROUND, SUMMARY], "diverged", 1, 0.5),
        ([START, ROUND, LATER], "dead", 1, 0.5),
        ([START, ANSWER], "running", 0, None),
        ([START, ANSWER, {"kind": "silent", "reason": "no route"}], "silent", 0, None),
        ([START, ROUND, LOST, AGAIN, HELD], "running", 0, None),
        ([SUMMARY], "diverged", 0, None),
        ([{"kind": "exit", "exit_code": 12}], "failed", 0, None),
        ([{"kind": "exit", "exit_code": -9}], "dead", 0, None),
        ([{"kind": "exit", "exit_code": 0}], "missing", 0, None),
    ],
)
def test_events_give_a_status(events, status, rounds, value):
    state = fold(*events)
    assert (state.status, state.rounds_completed, state.last.get("metric_value")) == (status, rounds, value)


def test_counters_neighbors_and_missing_rounds_are_summed():
    late = {"kind": "round", "round_index": 1, "missing": [1], "seconds": {"train": 2.0}, "models_sent": 1}
    state = fold(START, ALIVE, ROUND, late, END)
    assert (state.totals.models_sent, state.folded, state.neighbors) == (4, {1: 1}, {1: "alive"})
    assert (state.missing, state.phase_seconds()["train"], state.met_neighbor) == ({1}, 2.0, True)
    assert fold(START, late, {"kind": "round", "round_index": 1}).missing == frozenset()


def test_a_state_does_not_change_with_later_events():
    state = reduce(RunState(), LoggedEvent(1.0, 3, START))
    before = state.peers[3].copy()
    reduce(reduce(state, LoggedEvent(2.0, 3, ROUND)), LoggedEvent(3.0, 3, ALIVE))
    assert state.peers[3] == before


def random_events(seed: int, count: int) -> list[LoggedEvent]:
    choices = [START, ROUND, ALIVE, END, HELD, FREE, SUMMARY, LATER, AGAIN, ANSWER, LOST]
    choices.append({"kind": "fault", "do": "kill", "text": "kill 1", "result": "done"})
    source = random.Random(seed)
    found = []
    for at in range(count):
        data = source.choice(choices)
        if data["kind"] == "round":
            data = data | {"round_index": source.randrange(5)}
        peer = None if data["kind"] == "fault" else source.randrange(3)
        found.append(LoggedEvent(at + source.random(), peer, data))
    return found


@pytest.mark.parametrize("seed", range(5))
def test_the_state_at_a_cursor_is_the_fold_of_the_events_before_it(seed):
    events, log, folded = random_events(seed, 8 * STRIDE), EventLog(), [RunState()]
    source, rest = random.Random(seed), list(events)
    while rest:  # in pieces of any size
        size = source.randrange(1, 20)
        log.append(rest[:size])
        del rest[:size]
    for event in events:
        folded.append(reduce(folded[-1], event))
    for cursor, expected in enumerate(folded):
        found = log.state(cursor)
        assert (found.cursor, found.at, found.news) == (cursor, expected.at, expected.news)
        assert {i: peer for i, peer in found.peers.items() if peer.position} == expected.peers
    assert log.state() == log.state(len(events))


def written(directory):
    write_graph(directory)
    for peer_id in FINAL:
        write_peer(directory, peer_id)


@pytest.mark.parametrize("most", [1, 7, 300, 1 << 20])
def test_a_file_gives_the_same_lines_in_pieces_of_any_size(tmp_path, most):
    data = write_peer(tmp_path, 0).history.read_bytes()
    path, tail, found = tmp_path / "growing", FileTail(tmp_path / "growing"), b""
    assert tail.read() == b""
    for end in range(0, len(data) + 1, 97):
        path.write_bytes(data[:end])
        while piece := tail.read(most):
            assert piece.endswith(b"\n")
            found += piece
    path.write_bytes(data)
    while piece := tail.read(most):
        found += piece
    assert found == data and tail.replaced == 0


def test_a_replaced_history_starts_the_peer_anew(tmp_path):
    written(tmp_path)
    tail = RunTail(tmp_path)
    tail.refresh()
    place = StateDir.of_peer(tmp_path, 1)
    size = place.history.stat().st_size
    place.history.unlink()
    with HistoryWriter(place.history) as history:
        while place.history.stat().st_size <= size:  # the new file is longer: its size does not tell
            history.write("round", round_index=0, metric_value=0.1, models_sent=1)
    assert tail.refresh()
    assert [event.kind for _, event in tail.log.news if event.peer == 1].count("lost") == 1
    fresh = RunTail(tmp_path)
    fresh.refresh()
    for key in ("totals", "rounds", "last", "status"):
        assert getattr(tail.log.newest(1), key) == getattr(fresh.log.newest(1), key)


def test_a_directory_read_while_it_grows_gives_what_it_gives_at_the_end(tmp_path):
    whole, grown = tmp_path / "whole", tmp_path / "grown"
    whole.mkdir(), grown.mkdir()
    written(whole)
    write_graph(grown)
    tail = RunTail(grown)
    source = random.Random(1)
    files = {path: path.read_bytes() for path in whole.glob("peer-*/*.json*")}
    while files:
        path = source.choice(sorted(files))
        target = grown / path.relative_to(whole)
        target.parent.mkdir(exist_ok=True)
        done = target.stat().st_size if target.exists() else 0
        end = (
            len(files[path]) if path.name == "summary.json" else min(len(files[path]), done + source.randrange(1, 500))
        )
        target.write_bytes(files[path][:end])
        tail.refresh()
        if end == len(files[path]):
            del files[path]
    at_once = RunTail(whole)
    at_once.refresh()
    assert tail.log.cursor == at_once.log.cursor
    for peer_id, expected in at_once.log.peers.items():
        found = tail.log.newest(peer_id)
        assert (found.last, found.totals, found.status, found.folded) == (
            expected.last,
            expected.totals,
            expected.status,
            expected.folded,
        )


def test_replay_at_a_round_equals_the_lines_of_the_round(tmp_path):
    written(tmp_path)
    tail = RunTail(tmp_path)
    tail.refresh()
    view = View(tail.log, tail.graph)
    for index in range(ROUNDS):
        shown = view.at_round(index)
        assert {row["id"]: (row["round"], row["metric"]) for row in shown["peers"]} == {
            i: (index + 1, pytest.approx(accuracy_at(i, index))) for i in FINAL
        }
        assert all(row["totals"]["payload_bytes_sent"] == 64_000 * (index + 1) for row in shown["peers"])
    assert view.at(0)["header"]["rounds_max"] == 0


def test_the_header_equals_the_report(tmp_path):
    written(tmp_path)
    tail = RunTail(tmp_path)
    tail.refresh()
    header, values = View(tail.log, tail.graph).everything()["header"], build_report(tmp_path).values
    assert (header["mean"], header["worst"], header["tenth"], header["ari"], header["rounds_max"]) == (
        values["metric_mean"],
        values["metric_worst"],
        values["metric_p10"],
        values["cluster_ari"],
        values["rounds"],
    )
    assert (
        header["totals"]["payload_bytes_sent"] == values["payload_bytes_sent"]
        and header["ended"]
        and header["down"] == 0
    )


def test_changes_since_a_cursor_lead_to_everything(tmp_path):
    write_graph(tmp_path)
    tail = RunTail(tmp_path)
    view, cursor = View(tail.log, tail.graph), 0
    peers, edges, rounds, cells = {}, {}, {}, {}
    for peer_id in (None, 0, 1, 2, 3):
        if peer_id is not None:
            write_peer(tmp_path, peer_id)
        tail.refresh()
        changes = json.loads(json.dumps(view.since(cursor), allow_nan=False))
        assert {row["id"] for row in changes["peers"]} <= {i for i in FINAL}
        peers |= {row["id"]: row for row in changes["peers"]}
        edges |= {(row["a"], row["b"]): row for row in changes["edges"]}
        table = dict(changes["rounds"])
        found = table.pop("cells")
        cells |= {(p, r): (m, c) for p, r, m, c in zip(*found.values(), strict=True)}
        rounds |= {row[0]: row for row in zip(*table.values(), strict=True)}
        cursor = changes["cursor"]
    whole = json.loads(json.dumps(view.everything()))
    assert whole["peers"] == [peers[i] for i in sorted(peers)]
    assert whole["edges"] == [edges[key] for key in sorted(edges)]
    table = dict(whole["rounds"])
    assert len(table.pop("cells")["peer"]) == len(cells) == 4 * ROUNDS
    assert list(zip(*table.values(), strict=True)) == [rounds[r] for r in sorted(rounds)]
    assert view.since(cursor)["peers"] == []


@pytest.mark.parametrize("seed", range(20))
def test_the_adjusted_rand_index_is_that_of_scikit_learn(seed):
    import numpy as np
    from sklearn.metrics import adjusted_rand_score

    random_numbers = np.random.default_rng(seed)
    size, true_count, found_count = (int(random_numbers.integers(1, n)) for n in (30, 5, 5))
    true, found = random_numbers.integers(0, true_count, size), random_numbers.integers(0, found_count, size)
    assert adjusted_rand_index(true, found) == pytest.approx(adjusted_rand_score(true, found))


def test_a_history_line_of_a_kind_that_is_not_of_histories_is_no_event(tmp_path):
    """Before, such a line was taken as what an observer, the lock or a fault runner says."""
    place = StateDir.of_peer(tmp_path, 0)
    place.root.mkdir()
    foreign = ({"kind": "process", "held": True}, {"kind": "fault"}, {"kind": "of a later version"})
    place.history.write_text("".join(json.dumps(line) + "\n" for line in (START, *foreign)))
    tail = RunTail(tmp_path)
    tail.refresh()
    assert [event.kind for event in tail.log.events(0)] == ["start", "process"]
    assert tail.log.newest(0).status == "dead" and not tail.log.problems
