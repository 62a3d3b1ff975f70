"""`peer.transformers.task`: model, data and `Trainer` of a script with Hugging Face's libraries as a `Task`."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import nn
from typing_extensions import override

from coordinator_free_bootstrap.errors import TaskError
from coordinator_free_bootstrap.extras import require
from coordinator_free_bootstrap.strict_json import of_type
from peer.core.metric import Metric
from peer.tasks.budget import Budget, Trained
from peer.tasks.declared_metric import DeclaredMetric
from peer.tasks.torchvision_shim import import_for_user_code
from peer.transformers.inside import checkpoint_in, follows

log = logging.getLogger("peer")
Rate = Literal["trainer", "run"]
SEEDS = 2**32  # of NumPy


class _Data:
    """What the user's function returned; in a box, so that data sets in it are the Trainer's alone."""

    def __init__(self, parts: Any) -> None:
        self.parts = parts


class TransformersTask(DeclaredMetric):
    """See `task`. A subclass may have `losses` and `subset`, which algorithms with clusters ask for."""

    def __init__(
        self,
        make_model: Callable[[], nn.Module],
        load_data: Callable[[int], Any],
        make_trainer: Callable[[Any, Any], Any],
        *,
        metric: Metric | None = None,
        more_metrics: Sequence[Metric] = (),
        rate: Rate = "trainer",
    ) -> None:
        require(("transformers", "accelerate"), "peer.transformers.task")
        super().__init__(metric or Metric(), more_metrics)
        import_for_user_code()  # transformers imports torchvision
        self._make_model, self._load_data, self._make_trainer = make_model, load_data, make_trainer
        self._rate = rate

    @override
    def make_model(self) -> nn.Module:
        return self._make_model()

    @override
    def load_data(self, peer_id: int) -> Any:
        return _Data(self._load_data(peer_id))

    @override
    def count(self, data: Any) -> int:
        train: Any = data.parts.get("train") if isinstance(data.parts, Mapping) else None
        if not hasattr(train, "__len__"):
            raise TaskError(
                "load_data: expected a dict of data sets with a length for train, as a DatasetDict, got "
                f"{of_type(data.parts)}. Or subclass peer.transformers.TransformersTask, and let count(data) return the number."
            )
        return len(train)

    @override
    def train(self, model: nn.Module, data: Any, budget: Budget) -> Trained:
        with self._trainer(model, data) as trainer:
            args = trainer.args
            _check(args, budget)
            _seed(trainer, budget.seed % SEEDS)
            total = _steps_of_the_plan(trainer)
            trainer.optimizer = budget.keep("optimizer", trainer.create_optimizer)
            self._schedule(trainer, budget, total)
            if (scaler := getattr(trainer.accelerator, "scaler", None)) is not None:
                budget.keep("scaler", lambda: scaler)
            args.num_train_epochs = budget.epochs or 1
            args.max_steps = -1 if budget.steps is None else budget.steps
            trainer.add_callback(follows(budget))
            args.output_dir = str(budget.folder)
            last = checkpoint_in(budget.folder)
            if last is not None:
                budget.resumed(last[1])
            done = trainer.train(resume_from_checkpoint=None if last is None else last[0])
            samples = None if budget.steps is None else budget.steps * trainer.get_total_train_batch_size(args)
            return Trained(float(done.training_loss), samples)

    @override
    def evaluate(self, model: nn.Module, data: Any) -> Mapping[str, float]:
        with self._trainer(model, data) as trainer:
            return self.picked(trainer.evaluate(), ("eval_", "eval_test_"))

    @contextmanager
    def _trainer(self, model: nn.Module, data: Any) -> Iterator[Any]:
        """Let a new Trainer have the model for a block; it shows and saves nothing."""
        from transformers import PrinterCallback, ProgressCallback, Trainer

        trainer = self._make_trainer(model, data.parts)
        if not isinstance(trainer, Trainer):
            raise TaskError(f"make_trainer: expected a transformers.Trainer, got {of_type(trainer)}")
        if trainer.model is not model:
            raise TaskError("make_trainer: expected a Trainer with the model that it gets, got another one")
        if trainer.args.load_best_model_at_end:
            raise TaskError(
                "TrainingArguments: load_best_model_at_end: expected False, got True. The model of a round is the one at its end."
            )
        for callback in (PrinterCallback, ProgressCallback):
            trainer.remove_callback(callback)
        trainer.args.save_strategy = "no"  # the checkpoints are those of the peer
        device = next(model.parameters()).device
        try:
            yield trainer
        finally:
            trainer.accelerator.unwrap_model(model, keep_fp32_wrapper=False)  # the forward of the model as it was
            trainer.accelerator.free_memory()
            model.to(device)

    def _schedule(self, trainer: Any, budget: Budget, total: int) -> None:
        """Give a Trainer its schedule of rates, for the user's own number of epochs over all rounds, or the rate of the run."""
        if self._rate == "run":
            for group in trainer.optimizer.param_groups:
                group["lr"] = group["initial_lr"] = budget.learning_rate
            scheduler = torch.optim.lr_scheduler.LambdaLR(trainer.optimizer, lambda step: 1.0)
        else:
            scheduler = budget.keep("scheduler", lambda: trainer.create_scheduler(num_training_steps=total))
            if scheduler.last_epoch > 0 and not any(group["lr"] for group in trainer.optimizer.param_groups):
                log.warning(
                    "learning rate 0 from the begin of round %d: the schedule of TrainingArguments ends after %d steps; give it "
                    "num_train_epochs of the whole run, rounds times run.local_epochs",
                    budget.round,
                    total,
                )

        def same(*_: Any, **__: Any) -> Any:
            trainer.lr_scheduler = scheduler
            return scheduler

        trainer.create_scheduler = same
        same()


def task(
    make_model: Callable[[], nn.Module],
    load_data: Callable[[int], Any],
    make_trainer: Callable[[Any, Any], Any],
    *,
    metric: Metric | None = None,
    more_metrics: Sequence[Metric] = (),
    rate: Rate = "trainer",
) -> TransformersTask:
    """Return the parts of a script with a `Trainer` as a task: ``task = peer.transformers.task(net, load_data, make_trainer)``.

    In each round a new Trainer trains for the epochs or steps of the run, with the optimizer and the schedule of the round
    before, also after a restart. Only trainable parameters travel, so with adapters (PEFT) the base model stays where it is.

    Args:
        make_model: returns a new model; the seed of the run draws what is random in it.
        load_data: takes the peer's id and returns a dict with the data set ``train``, as a DatasetDict, and what `make_trainer`
            needs besides.
        make_trainer: takes model and data and returns a Trainer with them. What its `evaluate` computes for its ``eval_dataset``
            are the test metrics of this peer. It saves nothing, and shows no progress: checkpoints and log are the peer's.
        metric: by the name that `compute_metrics` gives it. Default: accuracy.
        more_metrics: further ones.
        rate: whose learning rate: "trainer", that of TrainingArguments with its schedule, which must be for the epochs of all
            rounds together; or "run", ``run.learning_rate`` of each round.
    """
    return TransformersTask(make_model, load_data, make_trainer, metric=metric, more_metrics=more_metrics, rate=rate)


def _check(args: Any, budget: Budget) -> None:
    """Check that a Trainer uses the device and precision of the peer."""
    if args.world_size != 1 or args.n_gpu > 1:
        raise TaskError(
            f"make_trainer: expected one process and device at a peer, got {max(args.world_size, args.n_gpu)}. Hide the other "
            "GPUs with CUDA_VISIBLE_DEVICES, or start the script with torchrun and join with peer.join."
        )
    if args.device.type != budget.device.type:
        fix = "Set use_cpu=True in TrainingArguments" if budget.device.type == "cpu" else "Remove use_cpu"
        raise TaskError(
            f"make_trainer: expected the device of the peer, {budget.device.type}, got {args.device.type}. {fix}, or start the "
            f"peer with --device {args.device.type}."
        )
    if budget.precision == "bfloat16" and not args.bf16:
        raise TaskError("make_trainer: expected bf16=True in TrainingArguments, since the peer has --amp, got False")


def _seed(trainer: Any, seed: int) -> None:
    """Seed everything from the round: a Trainer would begin each with the same shuffle and the same dropout."""
    from transformers import set_seed

    trainer.args.seed = seed
    if trainer.args.data_seed is not None:
        trainer.args.data_seed = trainer.accelerator.dataloader_config.data_seed = seed
    set_seed(seed)


def _steps_of_the_plan(trainer: Any) -> int:
    """Return the steps of the optimizer that TrainingArguments ask for, as without a federation."""
    args = trainer.args
    if args.max_steps > 0:
        return int(args.max_steps)
    per_epoch: int = math.ceil(len(trainer.get_train_dataloader()) / args.gradient_accumulation_steps)
    return math.ceil(float(args.num_train_epochs) * per_epoch)
