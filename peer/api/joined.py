"""`peer.join`: one peer in the program of a user, whose own loop trains.

The peer runs on a thread of its own, with the same engine as `peer.run`. Its trainings and evaluations wait until the program
asks for the next round, and run on the program's thread.
"""

from __future__ import annotations

import asyncio
import copy
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, Unpack

import torch
from torch import Tensor, distributed, nn
from typing_extensions import override

from coordinator_free_bootstrap import Graph
from coordinator_free_bootstrap.errors import ConfigProblem, Option, UsageError
from peer.api.arguments import named_in_python, refuse_unless
from peer.api.choices import AlgorithmChoice, chosen, graph_of
from peer.api.handover import Errand, Handover
from peer.api.one_peer import to_end
from peer.api.ranks import END, ROUND, Follower, Ranks, several_ranks, unwrapped
from peer.api.round import LocalRound
from peer.core.metric import Metric
from peer.learning.kept_state import packed, unpacked
from peer.learning.own_loop import EnoughSteps
from peer.rings import name_of_api
from peer.runtime.local_options import LocalOptions, complete_options, log_form, metrics_of
from peer.runtime.policy import enforced
from peer.runtime.schedule import schedule_of
from peer.tasks.budget import Budget, Stateful, Trained
from peer.tasks.declared_metric import DeclaredMetric

if TYPE_CHECKING:
    from peer import Run
    from peer.algorithms.workspace import Workspace
    from peer.runtime.world import AsyncioWorld

Evaluate = Callable[[nn.Module], "float | Mapping[str, float]"]
POLL_S = 0.01


class Joined(DeclaredMetric):
    """The task of a program: its model, its functions, and its loop, which runs on its own thread."""

    own = frozenset({"load_data", "train", "evaluate", "count"})
    can_try = False

    def __init__(
        self,
        model: nn.Module,
        make_model: Callable[[], nn.Module] | None,
        evaluate: Evaluate,
        samples: int,
        metric: Metric,
        more_metrics: Sequence[Metric],
        losses: Callable[[nn.Module], Tensor] | None,
        keep: Mapping[str, Stateful],
    ) -> None:
        super().__init__(metric, more_metrics)
        self.model = model
        self.work = Handover()
        self._samples, self._evaluate, self._losses, self.keep = samples, evaluate, losses, keep
        self._pristine = {name: packed(thing.state_dict()) for name, thing in keep.items()}
        self._given, pristine = False, copy.deepcopy(model)
        self._make = make_model or (lambda: copy.deepcopy(pristine))
        if losses is not None:
            self.own = self.own | {"losses"}

    @override
    def make_model(self) -> nn.Module:
        """Return the program's own module in the first call, then new ones."""
        first, self._given = not self._given, True
        return self.model if first else self._make()

    @override
    def load_data(self, peer_id: int) -> Any:
        """Return nothing: the program has its data."""
        return None

    @override
    def count(self, data: Any) -> int:
        return self._samples

    @override
    def evaluate(self, model: nn.Module, data: Any) -> Mapping[str, float]:
        found: float | Mapping[str, float] = self._on_program(lambda: self._evaluate(model))
        return found if isinstance(found, Mapping) else {self._metric.name: float(found)}

    @override
    def losses(self, model: nn.Module, data: Any) -> Tensor:
        compute = self._losses
        assert compute is not None  # `own` has it
        found: Tensor = self._on_program(lambda: compute(model))
        return found

    @override
    def train(self, model: nn.Module, data: Any, budget: Budget) -> Trained:
        """Give the round to the program's loop, and wait until it asks for the next one."""
        self._take_states(budget)
        asked = LocalRound(**{each.name: getattr(budget, each.name) for each in fields(Budget)})
        if not self.work.do(Errand(budget=asked)):
            # The peer leaves: as with a built-in loop, the training ends when it knows, so that nothing of it is offered.
            while not budget.should_stop():
                time.sleep(POLL_S)
            raise EnoughSteps
        return asked.reported[0] if asked.reported else Trained()

    def _take_states(self, budget: Budget) -> None:
        """Give the kept objects the states that they had when this model was trained last, or those of the program's start.

        An algorithm may train several models, each with its own state; after a restore of the models nothing is kept.
        """
        for name, thing in self.keep.items():
            if name not in budget.kept:
                thing.load_state_dict(unpacked(self._pristine[name]))
            budget.keep(name, lambda thing=thing: thing)  # type: ignore[misc]

    def _on_program(self, call: Callable[[], Any]) -> Any:
        """Return the result of a call on the program's thread; while the program waits for the end of this peer, on this one."""
        errand = Errand(call=call)
        if not self.work.do(errand):
            with torch.no_grad():
                return call()
        if errand.error is not None:
            raise errand.error
        return errand.result


class Federation:
    """One peer whose rounds a program trains: ``with peer.join(...) as federation: for round in federation: ...``.

    Attributes:
        model: the program's module; in a round it has the values to train, after the last one those of this peer's result.
        run: what the peer left, a `peer.Run`; None before the end, and of a peer that left before it was ready.
    """

    def __init__(
        self, peer_id: int, graph: Graph, task: Joined, options: LocalOptions, ranks: Ranks | None = None
    ) -> None:
        self.run: Run | None = None
        self._peer_id, self._graph, self._task, self._options = peer_id, graph, task, options
        self._thread = threading.Thread(target=self._run, name=f"peer-{peer_id}", daemon=True)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._running: asyncio.Task[tuple[str, Path]] | None = None
        self._world: AsyncioWorld | None = None
        self._present: Errand | None = None
        self._ended: tuple[str, Path] | BaseException | None = None
        self._ranks, self._told_end = ranks, False  # the other processes of this site

    @property
    def model(self) -> nn.Module:
        """The program's module."""
        return self._task.model

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __iter__(self) -> Iterator[LocalRound]:
        """Yield the rounds that this peer trains; of an algorithm that trains several models, one for each.

        Raises:
            PeerError: as `peer.run`.
        """
        while True:
            self._finish_present()
            errand = self._task.work.next()
            if errand is None:
                self._end()
                return
            if errand.call is not None:
                self._call(errand)
                continue
            self._present = errand
            assert errand.budget is not None
            if self._ranks is None:
                yield errand.budget
            else:
                self._ranks.tell(ROUND, errand.budget, self._task.keep)
                yield self._ranks.with_agreed_stop(errand.budget)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Literal[False]:
        """End the peer: where its run is not completed, tell its neighbors and write a checkpoint."""
        if self._ended is None:
            self._leave()
        self._tell_end(failed=error is not None or isinstance(self._ended, BaseException))
        if error is None and isinstance(self._ended, BaseException):
            raise self._ended
        return False

    # ---- the program's thread -------------------------------------------------------------------------------------------

    def _finish_present(self) -> None:
        if self._present is not None:
            self._task.work.done(self._present)
            self._present = None

    def _call(self, errand: Errand) -> None:
        """Call a function of the program as the peer's thread would: an error is the peer's."""
        try:
            with torch.no_grad():
                assert errand.call is not None
                errand.result = errand.call()
        except BaseException as error:
            errand.error = error
            if not isinstance(error, Exception):  # Ctrl-C: the program's, too
                raise
        self._task.work.done(errand)

    def _end(self) -> None:
        self._thread.join()
        self._tell_end(failed=isinstance(self._ended, BaseException))
        if isinstance(self._ended, BaseException):
            raise self._ended

    def _tell_end(self, *, failed: bool) -> None:
        if self._ranks is not None and not self._told_end:
            self._told_end = True
            if failed:
                self._ranks.tell_failed()
            else:
                self._ranks.tell(END)

    def _leave(self) -> None:
        """Let the peer leave, and wait for its end; Ctrl-C meanwhile stops it at once."""
        self._task.work.give_up()
        self._ask(self._leave_now)
        while not self._task.work.ended:
            try:
                self._task.work.wait_for_end()
            except KeyboardInterrupt:
                self._ask(self._stop)
        self._thread.join()

    def _leave_now(self) -> None:
        if self._world is not None and schedule_of(self._options, self._world.parts.settings.policy) is None:
            self._world.leave()
        elif self._running is not None:  # it is not ready yet, or would come back in its next window
            self._running.cancel()

    def _stop(self) -> None:
        if self._world is not None:
            self._world.stop_at_once()

    def _ask(self, what: Callable[[], object]) -> None:
        loop = self._loop
        if loop is not None and not loop.is_closed():
            loop.call_soon_threadsafe(what)

    # ---- the peer's thread ----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._ended = asyncio.run(self._to_end())
        except BaseException as error:
            self._ended = error
        finally:
            self._task.work.end()

    async def _to_end(self) -> tuple[str, Path]:
        self._loop, self._running = asyncio.get_running_loop(), asyncio.current_task()
        status, place = "left", Path(self._options["state_dir"] or "")
        if self._task.work.given_up:
            return status, place
        with named_in_python(), metrics_of(self._options) as metrics:
            with suppress(asyncio.CancelledError):
                status, place = await to_end(
                    self._peer_id, self._graph, self._task, self._options, metrics, self._on_ready
                )
            if self._world is None:  # it was not ready
                return status, place
            if self._world.host.workspace.personalized is not None:
                self._load_result(self._world.host.workspace)
            self.run = name_of_api("Run")(place, task=self._task)
            return status, place

    def _on_ready(self, world: AsyncioWorld) -> None:
        self._world = world

    def _load_result(self, workspace: Workspace) -> None:
        """Put this peer's result into the program's module."""
        learner, result = workspace.learner, workspace.personalized
        assert result is not None
        learner.model.load(result)  # type: ignore[attr-defined]


def join(
    graph: Graph | str | Path,
    peer_id: int,
    *,
    model: nn.Module,
    evaluate: Evaluate,
    samples: int,
    make_model: Callable[[], nn.Module] | None = None,
    metric: Metric | None = None,
    more_metrics: Sequence[Metric] = (),
    losses: Callable[[nn.Module], Tensor] | None = None,
    keep: Mapping[str, Stateful] | None = None,
    algorithm: AlgorithmChoice = None,
    **options: Unpack[LocalOptions],
) -> Federation | Follower:
    """Run one peer in this program, whose loop trains; see docs/your-own-loop.md.

    In each round ``model`` has the values to train; what the loop makes of them is this peer's model of the round. With the same
    ``state_dir`` a later start resumes at the round where the loop was. Ctrl-C, or an error of the loop, tells the neighbors that
    this peer leaves, and writes a checkpoint.

    Args:
        graph: the graph that all peers share, or its file.
        peer_id: id of this peer in it.
        model: the module that the loop trains. Where a site has several processes (`torchrun`), each gives its own: rank 0 is the
            peer and evaluates, the others get its rounds and its values. Without ``make_model`` its values are those that the run
            starts from, and must be the same at all peers: seed torch before it is made, or load them from a file.
        evaluate: takes the module, in evaluation mode and without gradients, and returns the metric on the test samples; or a
            dict of it, ``more_metrics`` and maybe ``loss`` by name.
        samples: in the training set; peers with more weigh more where the algorithm says so.
        make_model: makes a new module like it; the run's seed then draws the first values, as in a task. Algorithms that hold
            several models need it.
        metric: what `evaluate` returns. Default: accuracy.
        more_metrics: what it returns besides.
        losses: takes the module and returns the loss of each training sample, [samples]; algorithms that choose clusters need it.
        keep: objects with ``state_dict`` by name, such as the optimizer: checkpoints contain their state, a resumed run loads it.
        algorithm: as `peer.run`.
        options: those of `peer run`.

    Raises:
        UsageError, ConfigError, TaskError: an argument cannot be used; other errors come from the loop, as `peer.run` says.

    >>> import peer, tempfile, torch
    >>> from concurrent.futures import ThreadPoolExecutor
    >>> def site(peer_id, folder):  # usually a program of its own
    ...     model = torch.nn.Linear(2, 1)
    ...     torch.nn.init.zeros_(model.weight), torch.nn.init.zeros_(model.bias)
    ...     optimizer = torch.optim.SGD(model.parameters(), 0.1)
    ...     x = torch.ones(4, 2) * (peer_id + 1)
    ...     with join(graph, peer_id, model=model, evaluate=lambda m: 0.5, samples=4, state_dir=f"{folder}/{peer_id}",
    ...               insecure=True) as federation:
    ...         for round in federation:
    ...             optimizer.zero_grad()
    ...             (model(x) - 1).square().mean().backward()
    ...             optimizer.step()
    ...     return federation.run.metrics["rounds"]
    >>> graph = peer.Graph.make("line", peers=2, run={"rounds": 2, "algorithm": "dfedavg"})
    >>> with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor() as threads:
    ...     list(threads.map(site, (0, 1), (folder, folder)))
    [2, 2]
    """
    from peer.algorithms.registry import algorithm_for
    from peer.observe.logs import setup_logging

    with named_in_python():
        graph = graph_of(graph)
        model = unwrapped(model)
        refuse_unless(isinstance(model, nn.Module), "model", "a torch.nn.Module", model)
        refuse_unless(callable(evaluate), "evaluate", "a function of the model", evaluate)
        refuse_unless(isinstance(samples, int) and samples > 0, "samples", "the number of training samples", samples)
        if "device" not in options:
            options["device"] = str(next(model.parameters()).device)
        if several_ranks() and distributed.get_rank() > 0:
            return Follower(model, keep or {})
        options.setdefault("threads", torch.get_num_threads())  # of the program's loop
        task = Joined(model, make_model, evaluate, samples, metric or Metric(), more_metrics, losses, keep or {})
        enforced(options.get("policy"))  # before a file of the run is executed
        graph, _ = chosen(graph, task, algorithm)
        if make_model is None and (slots := algorithm_for(graph, peer_id).slots) > 1:
            name = graph.manifest.algorithm
            raise UsageError(
                ConfigProblem(
                    Option("make_model"),
                    f"a function that returns a new model, since algorithm '{name}' holds {slots} that start differently",
                    "none",
                    "Give the function that made the model.",
                )
            )
        asked = complete_options(peer_id, options)
        if "log" in options:
            level, style = log_form(asked["log"])
            setup_logging(peer_id, level=level, style=style)
        return Federation(peer_id, graph, task, asked, Ranks(model) if several_ranks() else None)
