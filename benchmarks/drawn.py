"""Curves as a small SVG picture that reads on light and dark pages; no package is needed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from xml.sax.saxutils import escape

WIDTH, HEIGHT = 640, 340
LEFT, RIGHT, TOP, BOTTOM = 48, 200, 12, 40  # margins; the names of the lines are at the right
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#888888")  # Okabe and Ito (2008)
DASHES = ("", "7 3", "2 3", "9 3 2 3", "1 3")  # the lines differ without colors too
NAME_PX = 15  # between the names of two lines, at least
STYLE = (
    "text{font:12px sans-serif;fill:#222}path{fill:none;stroke-width:2}.grid{stroke:#8884;stroke-width:1}"
    "@media(prefers-color-scheme:dark){text{fill:#ddd}}"
)


def lines_as_svg(curves: Mapping[str, Sequence[float]], x_name: str, y_name: str) -> str:
    """Return the curves, whose values lie between 0 and 100, at x = 0, 1, 2, ..., each named at its end.

    Raises:
        ValueError: more curves than colors.
    """
    if len(curves) > len(COLORS):
        raise ValueError(f"curves: expected at most {len(COLORS)}, got {len(curves)}")
    last = max(len(values) for values in curves.values()) - 1
    across, down = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM

    def at(x: float, y: float) -> tuple[float, float]:
        return LEFT + across * x / last, TOP + down * (1 - y / 100)

    parts = []
    for y in range(0, 101, 20):
        _, height = at(0, y)
        parts.append(f'<path class="grid" d="M{LEFT} {height:.1f}h{across}"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{height + 4:.1f}" text-anchor="end">{y}</text>')
    for x in range(0, last + 1, max(1, last // 5)):
        parts.append(f'<text x="{at(x, 0)[0]:.1f}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">{x}</text>')
    parts.append(f'<text x="{LEFT + across / 2}" y="{HEIGHT - 6}" text-anchor="middle">{escape(x_name)}</text>')
    parts.append(
        f'<text transform="translate(12 {TOP + down / 2}) rotate(-90)" text-anchor="middle">{escape(y_name)}</text>'
    )
    places = _apart({name: at(last, values[-1])[1] for name, values in curves.items()})
    for (name, values), color, dashes in zip(curves.items(), COLORS, DASHES, strict=False):
        points = "L".join(f"{x:.1f} {y:.1f}" for x, y in (at(i, value) for i, value in enumerate(values)))
        parts.append(f'<path stroke="{color}" stroke-dasharray="{dashes}" d="M{points}"/>')
        edge = LEFT + across + 6
        parts.append(f'<path stroke="{color}" stroke-dasharray="{dashes}" d="M{edge} {places[name]:.1f}h22"/>')
        parts.append(f'<text x="{edge + 27}" y="{places[name] + 4:.1f}">{escape(name)}</text>')
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}">'
    return "\n".join([head, f"<style>{STYLE}</style>", *parts, "</svg>\n"])


def _apart(heights: Mapping[str, float]) -> dict[str, float]:
    """Return the heights of names, moved apart where they would overlap; the highest name stays inside the picture."""
    placed: dict[str, float] = {}
    above = float(TOP - NAME_PX)
    for name in sorted(heights, key=lambda each: heights[each]):
        above = placed[name] = max(heights[name], above + NAME_PX)
    return placed
