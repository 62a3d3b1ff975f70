"""Small data sets as users have them, drawn from fixed seeds: what a new task reads until it reads its user's own files."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np

PICTURES_PER_CLASS = 30
SIDE = 24


def apartments(folder: Path, site: int) -> None:
    """Write the apartments of a town: area, rooms, year, distance to the center, and the rent, which costs more in some towns."""
    draw, rows = np.random.default_rng(site), []
    for _ in range(240):
        area, year, distance = draw.uniform(25, 140), int(draw.integers(1920, 2024)), draw.exponential(4)
        rooms = max(1, round(area / 28 + draw.normal(0, 0.5)))
        rent = (9 + 4 * (site % 2)) * area + 40 * rooms + 2 * (year - 1920) - 25 * distance + draw.normal(0, 40)
        rows.append([round(area, 1), rooms, year, round(distance, 2), round(max(rent, 150.0), 2)])
    with (folder / f"site-{site}.csv").open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, lineterminator="\n").writerows([["area", "rooms", "year", "distance_km", "rent"], *rows])


def pictures(folder: Path, site: int) -> None:
    """Draw circles, crosses and squares: dark on light at even sites, light on dark at odd ones."""
    from PIL import Image, ImageDraw

    draw = np.random.default_rng(site)
    paper, ink = ((255, 40), (0, 215))[site % 2]
    for name in ("circle", "cross", "square"):
        place = folder / f"site-{site}" / name
        place.mkdir(parents=True)
        for number in range(PICTURES_PER_CLASS):
            picture = Image.new("L", (SIDE, SIDE), paper)
            pen = ImageDraw.Draw(picture)
            (left, top), size = draw.integers(1, 8, 2), int(draw.integers(9, 15))
            box = (int(left), int(top), int(left) + size, int(top) + size)
            if name == "circle":
                pen.ellipse(box, outline=ink, width=2)
            elif name == "square":
                pen.rectangle(box, outline=ink, width=2)
            else:
                pen.line(box, fill=ink, width=2)
                pen.line((box[0], box[3], box[2], box[1]), fill=ink, width=2)
            picture.save(place / f"{number:03d}.png")


OPENINGS = ("hello", "good morning", "dear team", "hi there", "to whom it may concern")
THINGS = ("my order", "the invoice", "the app", "my account", "the delivery", "the new phone")
SENTENCES = {
    "complaint": ("{} is broken again", "{} does not work", "i am angry about {}", "{} came late and wrong"),
    "question": ("when will {} be ready", "how can i change {}", "where do i find {}", "what does {} cost"),
    "thanks": ("thank you for {}", "{} works perfectly now", "i love {}", "great help with {}"),
}


def sentences(folder: Path, site: int) -> None:
    """Write the mail of an office: a text and its label a line; offices get labels in different shares."""
    draw, lines = np.random.default_rng(400 + site), []
    shares = np.roll([0.6, 0.25, 0.15], site)
    for _ in range(160):
        label = str(draw.choice(list(SENTENCES), p=shares))
        text = f"{draw.choice(OPENINGS)} , {str(draw.choice(SENTENCES[label])).format(draw.choice(THINGS))}"
        lines.append(json.dumps({"text": text, "label": label}))
    (folder / f"site-{site}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
