"""Each argument of each call of `peer`, with a wrong value: the error is ``argument=: expected ..., got ...``.

The options of a call come from their declaration, and the others from its signature, so that a new one is tested too.
"""

import inspect
import re

import pytest

import peer
from coordinator_free_bootstrap.errors import PeerError
from coordinator_free_bootstrap.generators import DrawOptions
from coordinator_free_bootstrap.options import fields_of
from peer.bed.options import BedOptions
from peer.lab.options import SimulatedOptions
from peer.runtime.local_options import LocalOptions
from peer.view.options import PageOptions

FORM = r"{}=: expected (?s:.+), got (?s:.+)"
WRONG = object()  # of no type that an option has
GRAPH = peer.Graph.make("line", peers=2, run={"rounds": 1})
# call -> a right call, and the declared options that are its keyword arguments
CALLS = {
    peer.Graph.make: (peer.Graph.make, DrawOptions),
    peer.run: (lambda **given: peer.run(**{"peer_id": 0, "graph": GRAPH, "insecure": True} | given), LocalOptions),
    peer.simulate: (lambda **given: peer.simulate(**{"graph": GRAPH} | given), SimulatedOptions),
    peer.Testbed: (lambda **given: peer.Testbed(**{"graph": GRAPH} | given), BedOptions),
    peer.watch: (lambda **given: peer.watch(**{"directory": "."} | given), PageOptions),
    peer.Graph.load: (peer.Graph.load, None),
    peer.Graph.save: (GRAPH.save, None),
    peer.Graph.node: (GRAPH.node, None),
    peer.Run: (lambda **given: peer.Run(**{"directory": "."} | given), None),
    peer.Testbed.wait_round: (lambda **given: peer.Testbed(GRAPH).wait_round(**given), None),
}


def arguments():
    """Yield each call with the name of each argument."""
    for call, (_, declared) in CALLS.items():
        own = [name for name in inspect.signature(call).parameters if name not in ("self", "cls", "options")]
        for name in [*own, *(fields_of(declared) if declared else ())]:
            yield pytest.param(call, name, id=f"{call.__qualname__}-{name}")


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(("call", "name"), list(arguments()))
def test_a_wrong_value_of_an_argument_is_refused_by_its_name(call, name):
    """Before, `Graph.load`, `watch` and others raised TypeError, and `simulate` made a folder of the text of any object."""
    with pytest.raises(PeerError) as caught:
        CALLS[call][0](**{name: WRONG})
    assert re.fullmatch(FORM.format(name), str(caught.value))


BOUNDED = [
    (peer.Graph.make, {"peers": 1}, "peers=: expected at least 2, got 1"),
    (peer.Graph.make, {"peers": 100_001}, "peers=: expected at most 100000, got 100001"),
    (peer.Graph.make, {"kind": "cube"}, "kind=: expected one of ring, .*, got 'cube'"),
    (peer.Graph.make, {"degree": 9.0}, "degree=: expected a number from 1 to 7 with 8 peers, got 9"),
    (peer.Graph.make, {"kind": "torus", "peers": 7}, "peers=: expected rows times columns .*, got 7"),
    (peer.Graph.make, {"base_port": 65535}, "base_port=: expected host:port .*, got 65535, which gives .*"),
    (peer.Graph.make, {"address_template": "h:1"}, r"address_template=: expected \{id\} or \{port\} in it, got 'h:1'"),
    (peer.Graph.make, {"run": {"rounds": 0}}, "run.rounds: expected at least 1, got 0"),
    (peer.Graph.make, {"run": {"algorithm": int}}, "run.algorithm: expected a name, .*, got <class 'int'>"),
    (peer.run, {"peer_id": 2}, "peer_id=: expected one of 0, 1, got 2"),
    (peer.run, {"device": "gpu"}, "device=: expected auto, cpu, cuda, cuda:N or mps, got 'gpu'"),
    (peer.run, {"listen": "here"}, "listen=: expected host:port .*, got 'here'"),
    (peer.run, {"algorithm": "sum"}, "algorithm=: expected one of .*, got 'sum'"),
    (peer.simulate, {"task": "sum"}, "task=: expected one of .*, got 'sum'"),
    (peer.simulate, {"device": "gpu"}, "device=: expected auto, cpu, cuda, cuda:N or mps, got 'gpu'"),
    (peer.watch, {"listen": -1}, "listen=: expected a port, .*, got -1"),
    (peer.Testbed.wait_round, {"rounds": 9}, "rounds=: expected 0 to 1, the rounds of the run, got 9"),
]


@pytest.mark.parametrize(("call", "given", "words"), BOUNDED)
def test_a_value_out_of_bounds_is_refused_by_the_name_of_the_argument(call, given, words):
    with pytest.raises(PeerError, match=f"^{words}$"):
        CALLS[call][0](**given)


def test_the_methods_of_a_run_name_their_arguments(tmp_path):
    run = peer.simulate(GRAPH, progress=False)
    calls = [
        ("metric", lambda: run.plot(WRONG)),
        ("metric", lambda: run.plot("colour")),
        ("export", lambda: run.export(WRONG)),
        ("export", lambda: run.export("excel:x")),
        ("peer_id", lambda: run.personalized(WRONG)),
        ("peer_id", lambda: run.export_model(9, tmp_path / "model.pt")),
        ("to", lambda: run.export_model(0, WRONG)),
        ("to", lambda: run.export_model(0, "model.h5")),
        ("best", lambda: run.export_model(0, tmp_path / "model.pt", "best")),
    ]
    for name, call in calls:
        with pytest.raises(PeerError) as caught:
            call()
        assert re.match(FORM.format(name), str(caught.value))
