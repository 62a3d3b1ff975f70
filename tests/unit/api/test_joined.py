"""Goal: a program that joins with its own loop is a peer like any other: same models, resume, a goodbye when the loop ends early.

Method: two programs as threads of this process, over loopback; each loop takes one step of SGD on its own samples in a round.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from torch import nn

import peer
from coordinator_free_bootstrap.errors import TaskError, UsageError
from peer.api.handover import Errand, Handover
from peer.bed.testbed.ports import on_free_ports
from peer.store.history import read_history

ROUNDS, SAMPLES = 4, 8


def make_model() -> nn.Module:
    return nn.Linear(3, 1)


def samples_of(site: int) -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.randn(SAMPLES, 3, generator=torch.Generator().manual_seed(site))
    return x, x.sum(1, keepdim=True)


class Hook(peer.Task):
    """The same loop as a task."""

    kind = "regression"

    def make_model(self) -> nn.Module:
        return make_model()

    def load_data(self, peer_id: int) -> Any:
        return samples_of(peer_id)

    def count(self, data: Any) -> int:
        return SAMPLES

    def evaluate(self, model: nn.Module, data: Any) -> dict[str, float]:
        return {"mse": error(model, *data)}

    def train(self, model: nn.Module, data: Any, budget: peer.Budget) -> None:
        step(model, torch.optim.SGD(model.parameters(), 0.1), *data)


def error(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> float:
    return float((model(x) - y).square().mean())


def step(model: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor, y: torch.Tensor) -> float:
    optimizer.zero_grad()
    loss = (model(x) - y).square().mean()
    loss.backward()
    optimizer.step()
    return float(loss.detach())


Loop = Callable[[int, nn.Module], object]  # round index, model: what a program does beside its step


class Sites:
    """Two programs that join one graph."""

    def __init__(self, home: Path, threads: ThreadPoolExecutor, **run: Any) -> None:
        self.home, self._threads = home, threads
        self.modules: dict[int, nn.Module] = {}  # of the programs, as they end
        settings = {
            "algorithm": "dfedavg",
            "rounds": ROUNDS,
            "timeouts": {"suspicion_s": 20.0},
            "start": {"deadline_s": 20.0},
            **run,
        }
        self.graph = peer.Graph.of(on_free_ports(peer.Graph.make("line", peers=2, run=settings)))

    def site(self, number: int, beside: Loop = lambda index, model: None, **options: Any) -> list[float]:
        """Be a program: join, train, and return the loss of each round."""
        x, y = samples_of(number)
        model = make_model()
        optimizer, losses = torch.optim.SGD(model.parameters(), 0.1), []
        with peer.join(
            self.graph,
            number,
            **{
                "model": model,
                "make_model": make_model,
                "evaluate": lambda module: error(module, x, y),
                "metric": peer.Metric("mse", higher_is_better=False, share=False),
                "samples": SAMPLES,
                "state_dir": self.home / f"peer-{number}",
                "insecure": True,
                **options,
            },
        ) as federation:
            for round in federation:
                losses.append(step(model, optimizer, x, y))
                beside(round.round, model)
                round.report(loss=losses[-1], samples=SAMPLES, gradient=0.5)
        assert federation.run is not None and federation.run.metrics["rounds"] == ROUNDS
        self.modules[number] = model
        return losses

    def beside(self, number: int, **options: Any) -> Future[list[float]]:
        """Start a program on another thread."""
        return self._threads.submit(self.site, number, **options)

    def history(self, number: int, kind: str) -> list[dict[str, Any]]:
        lines = read_history(self.home / f"peer-{number}" / "history.jsonl")
        return [dict(line) for line in lines if line["kind"] == kind]


@pytest.fixture
def sites(tmp_path: Path) -> Iterator[Sites]:
    with ThreadPoolExecutor() as threads:
        yield Sites(tmp_path, threads)


# A round of the loop, a call of its functions, and the end of the peer: what the interrupted wait brings.
WAITS = {
    "a round": ("next", lambda errand: errand is not None and errand.budget is not None),
    "a call": ("next", lambda errand: errand is not None and errand.call is not None),
    "the end": ("wait_for_end", lambda errand: True),
}


@pytest.mark.parametrize("what", WAITS)
def test_an_interrupt_when_a_wait_has_just_ended_loses_nothing(
    sites: Sites, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    method, is_due = WAITS[what]
    going, left = threading.Event(), threading.Event()  # the other one holds torch's generators while it waits
    interrupts = iter([KeyboardInterrupt])
    wait: Callable[[Handover], Errand | None] = getattr(Handover, method)

    def interrupted(work: Handover) -> Errand | None:
        errand = wait(work)
        own = threading.current_thread() is threading.main_thread()
        if own and sites.history(0, "round") and is_due(errand) and (error := next(interrupts, None)):
            going.set()
            raise error
        return errand

    def leaves(index: int, model: nn.Module) -> None:
        if what == "the end" and index == 1:
            going.set()
            raise KeyboardInterrupt

    other = sites.beside(1, beside=lambda index, model: left.wait() if going.is_set() else None)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Handover, method, interrupted)
        sites.site(0, beside=leaves)
    assert next(interrupts, None) is None, "it was interrupted there"
    left.set()
    (line,) = sites.history(0, "leave")
    assert len(sites.site(0)) == ROUNDS - line["rounds_completed"]
    assert len(other.result()) == ROUNDS


def test_an_interrupted_evaluation_ends_as_an_interrupted_loop_does(sites: Sites) -> None:
    going, left = threading.Event(), threading.Event()

    def evaluate(module: nn.Module) -> float:
        if sites.history(0, "round") and not going.is_set():
            going.set()
            raise KeyboardInterrupt
        return error(module, *samples_of(0))

    other = sites.beside(1, beside=lambda index, model: left.wait() if going.is_set() else None)
    with pytest.raises(KeyboardInterrupt):
        sites.site(0, evaluate=evaluate)
    left.set()
    (line,) = sites.history(0, "leave")
    assert len(sites.site(0)) == ROUNDS - line["rounds_completed"]
    assert len(other.result()) == ROUNDS
    assert "dead" not in {line["state"] for line in sites.history(1, "neighbor")}, "it was told"


def test_a_second_interrupt_does_not_wait_for_an_evaluation_that_hangs(
    sites: Sites, monkeypatch: pytest.MonkeyPatch
) -> None:
    going, left, hanging, ended = (threading.Event() for _ in range(4))
    waits: list[bool] = []
    wait, interrupts = Handover.wait_for_end, iter([KeyboardInterrupt])

    def evaluate(module: nn.Module) -> float:
        if sites.history(0, "round") and not left.is_set():
            going.set()
            if threading.current_thread() is threading.main_thread():
                raise KeyboardInterrupt
            hanging.set()
            waits.append(ended.wait(60))
        return error(module, *samples_of(0))

    def interrupted(work: Handover) -> None:
        if second := next(interrupts, None):
            assert hanging.wait(60), "the peer evaluates once more"
            raise second
        wait(work)

    other = sites.beside(1, beside=lambda index, model: left.wait() if going.is_set() else None)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Handover, "wait_for_end", interrupted)
        sites.site(0, evaluate=evaluate)
    assert not waits, "it still hangs"
    left.set()
    ended.set()
    sites.site(0, evaluate=evaluate)
    assert len(other.result()) == ROUNDS
    assert "left" in [line["state"] for line in sites.history(1, "neighbor")]


def test_an_error_of_a_function_of_the_program_tells_the_neighbors(sites: Sites) -> None:
    going, left = threading.Event(), threading.Event()

    def evaluate(module: nn.Module) -> float:
        if sites.history(0, "round") and not going.is_set():
            going.set()
            raise ValueError("no test samples")
        return error(module, *samples_of(0))

    other = sites.beside(1, beside=lambda index, model: left.wait() if going.is_set() else None)
    with pytest.raises(TaskError, match=r"evaluate: ValueError: no test samples"):
        sites.site(0, evaluate=evaluate)
    left.set()
    sites.site(0)
    assert len(other.result()) == ROUNDS
    assert "left" in [line["state"] for line in sites.history(1, "neighbor")]


def test_a_program_that_leaves_before_its_peer_is_ready_can_join_again(sites: Sites) -> None:
    own = {"model": make_model(), "evaluate": lambda module: 0.0, "samples": SAMPLES}
    for _ in range(2):
        with peer.join(sites.graph, 0, **own, state_dir=sites.home / "peer-0", insecure=True):
            pass


def test_a_loop_that_joins_gives_the_models_of_the_same_loop_in_a_task(sites: Sites, tmp_path: Path) -> None:
    other = sites.beside(1)
    assert len(sites.site(0)) == len(other.result()) == ROUNDS
    peer.simulate(sites.graph, Hook(), out=tmp_path / "hook", progress=False)
    for number in (0, 1):
        joined, hook = (
            load_file(home / f"peer-{number}" / "models" / "personalized.safetensors")
            for home in (tmp_path, tmp_path / "hook")
        )
        assert joined.keys() == hook.keys()
        assert all(np.array_equal(joined[name], hook[name]) for name in joined)


def test_the_module_has_the_result_after_the_loop_and_the_history_its_own_numbers(sites: Sites) -> None:
    other = sites.beside(1)
    losses = sites.site(0)
    other.result()
    saved = load_file(sites.home / "peer-0" / "models" / "personalized.safetensors")
    module = {name: tensor.detach().numpy() for name, tensor in sites.modules[0].named_parameters()}
    assert all(np.array_equal(module[name], saved[name]) for name in module)
    rounds = sites.history(0, "round")
    assert [line["train_loss"] for line in rounds] == losses
    assert [line["train_numbers"] for line in rounds] == [{"gradient": 0.5}] * ROUNDS
    assert sites.history(0, "start")[0]["metric"]["name"] == "mse"


def fails_in_round(number: int) -> Loop:
    def beside(index: int, model: nn.Module) -> None:
        if index == number:
            raise RuntimeError("a bug of the program")

    return beside


def test_an_error_of_the_loop_tells_the_neighbors_and_the_run_resumes_at_its_round(
    sites: Sites, tmp_path: Path
) -> None:
    other = sites.beside(1)
    with pytest.raises(RuntimeError, match="a bug of the program"):
        sites.site(0, fails_in_round(2))
    assert len(sites.site(0)) == ROUNDS - 2
    other.result()
    assert next(line["rounds_completed"] for line in sites.history(0, "leave")) == 2
    assert "left" in [line.get("state") for line in sites.history(1, "neighbor")]
    assert sites.history(0, "start")[-1]["resumed_from"] == 2
    peer.simulate(sites.graph, Hook(), out=tmp_path / "hook", progress=False)
    name = "models/personalized.safetensors"
    ours, theirs = (load_file(home / "peer-0" / name) for home in (tmp_path, tmp_path / "hook"))
    assert all(np.array_equal(ours[key], theirs[key]) for key in ours)


def test_an_error_of_a_function_of_the_program_ends_the_loop_with_its_sentence(sites: Sites) -> None:
    def broken(model: nn.Module) -> float:
        raise ValueError("no test samples")

    other = sites.beside(1)
    with pytest.raises(TaskError, match=r"evaluate: ValueError: no test samples"):
        sites.site(0, evaluate=broken)
    sites.site(0)
    other.result()


def test_a_loop_that_trains_a_copy_is_told(sites: Sites) -> None:
    run = {"algorithm": "local", "rounds": 2, "start": {"deadline_s": 0.1}}
    alone = peer.Graph.of(on_free_ports(peer.Graph.make("line", peers=2, run=run)))
    model = make_model()
    with (
        pytest.raises(TaskError, match="train: expected a change of the model, got none"),
        peer.join(
            alone, 0, model=model, evaluate=lambda _: 0.0, samples=1, state_dir=sites.home / "copy", insecure=True
        ) as federation,
    ):
        for _ in federation:
            copy = make_model()
            step(copy, torch.optim.SGD(copy.parameters(), 0.1), *samples_of(0))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"model": 3}, "model=: expected a torch.nn.Module, got 3"),
        ({"evaluate": None}, "evaluate=: expected a function of the model, got None"),
        ({"samples": 0}, "samples=: expected the number of training samples, got 0"),
        (
            {"algorithm": "dfca"},
            "make_model=: expected a function that returns a new model, since algorithm 'dfca' holds 2",
        ),
        ({"sates_dir": "x"}, "sates_dir"),
    ],
)
def test_an_argument_that_cannot_be_used_is_refused_before_the_start(wrong: dict[str, Any], message: str) -> None:
    graph = peer.Graph.make("line", peers=2, run={"algorithm": "local"})
    arguments = {"model": make_model(), "evaluate": lambda model: 0.0, "samples": 1, **wrong}
    with pytest.raises(UsageError) as told:
        peer.join(graph, 0, **arguments)
    assert message in str(told.value)
