"""`peer.lightning.task`: a LightningModule and its data as a `Task`; a Trainer fits in each round, and tests."""

from __future__ import annotations

import copy
import logging
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import override

from coordinator_free_bootstrap.errors import TaskError
from coordinator_free_bootstrap.extras import is_installed, require
from coordinator_free_bootstrap.strict_json import of_type
from peer.core.metric import Metric
from peer.learning.own_loop import EnoughSteps
from peer.lightning.data import ModuleData
from peer.lightning.inside import Places
from peer.lightning.kept import NAME, MemoryOrFile, TrainerState, steps_in
from peer.tasks.budget import Budget, Trained
from peer.tasks.declared_metric import DeclaredMetric
from peer.tasks.torchvision_shim import import_for_user_code

Options = Mapping[str, Any]
_PACKAGES = ("lightning.pytorch", "pytorch_lightning")  # two copies of the same classes, which do not work together
# A peer has its own log and files; and a Trainer that is asked for nothing else leaves no file.
_QUIET: Options = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
_PREFIXES = {"test": ("test_", "", "test/"), "validation": ("val_", "", "val/", "validation_", "valid_")}


class LightningTask(DeclaredMetric):
    """See `task`. A subclass may have `losses` and `subset`, which algorithms with clusters ask for, and its own `count`."""

    def __init__(
        self,
        make_module: Callable[[], nn.Module],
        make_data: Callable[[int], Any],
        *,
        metric: Metric | None = None,
        more_metrics: Sequence[Metric] = (),
        trainer: Options | Callable[[], Options] | None = None,
    ) -> None:
        if not any(is_installed(package.partition(".")[0]) for package in _PACKAGES):
            require(("lightning",), "peer.lightning.task")
        super().__init__(metric or Metric(), more_metrics)
        import_for_user_code()  # torchmetrics imports torchvision
        self._make_module, self._make_data = make_module, make_data
        self._options = trainer or {}

    @override
    def make_model(self) -> nn.Module:
        module = self._make_module()
        _package_of(module)
        return module

    @override
    def load_data(self, peer_id: int) -> ModuleData:
        return ModuleData(self._make_data(peer_id))

    @override
    def count(self, data: ModuleData) -> int:
        return data.count()

    @override
    def train(self, model: nn.Module, data: ModuleData, budget: Budget) -> Trained:
        state = budget.keep("trainer", TrainerState)
        trainer = self._trainer(
            model,
            budget.device,
            max_epochs=-1 if budget.epochs is None else state.epochs + budget.epochs,
            max_steps=-1 if budget.steps is None else state.steps + budget.steps,
            **({"precision": "bf16-mixed"} if budget.precision == "bfloat16" else {}),
        )
        trainer.budget = budget
        inside = budget.folder / "last.safetensors"
        trainer.strategy.checkpoint_io = MemoryOrFile(state, inside, model, trainer.strategy.checkpoint_io)
        sums, places = _Sums(), Places(budget.device)

        def on_start(trainer: Any, *_: Any) -> None:
            trainer.should_stop = trainer.should_stop or budget.should_stop()

        def on_end(trainer: Any, module: Any, outputs: Any, batch: Any, index: int) -> None:
            sums.add(outputs, batch, trainer.accumulate_grad_batches if module.automatic_optimization else 1)
            # After the last batch, Lightning has yet to end the epoch; without a known place, the epoch would begin anew.
            if places.known and not trainer.is_last_batch and budget.due():
                with places.told():
                    trainer.save_checkpoint(inside, weights_only=False)

        hooks = _package_of(model).callbacks.LambdaCallback(on_train_batch_start=on_start, on_train_batch_end=on_end)
        trainer.callbacks.append(hooks)
        begin = NAME if state.parts else None
        if (steps := steps_in(inside)) is not None:
            begin = str(inside)
            budget.resumed(steps - state.steps)
        try:
            with _used(model), data.for_fit(places.around) as given:
                trainer.fit(model, **given, ckpt_path=begin)
        except EnoughSteps:  # the end of a trial, which shows what is kept
            trainer.save_checkpoint(NAME, weights_only=False)
            raise
        trainer.save_checkpoint(NAME, weights_only=False)
        numbers = {name: float(value) for name, value in trainer.callback_metrics.items()}
        return Trained(sums.loss, sums.samples or None, None, numbers)

    @override
    def evaluate(self, model: nn.Module, data: ModuleData) -> Mapping[str, float]:
        base, own = (getattr(kind, "test_step") for kind in (_package_of(model).LightningModule, type(model)))  # noqa: B009
        tests = "test" in data.parts and own is not base
        part = "test" if tests else "validation"
        if part not in data.parts:
            raise TaskError(
                "evaluate: expected a test_step with test data, or a validation_step with validation data, got neither. Give the "
                "module and its data one of them."
            )
        trainer = self._trainer(model, next(model.parameters()).device)
        run = trainer.test if tests else trainer.validate
        with _used(model):
            found = run(model, **data.for_evaluation(part), verbose=False)
        return self.picked({name: value for each in found for name, value in each.items()}, _PREFIXES[part])

    def _trainer(self, model: nn.Module, device: torch.device, **of_round: Any) -> Any:
        """Return a new Trainer: the user's options, those of the run, and silence where the user has asked for nothing."""
        package = _package_of(model)
        options = dict(self._options()) if callable(self._options) else copy.deepcopy(dict(self._options))
        given = options.get("callbacks") or []
        callbacks = [*given] if isinstance(given, list | tuple) else [given]
        saves = any(isinstance(callback, package.callbacks.Checkpoint) for callback in callbacks)
        defaults = {**_QUIET, "enable_checkpointing": saves, "precision": of_round.pop("precision", None)}
        _calm(package)
        trainer = package.Trainer(**{**defaults, **options, "callbacks": callbacks, **_on(device), **of_round})
        if trainer.world_size != 1:
            raise TaskError(
                f"trainer: expected one process and device at a peer, got {trainer.world_size}. Remove num_nodes, or start the "
                "script with torchrun and join with peer.join."
            )
        return trainer


def task(
    make_module: Callable[[], nn.Module],
    make_data: Callable[[int], Any],
    *,
    metric: Metric | None = None,
    more_metrics: Sequence[Metric] = (),
    trainer: Options | Callable[[], Options] | None = None,
) -> LightningTask:
    """Return a LightningModule and its data as a task: ``task = peer.lightning.task(Net, lambda site: Scans(f"data/{site}"))``.

    In each round a new Trainer fits for the epochs or steps of the run; it goes on with the optimizers, schedulers, callbacks
    and counts of epochs of the round before, also after a restart. ``self.trainer.budget`` is the round's `peer.Budget`: its
    learning rate is that of the run, for a module whose `configure_optimizers` uses it.

    Args:
        make_module: returns a new LightningModule; the seed of the run draws its first values.
        make_data: takes the peer's id and returns a LightningDataModule, or loaders, ``{"train": ..., "test": ...}``. It is set
            up once, with the same random numbers at each start. Without test data, or without a ``test_step``, the validation
            metrics are those of the test.
        metric: of the test, by the name under which the module logs it, with or without ``test_`` or ``val_``. Default: accuracy.
        more_metrics: further ones.
        trainer: options of the Trainer, or a function that returns them. Its epochs, steps and device are those of the run;
            without a logger, a progress bar or a ModelCheckpoint among the options it has none.
    """
    return LightningTask(make_module, make_data, metric=metric, more_metrics=more_metrics, trainer=trainer)


class _Sums:
    """Mean loss and number of the used samples; a module that optimizes by hand may return no loss."""

    def __init__(self) -> None:
        self.samples, self._loss, self._counted = 0, torch.zeros(()), 0

    def add(self, outputs: Any, batch: Any, parts: int) -> None:
        """Add a batch; of a step in parts, Lightning gives the part of the loss."""
        size = _size(batch)
        self.samples += size
        loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
        if isinstance(loss, Tensor):
            self._loss = self._loss.to(loss.device) + loss.detach().float().mean() * size * parts
            self._counted += size

    @property
    def loss(self) -> float | None:
        return float(self._loss) / self._counted if self._counted else None


def _size(batch: Any) -> int:
    """Return the number of samples of a batch: the length of its first tensor; 0 where it has none."""
    if isinstance(batch, Tensor):
        return len(batch) if batch.dim() else 0
    inner = batch.values() if isinstance(batch, Mapping) else batch if isinstance(batch, list | tuple) else ()
    return next((size for each in inner if (size := _size(each))), 0)


def _on(device: torch.device) -> dict[str, Any]:
    if device.type == "cuda":
        return {"accelerator": "gpu", "devices": [device.index or 0]}
    return {"accelerator": device.type, "devices": 1}


@contextmanager
def _used(model: nn.Module) -> Iterator[None]:
    """Let a Trainer have a model; afterwards it has forgotten the Trainer, and is where it was."""
    device = next(model.parameters()).device
    with warnings.catch_warnings():
        # hints about speed, and what Lightning does not yet do as torch wants it: in every round again
        for category in (_fabric(_package_of(model)).utilities.warnings.PossibleUserWarning, FutureWarning):
            warnings.filterwarnings("ignore", category=category)
        warnings.filterwarnings("ignore", "Checkpoint directory .* exists and is not empty")  # from the second round on
        try:
            yield
        finally:
            model.trainer = None  # type: ignore[assignment]
            model.to(device)


def _package_of(module: object) -> Any:
    """Return ``lightning.pytorch`` or ``pytorch_lightning``, whichever a module is of.

    Raises:
        TaskError: of neither.
    """
    for name in _PACKAGES:
        package: Any = sys.modules.get(name)
        if package is not None and isinstance(module, package.LightningModule):
            return package
    raise TaskError(f"make_module: expected a LightningModule, got {of_type(module)}")


def _fabric(package: Any) -> Any:
    """Return the package below ``lightning.pytorch`` or ``pytorch_lightning``."""
    return sys.modules["lightning.fabric" if package.__name__ == _PACKAGES[0] else "lightning_fabric"]


def _calm(package: Any) -> None:
    """Leave Lightning's warnings in the log, and not its reports of each Trainer; a level that the user has set stays."""
    for each in (package, _fabric(package)):
        log = logging.getLogger(each.__name__)
        if log.level == logging.INFO:
            log.setLevel(logging.WARNING)
