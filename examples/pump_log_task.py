"""Example task: sensors: the state of a pump from windows of its log, a CSV time series of two sensors.

Each peer is a pump. The log is cut into windows that do not overlap; the later windows are the test set, so that no test sample
lies beside a training sample in time.

    python examples/make_files.py        # writes examples/files/pumps/pump-0.csv and so on; use your own instead
    peer task check examples/pump_log_task.py:task
    peer testbed --peers 4 --set run.task=examples/pump_log_task.py:task --set run.batch_size=10 --set run.rounds=20
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from torch import nn

from peer.tasks import Preprocessing, Shard, Task

FOLDER = Path(__file__).parent / "files" / "pumps"
SENSORS = ("vibration", "pressure")
STATES = ("idle", "running", "worn")
WINDOW = 64  # readings


class PumpLogTask(Task):
    """Windows of one pump's log, float32 [n, sensors, readings], in three states."""

    classes = len(STATES)
    class_names = STATES

    def make_model(self) -> nn.Module:
        """Return a network of two convolutions over time and a linear layer."""
        return nn.Sequential(
            nn.Conv1d(len(SENSORS), 8, kernel_size=7, stride=2),
            nn.ReLU(),
            nn.Conv1d(8, 16, kernel_size=7, stride=2),
            nn.ReLU(),
            nn.AdaptiveAvgPool1d(4),
            nn.Flatten(),
            nn.Linear(16 * 4, self.classes),
        )

    def load_shard(self, peer_id: int) -> Shard:
        """Return the windows of one pump."""
        log = np.genfromtxt(FOLDER / f"pump-{peer_id}.csv", delimiter=",", names=True, dtype=None, encoding="utf-8")
        windows = cut_into_windows(log)
        raw = np.stack([windows[name] for name in SENSORS], axis=1)
        y = np.array([STATES.index(state) for state in windows["state"][:, -1]])  # the state at the end of the window
        cut = len(y) * 2 // 3
        train = raw[:cut]
        scaling = Preprocessing(mean=train.mean((0, 2))[:, None].tolist(), std=train.std((0, 2))[:, None].tolist())
        x = scaling.apply(raw)
        return Shard(train_x=x[:cut], train_y=y[:cut], test_x=x[cut:], test_y=y[cut:], preprocessing=scaling)

    def encode(self, rows: list[dict[str, str]], preprocessing: Preprocessing) -> np.ndarray:
        """Return inputs of the model for a log: one sample for each whole window."""
        log = np.array([[float(row[name]) for name in SENSORS] for row in rows])
        return preprocessing.apply(cut_into_windows(log).swapaxes(1, 2))


def cut_into_windows(log: np.ndarray) -> np.ndarray:
    """Return the whole windows of a log [readings, ...], as [windows, `WINDOW`, ...]."""
    return log[: len(log) // WINDOW * WINDOW].reshape(-1, WINDOW, *log.shape[1:])


task = PumpLogTask()
