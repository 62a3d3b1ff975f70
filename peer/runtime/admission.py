"""The rules of an owner's policy: what it says about a graph file, and about a peer that has its data."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from coordinator_free_bootstrap import Graph
from coordinator_free_bootstrap.manifest import Manifest
from coordinator_free_bootstrap.ordinary_file import content_of
from coordinator_free_bootstrap.user_file import FILE_BYTES_MAX, file_of
from peer.host import PeerHost
from peer.runtime.policy import OwnersPolicy, Policy, Verdict

AT_START = "what the peer has at its start"


def of_graph(
    owners: OwnersPolicy, graph: Graph, peer_id: int | None, *, plaintext: bool = False, own_task: bool = False
) -> Iterator[Verdict]:
    """Yield what a policy says about a graph file.

    Args:
        owners: the policy.
        graph: its manifest and edges are read; of files that it names, the content.
        peer_id: of the owner's peer; None: edges are not looked at.
        plaintext: whether the peer would run without TLS.
        own_task: the task is an object of the program that calls, whatever run.task names.
    """
    policy, run = owners.policy, graph.manifest
    if policy.algorithms is not None:
        yield _among("algorithms", policy.algorithms, "run.algorithm", run.algorithm)
    for key, value in {"run.algorithm": run.algorithm, "run.task": "" if own_task else run.task}.items():
        if file := file_of(value):
            yield _of_named_file(owners, key, Path(file))
    if policy.encodings is not None:
        yield _among("encodings", policy.encodings, "run.encoding", run.encoding)
    if policy.neighbors is not None and peer_id is not None:
        for neighbor in graph.neighbors(peer_id):
            pins = graph.node(neighbor).pins
            known = neighbor in policy.neighbors or (bool(pins) and {*pins} <= {*policy.neighbors})
            yield Verdict(
                "neighbors", known, f"edges of peer {peer_id} to {_listed(policy.neighbors)} only", f"peer {neighbor}"
            )
    yield Verdict("plaintext", policy.plaintext or not plaintext, "TLS", "--insecure" if plaintext else "TLS")
    yield from _of_privacy(policy, run)
    if policy.secure_sums:
        yield Verdict("secure_sums", run.secure_sum is not None, "run.secure_sum to be set", _shown(run.secure_sum))
    if policy.samples_min is not None:
        yield Verdict("samples_min", None, f"{policy.samples_min} training samples or more", AT_START)
    if policy.bytes_a_day is not None:
        yield Verdict("bytes_a_day", None, f"rounds of at most {policy.bytes_a_day} bytes", AT_START)


def of_host(owners: OwnersPolicy, host: PeerHost) -> Iterator[Verdict]:
    """Yield what a policy says about a peer that has its data and has sent nothing yet."""
    policy, budget = owners.policy, host.state.budget
    if policy.samples_min is not None:
        count = host.workspace.learner.count()
        asked = f"{policy.samples_min} training samples or more"
        yield Verdict("samples_min", count >= policy.samples_min, asked, str(count))
    if policy.noise_min is not None and budget is not None:
        noise = budget.terms.training.noise
        yield Verdict("noise_min", noise >= policy.noise_min, _noise(policy), f"{noise:g}")
    if policy.bytes_a_day is not None:
        least = bytes_of_round(host)
        asked = f"rounds of at most {policy.bytes_a_day} bytes"
        yield Verdict("bytes_a_day", least <= policy.bytes_a_day, asked, f"{least}, a model for each neighbor")


def bytes_of_round(host: PeerHost) -> int:
    """Return the bytes of one model for each neighbor; algorithms that send several need more."""
    return host.state.model_bytes * len(host.state.neighbors) if host.algorithm.exchanges(host.manifest) else 0


def _of_privacy(policy: Policy, run: Manifest) -> Iterator[Verdict]:
    privacy = run.privacy
    if policy.epsilon_max is not None:
        limit = privacy.epsilon_limit if privacy.is_on else None
        asked = f"run.privacy.epsilon_max or target_epsilon of at most {policy.epsilon_max:g}"
        yield Verdict("epsilon_max", limit is not None and limit <= policy.epsilon_max, asked, _shown(limit))
    if policy.delta_max is not None:
        delta = privacy.delta if privacy.is_on else None
        asked = f"run.privacy.delta of at most {policy.delta_max:g}"
        yield Verdict("delta_max", delta is not None and delta <= policy.delta_max, asked, _shown(delta))
    if policy.noise_min is not None:
        noise = privacy.noise_multiplier if privacy.is_on else None
        if (
            privacy.is_on and noise is None
        ):  # the least that reaches run.privacy.target_epsilon with this peer's samples
            yield Verdict("noise_min", None, _noise(policy), AT_START)
        else:
            yield Verdict("noise_min", noise is not None and noise >= policy.noise_min, _noise(policy), _shown(noise))


def _noise(policy: Policy) -> str:
    return f"run.privacy.noise_multiplier of at least {policy.noise_min:g}"


def _of_named_file(owners: OwnersPolicy, key: str, path: Path) -> Verdict:
    try:
        return owners.of_file(key, path, content_of(path, FILE_BYTES_MAX))
    except OSError:
        return Verdict("approved", False, f"{key} to be an approved file", f"{path}, which cannot be read here")


def _among(key: str, allowed: list[str], of: str, got: str) -> Verdict:
    return Verdict(key, got in allowed, f"{of} to be {_listed(allowed)}", repr(got))


def _listed(names: Iterable[object]) -> str:
    return " or ".join(map(str, names)) or "nothing"


def _shown(value: float | None) -> str:
    return "none" if value is None else f"{value:g}"
