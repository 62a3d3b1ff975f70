"""The task: classify sentences of support mail. Each site has a file of JSON lines with ``text`` and ``label``.

A word becomes a number by its hash, so that no site needs the words of another one.
"""

from __future__ import annotations

import json
import zlib
from pathlib import Path

import numpy as np
from torch import Tensor, nn

from peer.tasks import Preprocessing, Shard, Task

FOLDER = Path(__file__).parent / "data"
LABELS = ("complaint", "question", "thanks")
WORDS, LENGTH = 2048, 16  # numbers of words; words of a sentence, longer ones are cut
PADDING = 0


class MeanOfWords(nn.Module):
    """A classifier that takes the numbers of words, int64 [n, words], and gives logits [n, classes]."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.EmbeddingBag(WORDS, 16, mode="mean", padding_idx=PADDING)
        self.classes = nn.Linear(16, len(LABELS))

    def forward(self, words: Tensor) -> Tensor:
        """Return the logits; padding is not read."""
        logits: Tensor = self.classes(self.words(words))
        return logits


class SentenceTask(Task):
    """Sentences of one site, in three classes."""

    classes = len(LABELS)
    class_names = LABELS
    preprocessing = Preprocessing()  # numbers of words are the inputs of the model

    def make_model(self) -> nn.Module:
        """Return a mean of word vectors and a linear layer."""
        return MeanOfWords()

    def load_shard(self, peer_id: int) -> Shard:
        """Return the sentences of one site; the last quarter is the test set."""
        lines = (FOLDER / f"site-{peer_id}.jsonl").read_text(encoding="utf-8").splitlines()
        rows = [json.loads(line) for line in lines]
        x, y = np.stack([numbers(row["text"]) for row in rows]), np.array([LABELS.index(row["label"]) for row in rows])
        cut = len(y) * 3 // 4
        return Shard(train_x=x[:cut], train_y=y[:cut], test_x=x[cut:], test_y=y[cut:])


def numbers(text: str) -> np.ndarray:
    """Return the number of each word, int64 [LENGTH], filled up with `PADDING`."""
    found = [1 + zlib.crc32(word.encode()) % (WORDS - 1) for word in text.lower().split()[:LENGTH]]
    return np.array(found + [PADDING] * (LENGTH - len(found)), dtype=np.int64)


task = SentenceTask()
