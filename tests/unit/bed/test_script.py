"""The table of faults and scripts: validation, random scripts, documentation."""

from __future__ import annotations

import signal
from collections.abc import Iterable
from pathlib import Path

import pytest

from coordinator_free_bootstrap import Graph, make_graph
from coordinator_free_bootstrap.errors import ConfigError
from peer.bed.chaos.faults import FAULTS, FaultEvent
from peer.bed.chaos.script import Script, load_script, parse_event, random_script
from peer.failpoints import SIGNALS
from peer.view.report.faults import spans

GRAPH: Graph = make_graph("erdos-renyi", 8, seed=1, degree=4.0)
ROOT = Path(__file__).parents[3]
EXAMPLE = ROOT / "examples" / "chaos.toml"


def test_every_fault_can_be_executed_and_undone_on_each_backend() -> None:
    """A fault with an undo has one for each of its backends, and the undo takes the key that says where."""
    for name, fault in FAULTS.items():
        assert fault.help.endswith(".") and FaultEvent.model_fields.keys() >= {*fault.takes}, name
        if fault.undo is None:
            assert fault.weight == 0, f"{name}: random faults must be undone"
            continue
        undo = FAULTS[fault.undo]
        assert undo.undo is None and undo.network == fault.network
        assert (undo.containers is None) <= (fault.containers is None), f"{name}: containers cannot undo it"
        assert fault.needs[0] in undo.takes or undo.needs == [], name


def test_failpoints_use_the_signals_of_the_faults_with_the_same_name() -> None:
    class Bed:
        def signal(self, peer_id: int, number: int) -> bool:
            sent.append(number)
            return True

    for name, number in SIGNALS.items():
        sent: list[int] = []
        assert FAULTS[name].processes(Bed(), FaultEvent(do=name, peers=(1,))) == "done"
        assert sent == [getattr(signal, number)]


def test_the_documentation_lists_every_fault() -> None:
    rows = [f"| `{name}` | {fault.keys} | {fault.help} |" for name, fault in FAULTS.items()]
    text = (ROOT / "docs" / "reliability.md").read_text()
    assert "\n".join(rows) in text, "docs/reliability.md must have these rows:\n" + "\n".join(rows)


def test_the_example_is_a_valid_script_for_eight_peers() -> None:
    script = load_script(EXAMPLE)
    script.check(GRAPH, str(EXAMPLE))
    assert script.needs_network and {event.do for event in script.event} >= {"kill", "pause", "partition", "leave"}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('[[event]]\ndo = "explode"\npeers = [1]', "event[0].do: expected kill, pause"),
        ('[[event]]\ndo = "kill"', "expected peers beside do = 'kill', got none"),
        ('[[event]]\ndo = "cut"\nedges = [[0, 1]]\npeers = [1]', "expected no peers beside do = 'cut', got one"),
        ('[[event]]\ndo = "heal"\nfor_s = 2', "cannot be undone"),
        ('[[event]]\ndo = "kill"\npeers = [1]\nmode = "reset"', "expected no mode beside do = 'kill', got one"),
        ('[[event]]\ndo = "kill"\npeers = [1]\nat_s = 1\nat_round = 2', "at_s or at_round"),
        ('[[event]]\ndo = "slow"\nedges = [[0, 1]]', "expected toxics beside do = 'slow', got none"),
        ('[[event]]\ndo = "kill"\npeer = 3', "no such key"),
        ("event = 3", "event"),
        ("[[event", "examples/chaos.toml"),
    ],
)
def test_a_wrong_script_is_refused_with_the_file_the_key_and_what_is_allowed(
    tmp_path: Path, text: str, says: str
) -> None:
    path = tmp_path / "chaos.toml"
    path.write_text(text)
    with pytest.raises(ConfigError) as error:
        load_script(path)
    assert says in str(error.value).replace('"', "'") and "chaos.toml" in str(error.value)


def test_a_script_for_another_graph_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"expected .*, got 9"):
        Script(event=(parse_event("do=kill peers=9"),)).check(GRAPH, "x")
    absent = next((0, b) for b in range(1, 8) if (0, b) not in GRAPH.edges)
    with pytest.raises(ConfigError, match=f"got 0-{absent[1]}"):
        Script(event=(parse_event(f"do=cut edges=0-{absent[1]}"),)).check(GRAPH, "x")


def test_a_script_that_would_start_nobody_is_refused() -> None:
    everybody = ",".join(map(str, GRAPH.ids))
    with pytest.raises(ConfigError, match="a join for each of 8 peers"):
        Script(event=(parse_event(f"do=join peers={everybody} at_round=2"),)).check(GRAPH, "x")
    Script(event=(parse_event(f"do=join peers={everybody} at_s=0"),)).check(GRAPH, "x")


def test_an_event_is_parsed_from_one_line() -> None:
    event = parse_event("do=partition groups=0,1|2,3 for_s=5")
    assert event.groups == ((0, 1), (2, 3)) and event.undo().do == "heal"
    assert parse_event("do=slow edges=0-1 latency_ms=20").toxics.latency_ms == 20
    assert parse_event("do=kill peers=3 disk=lose for_s=1").undo().disk == "lose"
    assert parse_event("do=isolate peers=3 mode=reset for_s=1").undo() == FaultEvent(do="heal", peers=(3,))
    assert parse_event("do=one_way edges=0-1 for_s=1").undo() == FaultEvent(do="heal", edges=((0, 1),))
    with pytest.raises(ConfigError):
        parse_event("kill 3")


def drawn(seed: int, names: Iterable[str] = FAULTS) -> Script:
    return random_script(names, GRAPH.ids, GRAPH.edges, seed, 60.0)


def test_a_random_script_depends_on_its_seed_only_and_ends_in_time() -> None:
    for seed in range(20):
        script = drawn(seed)
        assert script == drawn(seed) and script.event
        script.check(GRAPH, "random")
        assert all((event.at_s or 0) + (event.for_s or 0) <= 60.0 for event in script.event)
        down: list[tuple[float, float]] = [
            (event.at_s or 0, (event.at_s or 0) + (event.for_s or 0)) for event in script.event if event.peers
        ]
        for begin, _ in down:
            assert sum(b <= begin < e for b, e in down) <= 2, "at most a quarter of eight peers is down"
    assert drawn(1) != drawn(2)
    assert {event.do for seed in range(20) for event in drawn(seed).event} == {n for n, f in FAULTS.items() if f.weight}
    assert {event.do for event in drawn(3, ["kill", "heal"]).event} == {"kill"}


def test_a_span_lasts_from_a_fault_to_its_undo() -> None:
    def line(at: float, do: str, **fields: object) -> dict[str, object]:
        return {"at": at, "do": do, "undo": FAULTS[do].undo, "result": "done", **fields}

    lines = [
        line(1, "kill", peers=[1, 2]),
        line(2, "restart", peers=[1]),
        line(3, "cut", edges=[[0, 1]]),
        line(4, "heal", edges=[[1, 0]]),
        line(5, "pause", peers=[3]) | {"result": "skipped, not running: 3"},
        line(6, "partition", groups=[[0], [1]]),
        line(7, "isolate", peers=[4]),
        line(8, "kill", peers=[4]),
        line(9, "heal", peers=[4]),
    ]
    found = [(s.kind, s.peer, s.begin_s, s.end_s) for s in spans(lines, 0.0, 10.0)]
    assert found == [
        ("kill", 1, 1, 2), ("kill", 2, 1, 10.0), ("network", None, 3, 4), ("network", None, 6, 10.0),
        ("network", None, 7, 9), ("kill", 4, 8, 10.0),
    ]  # fmt: skip
