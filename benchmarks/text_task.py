"""A small text task for benchmarks: LoRA adapters (Hu et al., "LoRA", 2021, arXiv 2106.09685) of a frozen transformer.

A text has two clauses of different kinds and the label of the second: "hello , thank you for the app , but the invoice is broken
again" is a complaint. So texts of the same words have different labels, and the order decides. Sites get labels in different
shares. The transformer has random weights, the same at every site; adapters and classifier are trained and travel.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from typing_extensions import override

from peer.ops.starts.samples import OPENINGS, SENTENCES, THINGS
from peer.tasks import Preprocessing, Shard, Task

LABELS = tuple(SENTENCES)
CLAUSES = [clause for kind in SENTENCES.values() for clause in kind]
WORDS = tuple(dict.fromkeys(" ".join([*OPENINGS, *THINGS, *CLAUSES, ", but"]).replace("{}", "").split()))
TOKENS, PADDING = 24, 0
WIDTH, HEADS, LAYERS, RANK = 32, 4, 2, 4
TRAINED, TESTED = 120, 100  # texts of a site


class Adapted(nn.Module):
    """A frozen linear map with a low-rank one beside it, which begins as 0."""

    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(WIDTH, WIDTH).requires_grad_(False)
        self.down = nn.Linear(WIDTH, RANK, bias=False)
        self.up = nn.Linear(RANK, WIDTH, bias=False)
        nn.init.zeros_(self.up.weight)

    @override
    def forward(self, x: Tensor) -> Tensor:
        """Return the sum of both, for float32 [..., width]."""
        found: Tensor = self.base(x) + self.up(self.down(x))
        return found


class Block(nn.Module):
    """A layer of a transformer, frozen but for adapters of queries and values."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.value = Adapted(), Adapted()
        self.key, self.out = (nn.Linear(WIDTH, WIDTH).requires_grad_(False) for _ in range(2))
        self.wide = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)).requires_grad_(
            False
        )

    @override
    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """Return float32 [n, tokens, width] for the same; ``mask``: bool [n, 1, 1, tokens], which tokens are read."""
        query, key, value = (
            each(x).unflatten(-1, (HEADS, -1)).transpose(1, 2) for each in (self.query, self.key, self.value)
        )
        read = functional.scaled_dot_product_attention(query, key, value, attn_mask=mask).transpose(1, 2).flatten(-2)
        x = functional.layer_norm(x + self.out(read), (WIDTH,))
        return functional.layer_norm(x + self.wide(x), (WIDTH,))


class TextModel(nn.Module):
    """A classifier that takes token ids, int64 [n, tokens], and gives logits [n, classes]."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(len(WORDS) + 1, WIDTH).requires_grad_(False)
        self.places = nn.Parameter(torch.randn(TOKENS, WIDTH), requires_grad=False)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.classify = nn.Linear(WIDTH, len(LABELS))

    @override
    def forward(self, ids: Tensor) -> Tensor:
        """Return the logits; padding is not read."""
        read = ids != PADDING
        x = self.words(ids) + self.places
        for block in self.blocks:
            x = block(x, read[:, None, None])
        mean = (x * read[..., None]).sum(1) / read.sum(1, keepdim=True)
        logits: Tensor = self.classify(mean)
        return logits


class TwoClauses(Task):
    """Classify texts of two clauses.

    Args:
        seed: of the texts.
    """

    classes = len(LABELS)
    class_names = LABELS
    preprocessing = Preprocessing()  # token ids are the inputs of the model

    def __init__(self, seed: int) -> None:
        self.seed = seed

    @override
    def make_model(self) -> nn.Module:
        """Return the model; the same frozen weights whatever the seed of the run."""
        with torch.random.fork_rng():
            torch.manual_seed(0)
            return TextModel()

    @override
    def load_shard(self, peer_id: int) -> Shard:
        """Return the texts of one site as token ids."""
        draw = np.random.default_rng([self.seed, peer_id])
        shares = np.roll([0.6, 0.25, 0.15], peer_id)
        ids, labels = np.full((TRAINED + TESTED, TOKENS), PADDING, np.int64), []
        for row in ids:
            label = str(draw.choice(LABELS, p=shares))
            other = str(draw.choice([kind for kind in LABELS if kind != label]))
            first, second = (str(draw.choice(SENTENCES[kind])).format(draw.choice(THINGS)) for kind in (other, label))
            words = f"{draw.choice(OPENINGS)} , {first} , but {second}".split()
            row[: len(words)] = [WORDS.index(word) + 1 for word in words]
            labels.append(LABELS.index(label))
        y = np.array(labels)
        return Shard(train_x=ids[:TRAINED], train_y=y[:TRAINED], test_x=ids[TRAINED:], test_y=y[TRAINED:])
