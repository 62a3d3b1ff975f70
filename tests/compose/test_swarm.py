"""`peer deploy swarm` on a real swarm: a run to its end, a killed peer, a drained node, and another image."""

import pytest
from engine import IMAGE, NoEngine
from own_task import DATA, graph_with_own_task
from swarm import Deployed, another_image, shared_folder, swarm
from tools.page_client import film, opened

from coordinator_free_bootstrap import make_graph, parse_manifest
from peer.ops.deploy.given_data import data_here
from peer.ops.deploy.swarm import Stack

pytestmark = pytest.mark.compose

PLACE = "127.0.0.1:7480"
ROUNDS = 800  # of the run that ends: the page must have reached both peers before
ENDLESS = {
    "task": "digits",
    "rounds": 100_000,
    "checkpoint_rounds": 5,
    "start": {"wait_for": "all", "deadline_s": 600.0},
    "timeouts": {"suspicion_s": 60.0},  # a peer of a busy machine may be silent for seconds; no death is awaited
}


def graph(peers, **run):
    return make_graph("complete", peers, manifest=parse_manifest(ENDLESS | run, "test"))


@pytest.fixture(scope="module")
def cluster(host):
    """A swarm of one or two engines."""
    try:
        with swarm(host) as found:
            yield found
    except NoEngine as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def stacks(cluster, tmp_path_factory):
    """Three stacks: one with a task file and data that ends, one with a node for each peer, one with a folder of all nodes."""
    folder = tmp_path_factory.mktemp("swarm")
    nodes = tuple(cluster.hosts)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        own = graph_with_own_task(
            folder, 2, "complete", **ENDLESS | {"task": "code/readings.py:task", "rounds": ROUNDS}
        )
        yield from _stacks(cluster, folder, nodes, own)


def _stacks(cluster, folder, nodes, own):
    shared = shared_folder(folder / "state", graph(3))
    with (
        Deployed(cluster, folder / "ends", own, Stack(IMAGE, data=data_here(DATA, own))) as ends,
        Deployed(cluster, folder / "volumes", graph(2), Stack(IMAGE, nodes=nodes), page_port=7481) as volumes,
        Deployed(cluster, folder / "shares", graph(3), Stack(IMAGE, state=shared), page_port=7482) as shares,
    ):
        for stack in (volumes, shares):
            for peer_id in stack.graph.ids:
                stack.until(lambda s=stack, i=peer_id: s.rounds(i), f"peer {peer_id} completes a round")
        yield ends, volumes, shares
        for stack in (ends, volumes, shares):  # all of them stop at the same time
            stack.remove()


@pytest.fixture
def two_nodes(cluster):
    """Skip a test with one engine."""
    if cluster.alone_because:
        pytest.skip(cluster.alone_because)
    return cluster


def moves_on(stack, peer_id):
    """Wait until a peer completes a round after the last that it has now."""
    last = max(stack.rounds(peer_id), default=-1)
    stack.until(lambda: max(stack.rounds(peer_id), default=-1) > last, f"peer {peer_id} completes a round after {last}")


def test_peers_run_on_the_nodes_to_which_they_are_dealt(cluster, stacks, two_nodes):
    manager, worker = cluster.hosts
    assert [stacks[1].node(f"peer-{i}") for i in range(2)] == [manager, worker]


def test_a_container_has_only_its_own_key_and_is_not_root(stacks):
    code, said = (
        stacks[1]
        .container("peer-1")
        .exec_run(
            ["python", "-c", "import os; print(sorted(os.listdir('/keys')), os.geteuid(), os.access('/', os.W_OK))"]
        )
    )
    assert (code, said.decode()) == (0, "['peer-1.key', 'peer-1.pem'] 10001 False\n")


def test_a_killed_peer_resumes_from_its_volume(stacks):
    volumes = stacks[1]
    (first,) = volumes.starts(0)
    volumes.until(lambda: any(line["kind"] == "checkpoint" for line in volumes.history(0)), "peer 0 has a checkpoint")
    volumes.container("peer-0").kill()
    again = volumes.until(lambda: volumes.starts(0)[1:], "peer 0 starts again")[0]
    assert again["resumed_from"] is not None and again["incarnation"] > first["incarnation"]
    moves_on(volumes, 0)


def test_all_peers_complete_and_stay_and_the_page_shows_them(stacks):
    ends = stacks[0]
    for peer_id in ends.graph.ids:
        ends.until(lambda i=peer_id: any(line["kind"] == "end" for line in ends.history(i)), f"peer {peer_id} ends")
        assert ends.rounds(peer_id) == list(range(ROUNDS))
        assert all(line["missing"] == [] for line in ends.history(peer_id) if line["kind"] == "round")
    cookie = opened(PLACE, ends.until(ends.link, "the page prints a link").partition("?")[2])

    def shown():
        peers = film(PLACE, cookie)["state"]["peers"]
        return [peer["id"] for peer in peers if peer["status"] == "completed"] == [0, 1]

    ends.until(shown, "the page shows that all peers have completed the run")
    for peer_id in ends.graph.ids:
        ends.until(
            lambda i=peer_id: probed(ends, i) == (0, "completed"), f"a probe of peer {peer_id} after its end succeeds"
        )
        assert len(ends.starts(peer_id)) == 1


def probed(stack, peer_id):
    """Return exit code and output of the last health probe of a peer that runs."""
    log = stack.container(f"peer-{peer_id}").attrs["State"]["Health"]["Log"]
    return (log[-1]["ExitCode"], log[-1]["Output"].strip()) if log else None


@pytest.fixture(scope="module")
def drained(cluster, stacks):
    """Drain the worker, if there is one; return the stacks, and the peers of each that were on it."""
    _, volumes, shares = stacks
    if cluster.alone_because:
        return volumes, [], shares, []
    volumes.deploy(Stack(IMAGE))  # now its peers may move
    worker = list(cluster.hosts)[1]
    moved = []
    for stack in (volumes, shares):
        on_worker = [
            i
            for i in stack.graph.ids
            if stack.until(lambda s=stack, i=i: s.node(f"peer-{i}"), f"peer {i} runs") == worker
        ]
        for peer_id in on_worker:
            stack.until(
                lambda s=stack, i=peer_id: any(line["kind"] == "checkpoint" for line in s.history(i)),
                f"peer {peer_id} has a checkpoint",
            )
        moved.append({i: stack.starts(i)[-1]["incarnation"] for i in on_worker})
    cluster.set_availability(worker, "drain")
    for stack in (volumes, shares):
        for i in stack.graph.ids:
            stack.until(lambda s=stack, i=i: s.node(f"peer-{i}") == cluster.manager, f"peer {i} is on the manager")
    return volumes, moved[0], shares, moved[1]


def test_peers_of_a_drained_node_resume_elsewhere_with_the_state_that_nodes_share(drained, two_nodes):
    _, _, shares, moved = drained
    assert moved
    for peer_id, incarnation in moved.items():
        again = shares.until(lambda i=peer_id: shares.starts(i)[-1:], f"peer {peer_id} starts")[0]
        assert again["incarnation"] > incarnation and again["resumed_from"] is not None
        moves_on(shares, peer_id)


def test_peers_of_a_drained_node_catch_up_elsewhere_without_their_state(drained, two_nodes):
    volumes, moved, _, _ = drained
    assert list(moved) == [1]
    reached = max(volumes.rounds(0))
    (again,) = volumes.until(lambda: volumes.starts(1), "peer 1 starts")
    assert again["resumed_from"] is None
    volumes.until(lambda: max(volumes.rounds(1), default=-1) >= reached, f"peer 1 catches up with round {reached}")
    assert volumes.history(1)[-1]["incarnation"] > moved[1]  # as the neighbor told it; the start had a random one


def test_another_image_costs_the_other_peers_no_round(cluster, drained, host):
    """One peer after another gets it; the others complete every round meanwhile, and each resumes from its state."""
    shares = drained[2]
    shares.until(lambda: all(in_step(shares, i) for i in shares.graph.ids), "all peers fold all their neighbors")
    since = {i: shares.rounds(i)[-1] for i in shares.graph.ids}  # earlier ones may be those of catching up
    before = {i: shares.starts(i)[-1]["incarnation"] for i in shares.graph.ids}
    image = another_image(host)
    shares.update(image)
    shares.until(
        lambda: all(in_step(shares, i, before[i]) for i in shares.graph.ids),
        "all peers fold all their neighbors after their updates",
    )
    for peer_id in shares.graph.ids:
        lines = after(before[peer_id], shares.history(peer_id))
        assert shares.container(f"peer-{peer_id}").attrs["Config"]["Image"] == image
        assert [line["resumed_from"] is not None for line in lines if line["kind"] == "start"] == [True]
        done = [number for number in shares.rounds(peer_id, before[peer_id]) if number >= since[peer_id]]
        assert done == list(range(done[0], done[-1] + 1)), f"peer {peer_id} lost a round before its own update"
        skipped = [line for line in lines if line["kind"] == "caught_up"]
        back = next(n for n, line in enumerate(lines) if line["kind"] == "round" and line["folded"])
        late = [line for line in lines[back:] if line["kind"] == "caught_up"]
        assert late == [], f"peer {peer_id} lost a round after its own update"
        done = {line["round_index"] for line in lines if line["kind"] == "round"}
        missed = {i for line in skipped for i in range(line["from_round"], line["to_round"] + 1)}
        assert {*range(min(done), max(done))} <= done | missed


def in_step(stack, peer_id, incarnation=0):
    """Return whether a peer folded all its neighbors in the last round that it has completed after an incarnation."""
    lines = [line for line in after(incarnation, stack.history(peer_id)) if line["kind"] == "round"][-1:]
    return [{row[0] for row in line["folded"]} for line in lines] == [set(stack.graph.neighbors(peer_id))]


def after(incarnation, history):
    """Return the lines of a history that are of a later incarnation."""
    return [line for line in history if line["incarnation"] > incarnation]
