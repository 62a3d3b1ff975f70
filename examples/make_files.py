"""Make small files as users have them, for the examples: tables, series, pictures with masks, scans, sentences, a text model.

    python examples/make_files.py            # writes examples/files, about 2 MB; the same bytes every time

The numbers are drawn from fixed seeds; each device has its own distribution. Four devices.
"""

from __future__ import annotations

import csv
import json
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from PIL import Image

from peer.ops.starts import samples

DEVICES = 4
FOLDER = Path(__file__).parent / "files"


def write_table(path: Path, header: list[str], rows: list[list[object]]) -> None:
    """Write a CSV table."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, lineterminator="\n").writerows([header, *rows])


def patients(device: int) -> None:
    """Write one clinic's patients: numbers and categories, of which some are missing, and whether they came back."""
    draw, rows = np.random.default_rng(100 + device), []
    for _ in range(300):
        age, pressure = int(draw.integers(18, 95)), draw.normal(130, 18)
        smoker, ward = draw.choice(["yes", "no"], p=[0.3, 0.7]), draw.choice(["surgery", "heart", "general"])
        risk = (age - 55) / 12 + (pressure - 130) / 15 + 1.5 * (smoker == "yes") + (1.0 if ward == "heart" else -0.4)
        outcome = "returned" if risk + draw.normal(0, 0.5) > 0 else "recovered"
        shown: list[object] = [age, round(pressure, 1), smoker, ward]
        missing = draw.random(4) < (0.02, 0.15, 0.1, 0.05)
        rows.append([*("" if gone else value for value, gone in zip(shown, missing, strict=True)), outcome])
    header = ["age", "blood_pressure", "smoker", "ward", "outcome"]
    write_table(FOLDER / "patients" / f"clinic-{device}.csv", header, rows)


def pumps(device: int) -> None:
    """Write one pump's log: ten readings a second of two sensors, and the state that an operator noted."""
    draw, rows = np.random.default_rng(200 + device), []
    for minute in range(60):
        state = int(draw.integers(0, 3))
        pitch, phase = 0.6 + 0.5 * state + 0.1 * (device % 2), draw.uniform(0, 2 * np.pi)
        for step in range(64):
            wave = np.sin(pitch * step + phase)
            x, y = wave + draw.normal(0, 0.3), 0.5 * wave * state + draw.normal(0, 0.3)
            rows.append([f"{minute * 6.4 + step / 10:.1f}", f"{x:.3f}", f"{y:.3f}", ("idle", "running", "worn")[state]])
    write_table(FOLDER / "pumps" / f"pump-{device}.csv", ["seconds", "vibration", "pressure", "state"], rows)


def cells(device: int) -> None:
    """Write one microscope's pictures, 32 x 32 grays, and masks of the same names: 0 background, 1 cell, 2 nucleus."""
    draw, folder = np.random.default_rng(300 + device), FOLDER / "cells" / f"microscope-{device}"
    for part in ("images", "masks"):
        (folder / part).mkdir(parents=True, exist_ok=True)
    y, x = np.mgrid[:32, :32]
    for number in range(40):
        mask = np.zeros((32, 32), np.uint8)
        for _ in range(int(draw.integers(1, 4))):
            row, column, radius = *draw.uniform(6, 26, 2), draw.uniform(3, 7)
            distance = np.hypot(y - row, x - column)
            mask[distance < radius] = 1
            mask[distance < radius / 2.5] = 2
        gray = np.array([40, 120, 210])[mask] + 30 * (device % 2) + draw.normal(0, 12, mask.shape)
        Image.fromarray(np.clip(gray, 0, 255).astype(np.uint8)).save(folder / "images" / f"{number:03}.png")
        Image.fromarray(mask).save(folder / "masks" / f"{number:03}.png")


def scans(device: int) -> None:
    """Write one scanner's volumes, 20 x 20 x 20 grays, and labels of the same names: 1 where an organ is."""
    draw, folder = np.random.default_rng(500 + device), FOLDER / "scans" / f"scanner-{device}"
    folder.mkdir(parents=True, exist_ok=True)
    grid = np.stack(np.mgrid[:20, :20, :20], axis=-1)
    for number in range(9):
        distance = np.sqrt((((grid - draw.uniform(6, 14, 3)) / draw.uniform(3, 6, 3)) ** 2).sum(-1))
        gray = np.where(distance < 1, 150, 70) + 30 * (device % 2) + draw.normal(0, 20, distance.shape)
        np.save(folder / f"{number:02}-image.npy", np.clip(gray, 0, 255).astype(np.uint8))
        np.save(folder / f"{number:02}-label.npy", (distance < 1).astype(np.uint8))


def sentences(device: int) -> None:
    """Write one office's mail: a text and its label a line."""
    folder = FOLDER / "sentences"
    folder.mkdir(parents=True, exist_ok=True)
    samples.sentences(folder, device)


def text_model() -> None:
    """Write a small text model with random weights, and a tokenizer of the words of the first device's sentences."""
    from peer.tasks.torchvision_shim import import_for_user_code

    import_for_user_code()  # transformers imports torchvision, whose usual build fails beside a CPU build of torch
    import torch
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers
    from transformers import DistilBertConfig, DistilBertForSequenceClassification, PreTrainedTokenizerFast

    words = Tokenizer(models.WordLevel(unk_token="[UNK]"))
    words.normalizer, words.pre_tokenizer = normalizers.Lowercase(), pre_tokenizers.Whitespace()
    lines = (FOLDER / "sentences" / "site-0.jsonl").read_text(encoding="utf-8").splitlines()
    texts = [json.loads(line)["text"] for line in lines]
    words.train_from_iterator(texts, trainers.WordLevelTrainer(special_tokens=["[PAD]", "[UNK]"]))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, pad_token="[PAD]", unk_token="[UNK]")
    torch.manual_seed(0)
    config = DistilBertConfig(
        vocab_size=words.get_vocab_size(),
        max_position_embeddings=32,
        dim=64,
        n_layers=2,
        n_heads=4,
        hidden_dim=256,
        num_labels=len(samples.SENTENCES),
        dropout=0.0,
        attention_dropout=0.0,
        seq_classif_dropout=0.0,
    )
    tokenizer.save_pretrained(FOLDER / "sentences" / "base")
    DistilBertForSequenceClassification(config).save_pretrained(FOLDER / "sentences" / "base")


def main() -> None:
    """Write the files of all devices."""
    for device in range(DEVICES):
        for write in (patients, pumps, cells, scans, sentences):
            write(device)
    if find_spec("transformers") is None:
        print("no package transformers: wrote no text model; pip install 'coordinator-free[hf]'")
    else:
        text_model()
    print(f"wrote {FOLDER}")


if __name__ == "__main__":
    main()
