"""Every fuzz target over its corpus, and over 300 mutations of each input, drawn from a fixed seed."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from mutation import mutated
from targets import TARGETS

CORPUS = Path(__file__).parent / "corpus"


def test_every_target_has_a_corpus() -> None:
    assert {path.name for path in CORPUS.iterdir()} == set(TARGETS)
    assert sum(path.stat().st_size for path in CORPUS.rglob("*") if path.is_file()) < 1 << 20


@pytest.mark.parametrize("name", TARGETS)
def test_any_bytes_give_a_value_or_the_documented_error(name: str) -> None:
    draw = random.Random(name)
    for path in sorted((CORPUS / name).iterdir()):
        data = path.read_bytes()
        TARGETS[name](data)
        for _ in range(300):
            TARGETS[name](mutated(data, draw))
