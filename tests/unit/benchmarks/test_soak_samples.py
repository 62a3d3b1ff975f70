"""The soak names what grows, and only that; its faults end no peer whose memory is watched."""

import json

import pytest
from growing import growth_exponent, slope
from soak import LASTS_S, PEERS, SAMPLES, STEADY, faults, last_round, summarize, table, with_cost_of_rounds

from coordinator_free_bootstrap import make_graph
from peer.view.state.tail import TIMELINE


def samples(**slopes):
    """Forty samples of each peer, 100 rounds apart; quantities of steady peers grow by so much a round."""
    base = {"private_mb": 20.0, "anonymous_mb": 190.0, "files": 30.0, "threads": 10.0, "other_bytes": 2000.0}
    base |= {"round_s": 0.1, "history_bytes": 0.0, "audit_bytes": 0.0, "log_bytes": 0.0, "processor_s": 1.0}
    usual = {"processor_s": 0.005, "history_bytes": 700.0, "audit_bytes": 900.0, "log_bytes": 70.0}
    return [
        {"peer": peer, "pid": peer, "number": at, "rounds": 100 * at, "time": 10.0 * at}
        | {k: v + (usual | (slopes if peer in STEADY else {})).get(k, 0.0) * 100 * at for k, v in base.items()}
        for at in range(1, 41)
        for peer in range(PEERS)
    ]


def test_a_level_run_has_nothing_that_grows():
    rows, growing = table(samples())
    assert growing == []
    assert [row[-1] for row in rows[-2:]] == ["grows with the rounds"] * 2


@pytest.mark.parametrize(
    ("key", "per_round", "name"),
    [
        ("private_mb", 0.002, "private memory"),
        ("anonymous_mb", 0.0005, "anonymous memory, with pages of the parent"),
        ("files", 0.01, "file descriptors"),
        ("threads", 0.01, "threads"),
        ("other_bytes", 10.0, "disk without history, audit log and log"),
        ("round_s", 0.0001, "seconds of a round, median"),
    ],
)
def test_what_grows_is_named(key, per_round, name):
    assert table(samples(**{key: per_round}))[1] == [name]


def test_the_processor_time_of_a_round_is_that_between_two_samples():
    rows = with_cost_of_rounds([s for s in samples() if s["peer"] == 0])
    assert [row["round_cpu_ms"] for row in rows] == pytest.approx([5.0] * 39)


def slower(lines, peers):
    """The samples with a round of 5 ms at first and of 10 ms from the 20th on."""
    return [
        line | {"processor_s": line["processor_s"] + 0.5 * max(0, line["number"] - 20)}
        if line["peer"] in peers
        else line
        for line in lines
    ]


def test_a_slower_machine_is_no_growth_and_slower_old_peers_are():
    assert table(slower(samples(), range(PEERS)))[1] == []
    assert table(slower(samples(), STEADY))[1] == ["processor time of a round, times that of restarted peers"]


def test_a_restart_is_no_cost_of_rounds():
    lines = [line | {"pid": 1 + (line["number"] > 20)} for line in samples() if line["peer"] == 7]
    assert [row["number"] for row in with_cost_of_rounds(lines)] == [*range(2, 21), *range(22, 41)]


def test_faults_are_short_and_end_no_watched_peer():
    graph = make_graph("ring", 8)
    script = faults(graph, 3600, 30.0, seed=1)
    script.check(graph, "soak")
    kinds = {event.do for event in script.event}
    assert kinds == {"kill", "pause", "cut", "one_way", "slow", "partition"}
    assert all(0 < (event.for_s or 0) <= LASTS_S for event in script.event)
    killed = {peer for event in script.event if event.do == "kill" for peer in event.peers}
    assert killed and killed.isdisjoint(STEADY)


def test_a_run_in_which_no_fault_happened_is_no_soak(tmp_path):
    (tmp_path / SAMPLES).write_text("".join(json.dumps(line) + "\n" for line in samples()))
    with pytest.raises(SystemExit, match="no fault happened"):
        summarize(tmp_path)
    (tmp_path / TIMELINE).write_text(json.dumps({"kind": "fault", "do": "kill", "result": "not running"}) + "\n")
    with pytest.raises(SystemExit, match="no fault happened"):
        summarize(tmp_path)
    (tmp_path / TIMELINE).write_text(json.dumps({"kind": "fault", "do": "kill", "result": "done"}) + "\n")
    assert summarize(tmp_path) == []


def test_the_last_round_is_read_from_the_end_of_a_long_history(tmp_path):
    path = tmp_path / "history.jsonl"
    lines = [{"kind": "round", "round_index": i, "t": 0.25 * i, "incarnation": 1} for i in range(5000)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert last_round(path) == (5000, 0.25)


def test_slopes():
    assert slope([1, 2, 3], [2, 4, 6]) == pytest.approx(2)
    assert slope([5], [7]) == 0.0
    assert growth_exponent([10, 100, 1000], [3, 30, 300]) == pytest.approx(1)
    assert growth_exponent([10, 100, 1000], [3, 3, 3]) == pytest.approx(0)
    with pytest.raises(ValueError, match="above 0"):
        growth_exponent([10, 100], [0, 1])
