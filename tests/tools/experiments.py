"""The project's experiment files, and the start of a small one: eight peers, two rounds, seconds on one core."""

from pathlib import Path

from peer.lab.blocks import read_blocks
from peer.lab.table import ResultTable

PAPERS = Path(__file__).parents[2] / "papers"
FILES = sorted(PAPERS.glob("*/*.toml"))


def file_named(stem: str) -> Path:
    """Return the experiment file of a name."""
    return next(path for path in FILES if path.stem == stem)


def tables_of(folder: Path) -> list[ResultTable]:
    """Return the tables of the results below a folder."""
    return [block.table() for block in read_blocks(folder)]


HEAD = """
title = "A small one"
source = "this test"
peers = 8
seeds = 2
train_samples = 480
test_samples = 160

[graph]
kind = "erdos-renyi"
p = 0.5

[run]
rounds = 2
model_options = { hidden = 8 }
split_options = { samples_per_peer = 60, test_per_peer = 20 }
"""
