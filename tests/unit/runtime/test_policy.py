"""The policy of a device's owner: strict parsing, and each rule allowed and refused, by a sentence with both keys."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from coordinator_free_bootstrap import Graph, make_graph, parse_manifest, user_file
from coordinator_free_bootstrap.errors import PolicyError, UsageError
from peer.runtime.admission import of_graph
from peer.runtime.assembly import LocalSettings, assemble
from peer.runtime.policy import OwnersPolicy, with_approval
from peer.runtime.process import opened

PRIVATE = {"clip_norm": 1.0, "noise_multiplier": 1.5}


@pytest.fixture(autouse=True)
def _no_policy_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(user_file, "approvals", [])


def graph(**run: Any) -> Graph:
    return make_graph("line", 3, manifest=parse_manifest({"algorithm": "dfedavg", **run}, "test"))


def policy(folder: Path, *lines: str) -> OwnersPolicy:
    path = folder / "policy.toml"
    path.write_text("\n".join(lines))
    return OwnersPolicy.read(path)


def verdicts(owners: OwnersPolicy, asked: Graph, peer_id: int | None = 1, **local: bool) -> dict[str, bool | None]:
    return {each.key: each.allowed for each in of_graph(owners, asked, peer_id, **local)}


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("epsilonmax = 3", r"epsilonmax: expected no such key, got 3 \(did you mean epsilon_max\?\)"),
        ("epsilon_max = 0", "epsilon_max: expected more than 0, got 0"),
        ("epsilon_max = nan", "epsilon_max: expected a finite number"),
        ('plaintext = "no"', "plaintext: expected true or false, got .no."),
        ('hours = ["22-6"]', "hours: expected HH:MM-HH:MM .*, got '22-6'"),
        ("hours = []", "hours: expected a list of at least 1"),
        ('encodings = ["float8"]', "encodings: expected names of float32, .*, got float8"),
        ("bytes_a_day = 1.5", "bytes_a_day: expected an integer"),
        ("a b", r"expected a policy file \(TOML\), got one that cannot be read"),
        ('[[approved]]\nfile = "a"\nsha256 = "00"', r"approved\[0\]\.sha256: expected a text that matches"),
    ],
)
def test_a_wrong_policy_is_refused_by_key(tmp_path: Path, line: str, sentence: str) -> None:
    with pytest.raises(PolicyError, match=sentence) as caught:
        policy(tmp_path, line)
    assert caught.value.exit_code == 14
    assert str(tmp_path / "policy.toml") in str(caught.value)


def test_a_policy_file_that_is_not_there_is_no_permission(tmp_path: Path) -> None:
    with pytest.raises(PolicyError, match=r"expected a policy file \(TOML\), got none"):
        OwnersPolicy.read(tmp_path / "policy.toml")


@pytest.mark.parametrize(
    ("line", "allowed", "refused", "sentence"),
    [
        (
            'algorithms = ["dfedavg", "dfca"]',
            {},
            {"algorithm": "fedem"},
            "algorithms: expected run.algorithm to be dfedavg or dfca, got 'fedem'",
        ),
        (
            'encodings = ["float32"]',
            {},
            {"encoding": "int8"},
            "encodings: expected run.encoding to be float32, got 'int8'",
        ),
        (
            "epsilon_max = 3.0",
            {"privacy": {**PRIVATE, "epsilon_max": 3.0}},
            {"privacy": {**PRIVATE, "epsilon_max": 3.1}},
            "epsilon_max: expected run.privacy.epsilon_max or target_epsilon of at most 3, got 3.1",
        ),
        (
            "epsilon_max = 3.0",
            {"privacy": {"clip_norm": 1.0, "target_epsilon": 2.0}},
            {"privacy": PRIVATE},  # without a limit
            "epsilon_max: expected run.privacy.epsilon_max or target_epsilon of at most 3, got none",
        ),
        (
            "epsilon_max = 3.0",
            {"privacy": {"clip_norm": 1.0, "target_epsilon": 3.0}},
            {},
            "epsilon_max: expected run.privacy.epsilon_max or target_epsilon of at most 3, got none",
        ),
        (
            "delta_max = 1e-6",
            {"privacy": {**PRIVATE, "delta": 1e-6}},
            {"privacy": PRIVATE},
            "delta_max: expected run.privacy.delta of at most 1e-06, got 1e-05",
        ),
        (
            "noise_min = 1.5",
            {"privacy": PRIVATE},
            {"privacy": {**PRIVATE, "noise_multiplier": 1.4}},
            "noise_min: expected run.privacy.noise_multiplier of at least 1.5, got 1.4",
        ),
        (
            "noise_min = 1.5",
            {"privacy": PRIVATE},
            {},
            "noise_min: expected run.privacy.noise_multiplier of at least 1.5, got none",
        ),
    ],
)
def test_each_rule_of_the_manifest_allows_its_bound_and_refuses_what_is_past_it(
    tmp_path: Path, line: str, allowed: dict[str, Any], refused: dict[str, Any], sentence: str
) -> None:
    owners = policy(tmp_path, "# of site 1", line)
    key = line.partition(" ")[0]
    assert verdicts(owners, graph(**allowed))[key] is True
    owners.admit(of_graph(owners, graph(**allowed), 1))
    with pytest.raises(PolicyError) as caught:
        owners.admit(of_graph(owners, graph(**refused), 1))
    fix = "The owner of this device decides: ask for another graph file, or change the policy."
    assert str(caught.value) == f"{tmp_path}/policy.toml, line 2, {sentence}. {fix}"


def test_an_empty_policy_refuses_plaintext_and_unread_code_and_nothing_else(tmp_path: Path) -> None:
    owners, task = policy(tmp_path), tmp_path / "task.py"
    assert verdicts(owners, graph()) == {"plaintext": True}
    assert verdicts(owners, graph(), plaintext=True) == {"plaintext": False}
    assert verdicts(policy(tmp_path, "plaintext = true"), graph(), plaintext=True) == {"plaintext": True}
    task.write_text("x = 1\n")
    for key in ("task", "algorithm"):
        named = graph(**{key: f"{task}:Own"})
        assert verdicts(owners, named)["approved"] is False
        with pytest.raises(
            PolicyError, match=rf"no approved: expected run\.{key} to be an approved file, got .*SHA-256"
        ):
            owners.admit(of_graph(owners, named, 1))
    gone = graph(task="nowhere.py:Own")
    with pytest.raises(
        PolicyError, match=r"got nowhere\.py, which cannot be read here\. Read the file, then: peer policy"
    ):
        owners.admit(of_graph(owners, gone, 1))
    assert "approved" not in verdicts(owners, gone, own_task=True), "an object of the program that the owner started"


def test_neighbors_are_allowed_by_id_or_by_all_of_their_keys(tmp_path: Path) -> None:
    keys = [f"sha256:{digit * 64}" for digit in "abc"]
    asked = graph()
    asked = replace(asked, nodes=(replace(asked.nodes[0], pins=tuple(keys[:2])), *asked.nodes[1:]))
    assert verdicts(policy(tmp_path, "neighbors = [0, 2]"), asked)["neighbors"] is True
    owners = policy(tmp_path, "neighbors = [2]")
    with pytest.raises(PolicyError, match=r"neighbors: expected edges of peer 1 to 2 only, got peer 0\."):
        owners.admit(of_graph(owners, asked, 1))
    assert "neighbors" not in verdicts(owners, asked, None)
    for pins, allowed in ((keys[:2], True), (keys[:1], False), ([keys[2]], False)):
        found = of_graph(policy(tmp_path, f"neighbors = {[2, *pins]}".replace("'", '"')), asked, 1)
        assert all(each.allowed for each in found) is allowed
    unpinned = graph()
    owners = policy(tmp_path, f'neighbors = [2, "{keys[0]}"]')
    assert not all(each.allowed for each in of_graph(owners, unpinned, 1)), "a peer without a key is not one with these"


def test_an_approval_is_of_the_content_and_keeps_time_and_name(tmp_path: Path) -> None:
    task, path = tmp_path / "task.py", tmp_path / "policy.toml"
    task.write_text("x = 1\n")
    policy(tmp_path, 'algorithms = ["dfedavg"]')  # without a last newline
    time = datetime(2026, 11, 28, 9, 30, 5, 700, tzinfo=UTC)
    made = with_approval(path, task, task.read_bytes(), 'Ada "the first" Lovelace 😀', time)
    owners = OwnersPolicy.read(path)
    assert owners.policy.approved == [made] and owners.policy.algorithms == ["dfedavg"]
    assert made.sha256 == hashlib.sha256(task.read_bytes()).hexdigest()
    assert str(made) == 'approved by Ada "the first" Lovelace 😀 at 2026-11-28 09:30 UTC'
    assert verdicts(owners, graph(task=f"{task}:Own"))["approved"] is True
    task.write_text("x = 2\n")
    assert verdicts(owners, graph(task=f"{task}:Own"))["approved"] is False
    with_approval(path, task, task.read_bytes(), "Grace", time)
    assert [each.by for each in OwnersPolicy.read(path).policy.approved] == [made.by, "Grace"], "nothing is removed"
    with pytest.raises(UsageError, match="expected names of printable characters"):
        with_approval(path, task, b"", "a\x7fb", time)


def test_the_graph_file_is_refused_before_keys_and_data_are_touched(tmp_path: Path) -> None:
    (tmp_path / "policy.toml").write_text('algorithms = ["dfca"]\n')
    settings = LocalSettings.at(tmp_path / "state", policy=tmp_path / "policy.toml", certs=tmp_path / "none")
    with pytest.raises(PolicyError, match="line 1, algorithms"):
        opened(0, graph(), settings)
    assert [path.name for path in (tmp_path / "state").iterdir() if path.name != "lock"] == ["audit.jsonl"]


SMALL = {"task": "linear", "split": "iid", "rounds": 2}


@pytest.mark.parametrize(
    ("line", "run", "sentence"),
    [
        ("samples_min = 100000", {}, r"samples_min: expected 100000 training samples or more, got \d+"),
        (
            "noise_min = 50.0",
            {"privacy": {"clip_norm": 1.0, "target_epsilon": 5.0}},
            r"noise_min: expected run\.privacy\.noise_multiplier of at least 50, got \d",
        ),
        (
            "bytes_a_day = 10",
            {},
            r"bytes_a_day: expected rounds of at most 10 bytes, got \d+, a model for each neighbor",
        ),
    ],
)
def test_what_only_the_data_tell_is_checked_before_anything_is_sent(
    tmp_path: Path, line: str, run: dict[str, Any], sentence: str
) -> None:
    asked = graph(**SMALL, **run)
    owners = policy(tmp_path, line)
    key = line.partition(" ")[0]
    assert verdicts(owners, asked)[key] is None
    owners.admit(of_graph(owners, asked, 1))
    with pytest.raises(PolicyError, match=sentence):
        assemble(1, asked, LocalSettings.at(tmp_path / "state", policy=owners.path))
    lenient = policy(tmp_path, "samples_min = 1", "noise_min = 0.1", "bytes_a_day = 1_000_000")
    parts = assemble(  # the lock of the refused start is free again
        1,
        graph(**SMALL, privacy={"clip_norm": 1.0, "target_epsilon": 5.0}),
        LocalSettings.at(tmp_path / "other", policy=lenient.path),
    )
    parts.lock.release()


@pytest.mark.parametrize(("run", "allowed"), [({}, False), ({"algorithm": "dfedavg", "secure_sum": 8.0}, True)])
def test_an_owner_may_ask_for_secure_sums(tmp_path: Path, run: dict[str, Any], allowed: bool) -> None:
    owners = policy(tmp_path, "secure_sums = true")
    made = make_graph("complete", 4, seed=1)
    asked = Graph(made.nodes, made.edges, parse_manifest(run, "test"))
    assert verdicts(owners, asked)["secure_sums"] is allowed
    if not allowed:
        with pytest.raises(PolicyError, match=r"line 1, secure_sums: expected run\.secure_sum to be set, got none"):
            owners.admit(of_graph(owners, asked, 1))
    assert "secure_sums" not in verdicts(policy(tmp_path, "secure_sums = false"), asked)
