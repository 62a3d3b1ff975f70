"""Every option of every algorithm changes a run, and where it is declared to have no effect, the run stays the same, bit for bit.

The same for each manifest key with a rule. A new option, or a key with a new rule, fails here until a row shows when it counts.
"""

from __future__ import annotations

import functools
import hashlib
import json
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from pydantic import BaseModel

import peer
from coordinator_free_bootstrap import Graph, make_graph, parse_manifest
from coordinator_free_bootstrap import options as declared
from coordinator_free_bootstrap.errors import PeerError
from coordinator_free_bootstrap.manifest import Manifest
from peer.algorithms.registry import algorithms
from peer.tasks.effect import keys_without_effect
from tests.tools.simulated import finish, peers_of

PEERS = 6
BASE: dict[str, Any] = dict(
    task="digits",
    model="mlp",
    model_options={"hidden": 8},
    split="rotated_hard",
    split_options={"samples_per_peer": 40, "test_per_peer": 20},
    rounds=4,
    local_epochs=1,
    batch_size=20,
)


@dataclass(frozen=True)
class Row:
    """An option or key.

    Attributes:
        value: not the default.
        beside: keys and options with which it has an effect.
        idle: those with which it has none; None: it always has one.
    """

    value: Any
    beside: dict[str, Any] = field(default_factory=dict)
    idle: dict[str, Any] | None = None


def options(**values: Any) -> dict[str, Any]:
    return {"options": values}


WARM, AUTO, PRIVATE = (
    options(warmup_rounds=3),
    options(clusters="auto"),
    options(dp_epsilon=10.0, min_cluster_samples=5),
)
SOME = {"participation": 0.5}
ONE_CLUSTER: dict[str, Any] = {"clusters": 1}
OWN_STARTS = options(initialization="local")
DFCA = {
    "initialization": Row("local"),
    "seed_epochs": Row(1, options(initialization="seeds"), {}),
    "warmup_rounds": Row(2, {}, options(initialization="seeds")),
    "relay_steps": Row(1, WARM, {}),
    "split_empty": Row(True, {"clusters": 4} | WARM, {}),
    "idle_folds": Row(False, SOME, {}),
}
LOCAL_ROUNDS = {
    "strength": Row(2.0),
    "inner_steps": Row(2),
    "local_rounds": Row(1, {"local_epochs": 2}),
    "rho": Row(0.3),
}
ALONE = options(budget=1)
OPTIONS: dict[str, dict[str, Row]] = {
    "dfca": DFCA,
    "ifca": {"initialization": Row("local"), "idle_folds": Row(False, SOME, {})},
    "blend": DFCA
    | {
        "warmup_rounds": Row(1, options(initialization="global"), options(initialization="seeds")),
        "split_empty": Row(
            True,
            {"clusters": 4} | options(warmup_rounds=3, split_empty=False),
            options(initialization="global", warmup_rounds=0),
        ),
        "relay_steps": Row(1, WARM, options(initialization="global", warmup_rounds=0)),
        "seed_epochs": Row(1, {}, options(initialization="global")),
        "held_out": Row(0.5),
        "tune_epochs": Row(2),
    },
    "fedspd": {
        "exchange": Row("broadcast"),
        "initialization": Row("local"),
        "init_labels": Row("index_split", {}, options(warm_rounds=1)),
        "first_round": Row("paper", {}, options(hard_rounds=1)),
        "first_round_factor": Row(1),
        "min_cluster_samples": Row(15),
        "selection": Row("partition", {}, ONE_CLUSTER),
        "u_min": Row(0.9, {}, options(selection="partition")),
        "label_check": Row(False, OWN_STARTS, ONE_CLUSTER),
        "label_margin": Row(0.0, OWN_STARTS, options(label_check=False)),
        "align_every": Row(0, {}, ONE_CLUSTER),
        "sketch_size": Row(4, {}, options(align_every=0)),
        "dp_epsilon": Row(10.0, options(min_cluster_samples=5)),
        "dp_delta": Row(0.1, PRIVATE, {}),
        "dp_clip": Row(0.1, PRIVATE, {}),
        "noisy_self": Row(False, PRIVATE, {}),
        "warm_rounds": Row(1),
        "hard_rounds": Row(1),
        "split": Row("updates", options(warm_rounds=2, hard_rounds=1), options(hard_rounds=1)),
        "split_noise": Row(0.5, options(warm_rounds=1), {}),
        "center_labels": Row(True),
        "personalize": Row("confident"),
    },
    "dfedavg": {"partners": Row(1)},
    "pfedme": LOCAL_ROUNDS | {"beta": Row(0.5)},
    "cgpfl": LOCAL_ROUNDS
    | {
        "alpha": Row(0.5),
        "clusters": Row("auto"),
        "clusters_max": Row(1, AUTO, {}),
        "mu_scale": Row(0.0, AUTO, {}),
        "align_every": Row(1, {}, ONE_CLUSTER),
        "sketch_size": Row(4, {}, ONE_CLUSTER),
    },
    "ditto": {"strength": Row(1.0), "personal_epochs": Row(2)},
    "fedprox": {"strength": Row(5.0)},
    "apfl": {"alpha": Row(0.2), "adapt": Row(False)},
    "fedrep": {"head_epochs": Row(2)},
    "perfedavg": {"inner_learning_rate": Row(0.3), "adapt_steps": Row(3)},
    "dpfl": {
        "budget": Row(2),
        "period": Row(2, {}, ALONE),
        "initial_epochs": Row(1),
        "rebuild_every": Row(2, {}, ALONE),
        "preprocess_share": Row(0.4, {}, ALONE),
        "round_share": Row(0.4, {}, ALONE),
        "guard_self": Row(True, {"learning_rate": 3.0}, ALONE),
    },
    "fedsoft": {
        "strength": Row(1.0),
        "importance_every": Row(1),
        "sigma": Row(0.2, {"clusters": 4}),
        "variant": Row("select"),
        "rate": Row(0.2, options(variant="select"), {}),
        "initialization": Row("local"),
    },
    "fedem": {},
    "dpsgd": {},
    "local": {},
}
KINDS = {name: kind for name, kind in algorithms().items() if kind.__module__.startswith("peer.")}
EXCHANGES_NONE = [{"algorithm": "local"}, {"algorithm": "dpfl"} | ALONE]
ONE_MODEL = [{"algorithm": name} for name, kind in sorted(KINDS.items()) if not kind.clustered]
OF_PRIVACY = {"checkpoint_rounds"}  # tests/unit/core/test_privacy_budget.py
OF_OWN_LOOPS = {"batch_size", "optimizer", "gradient_clip", "weight_decay"}  # tests/unit/learning/test_own_loop.py
KEYS: dict[str, tuple[Any, list[dict[str, Any]]]] = {  # value, and what it has no effect beside
    "clusters": (3, [*ONE_MODEL, {"algorithm": "cgpfl"} | AUTO]),
    "local_epochs": (
        3,
        [{"algorithm": "dpsgd"}, *({"algorithm": name} | options(local_rounds=2) for name in ("pfedme", "cgpfl"))],
    ),
    "local_unit": (
        "step",
        [
            *({"algorithm": name, "batch_size": "all"} for name in ("dfca", "apfl", "perfedavg")),
            {"algorithm": "dfedavg", "batch_size": ["all", 8]},
            {"algorithm": "dpsgd", "local_epochs": 2},
            *({"algorithm": name, "local_epochs": 2} | options(local_rounds=2) for name in ("pfedme", "cgpfl")),
        ],
    ),
    "momentum": (0.5, [{"optimizer": name, "learning_rate": 0.01} for name in ("adam", "adamw")]),
    "optimizer_state": ("keep", [{}, *({"algorithm": name, "momentum": 0.5} for name in ("fedem", "fedspd"))]),
    "learning_rate_schedule": ("step:factor=0.5,every=4", [{}]),
    "evaluate_every": (2, [{"rounds": 1}]),
    "aggregation": ("batch", [*EXCHANGES_NONE, {"algorithm": "dpfl"}]),
    "mix": ("metropolis", [*EXCHANGES_NONE, {"algorithm": "dpfl"}, {"algorithm": "fedsoft"}]),
    "stale_weight": (0.2, [*EXCHANGES_NONE, {"algorithm": "dpfl"}]),
    "edges": ("one", EXCHANGES_NONE),
    "dynamic_edges": (0.4, EXCHANGES_NONE),
    "encoding": ("float16", EXCHANGES_NONE),
    "secure_sum": (8.0, EXCHANGES_NONE),
    "private_parameters": (["*bias"], EXCHANGES_NONE),
    "limits.kept_bytes_max": (1 << 20, [{}]),
    "screening.norm_bound": (0.1, EXCHANGES_NONE),
    "screening.clip": (0.01, EXCHANGES_NONE),
    "screening.trimmed_mean": (0.2, [*EXCHANGES_NONE, {"algorithm": "dpfl"}]),
    "outer.optimizer": ("nesterov", [{"algorithm": name} for name in ("local", "ditto", "fedspd")]),
    "outer.learning_rate": (1.0, [{}]),
    "outer.momentum": (0.9, [{}]),
    "privacy.noise_multiplier": (2.0, [{}]),
    "privacy.target_epsilon": (3.0, [{}]),
    "privacy.delta": (1e-6, [{}]),
    "privacy.epsilon_max": (3.0, [{}]),
    "final.epochs": (2, [{"algorithm": "fedem"}, {"algorithm": "blend"}]),
    "final.learning_rate": (0.3, [{}, {"algorithm": "fedem"}]),
    "final.learning_rate_schedule": ("cosine", [{}]),
    "final.guard": (True, [{}, {"algorithm": "blend"}]),
}
OF_DATA = {"model", "model_options", "split", "split_options", "data_seed"}  # tests/unit/tasks/test_effect.py


def together(*parts: dict[str, Any]) -> dict[str, Any]:
    """Return keys of a run, those of sections and the options merged."""
    found: dict[str, Any] = {}
    for part in parts:
        for key, value in part.items():
            found[key] = {**found.get(key, {}), **value} if isinstance(value, dict) else value
    return found


def at(key: str, value: Any) -> dict[str, Any]:
    section, _, name = key.partition(".")
    return {section: {name: value}} if name else {key: value}


@pytest.fixture(autouse=True)
def everything_is_accepted(monkeypatch):
    """Return nothing from the rules, so that a run shows what an option does where it is refused; and draw one noise."""
    system = np.random.Philox
    monkeypatch.setattr(np.random, "Philox", lambda *given, **named: system(*given or (() if named else (0,)), **named))
    yield lambda: monkeypatch.setattr(declared, "without_effect", lambda *given, **named: iter(()))


def fingerprint(run: dict[str, Any]) -> str:
    return _fingerprint(json.dumps(run, sort_keys=True))


@functools.cache
def _fingerprint(text: str) -> str:
    """Return a digest of all that a run shows: models, histories without times, numbers told and counters."""
    made, run = make_graph("complete", PEERS), parse_manifest(together(BASE, json.loads(text)), "test")
    peers, told = peers_of(Graph(made.nodes, made.edges, run)), []

    def noting(call):
        def noted(*given):
            found = call(*given)
            numbers = getattr(found, "numbers", found)
            told.append(tuple(numbers) if numbers is not None else None)
            return found

        return noted

    for each in peers:
        each.algorithm.tells, each.algorithm.selects = noting(each.algorithm.tells), noting(each.algorithm.selects)
    finish(peers)
    parts: list[Any] = [told]
    for each in peers:
        parts += [[model.tobytes() for model in each.models], each.personalized.tobytes()]
        rows = [*each.history, each.final]
        parts.append(
            [{name: value for name, value in row.items() if name not in ("t", "time", "seconds")} for row in rows]
        )
        parts += [dict(each.totals), {str(code): count for code, count in each.refusals.items()}]
    return hashlib.sha256(repr(parts).encode()).hexdigest()


ROWS = [
    pytest.param(name, option, row, id=f"{name}-{option}")
    for name, of_algorithm in OPTIONS.items()
    for option, row in of_algorithm.items()
]


def test_each_option_has_a_row_and_one_without_effect_has_a_rule():
    assert {name: set(kind.Options.model_fields) for name, kind in KINDS.items()} == {
        name: set(of_algorithm) for name, of_algorithm in OPTIONS.items()
    }
    for name, kind in KINDS.items():
        for option, declaration in kind.Options.model_fields.items():
            has_rule = bool(declared.rules_of(declaration))
            assert has_rule == (OPTIONS[name][option].idle is not None), (name, option)
            assert OPTIONS[name][option].value != declaration.get_default(call_default_factory=True)


@pytest.mark.parametrize(("name", "option", "row"), ROWS)
def test_an_option_changes_the_run_where_it_is_accepted(name, option, row):
    run = together({"algorithm": name}, row.beside)
    changed = together(run, options(**{option: row.value}))
    peer.Graph.make("complete", peers=PEERS, run=together(BASE, changed))
    assert fingerprint(run) != fingerprint(changed)


@pytest.mark.parametrize(("name", "option", "row"), [each for each in ROWS if each.values[2].idle is not None])
def test_an_option_changes_nothing_where_it_is_refused(name, option, row, everything_is_accepted):
    run = together({"algorithm": name}, row.idle)
    changed = together(run, options(**{option: row.value}))
    words = rf"run\.options\.{option}: expected no value \(no effect, because .*\), got .*\. Remove it\."
    with pytest.raises(PeerError, match=words):
        peer.Graph.make("complete", peers=PEERS, run=together(BASE, changed))
    everything_is_accepted()
    assert fingerprint(run) == fingerprint(changed)


@pytest.mark.parametrize(
    ("key", "value", "idle"),
    [
        pytest.param(key, value, idle, id=f"{key}-{idle.get('algorithm', 'dfca')}")
        for key, (value, several) in KEYS.items()
        for idle in several
    ],
)
def test_a_key_changes_nothing_where_it_is_refused(key, value, idle):
    changed = together(idle, at(key, value))
    with pytest.raises(PeerError, match=rf"run\.{key}: expected no value \(no effect, because "):
        peer.Graph.make("complete", peers=PEERS, run=together(BASE, changed))
    assert fingerprint(idle) == fingerprint(changed)


def test_each_key_with_a_rule_has_a_row():
    found = set(_ruled(Manifest)) - OF_DATA - OF_OWN_LOOPS - OF_PRIVACY
    added = {key for kind in KINDS.values() for key in kind.keys}
    assert found | added == set(KEYS)
    assert added <= set(_leaves(Manifest))


def _leaves(model: type[BaseModel], prefix: str = "") -> dict[str, Any]:
    found = {}
    for name, declaration in model.model_fields.items():
        kind = declaration.annotation
        section = isinstance(kind, type) and issubclass(kind, BaseModel)
        found |= _leaves(kind, f"{prefix}{name}.") if section else {f"{prefix}{name}": declaration}
    return found


def _ruled(model: type[BaseModel]) -> list[str]:
    return [key for key, declaration in _leaves(model).items() if declared.rules_of(declaration)]


@pytest.mark.parametrize("name", sorted(KINDS))
def test_a_default_that_is_written_down_is_accepted(name):
    defaults = {
        option: json.loads(json.dumps(declaration.get_default(call_default_factory=True)))
        for option, declaration in KINDS[name].Options.model_fields.items()
    }
    run = Manifest(algorithm=name).model_dump() | options(**({} if name == "blend" else defaults))
    graph = peer.Graph.make("complete", peers=PEERS, run=run)
    assert keys_without_effect(graph.manifest) == {}
