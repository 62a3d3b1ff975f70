"""A Trainer's own checkpoints inside a round: written where they are due, found after a restart."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from peer.store.files import write_atomic
from peer.tasks.budget import Budget

_NAME = "last.json"  # names the last checkpoint that is whole


def checkpoint_in(folder: Path) -> tuple[str, int] | None:
    """Return path and step of the last whole checkpoint in a folder; None if there is none."""
    file = folder / _NAME
    if not file.exists():
        return None
    step: int = json.loads(file.read_text())["step"]
    return str(folder / f"checkpoint-{step}"), step


def follows(budget: Budget) -> Any:
    """Return a callback that writes checkpoints where they are due, and ends the training where the peer is asked to leave."""
    from transformers import TrainerCallback

    def on_step_begin(self: Any, args: Any, state: Any, control: Any, **_: Any) -> Any:
        control.should_training_stop = control.should_training_stop or budget.should_stop()
        return control

    def on_step_end(self: Any, args: Any, state: Any, control: Any, **_: Any) -> Any:
        control.should_save = state.global_step < state.max_steps and budget.due()
        return control

    def on_save(self: Any, args: Any, state: Any, control: Any, **_: Any) -> None:
        write_atomic(budget.folder / _NAME, json.dumps({"step": state.global_step}).encode())
        for path in budget.folder.glob("checkpoint-*"):
            if path.name != f"checkpoint-{state.global_step}":
                shutil.rmtree(path)

    methods = {"on_step_begin": on_step_begin, "on_step_end": on_step_end, "on_save": on_save}
    return type("FollowsTheRound", (TrainerCallback,), methods)()
