"""The page at five widths, in light and dark: nothing overlaps, overflows or is covered, and what it says of the run's ends."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from recorded import Recorded

pytestmark = pytest.mark.browser

SIZES = {
    "wide": (1920, 1080),
    "desktop": (1400, 900),
    "laptop": (1024, 768),
    "tablet": (768, 1024),
    "phone": (360, 780),
}
BOXES = """
const box = e => { const r = e.getBoundingClientRect(); return [r.left, r.top, r.right, r.bottom]; };
return [...document.querySelectorAll(arguments[0])].filter(e => e.getClientRects().length).map(box)
"""
CUT = """
const block = e => getComputedStyle(e).display !== 'inline';
return [...document.querySelectorAll(arguments[0])].filter(e => block(e) && e.scrollWidth > e.clientWidth + 1)
  .map(e => e.className + ': ' + e.textContent)
"""


@pytest.fixture(params=SIZES)
def size(request, tab):
    """Give the tab one of the sizes, a phone's with a phone's viewport."""
    width, height = SIZES[request.param]
    metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
    tab.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    yield width, height
    tab.driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def boxes(tab, selector: str) -> list[list[float]]:
    return tab.script(BOXES, selector)


def overlapping(found: list[list[float]]) -> list[tuple[int, int]]:
    """Return the pairs of boxes that share more than a line of pixels."""
    return [
        (a, b)
        for a, (left, top, right, bottom) in enumerate(found)
        for b, other in enumerate(found[:a])
        if min(right, other[2]) - max(left, other[0]) > 1 and min(bottom, other[3]) - max(top, other[1]) > 1
    ]


def long_run(directory: Path) -> Recorded:
    """Return a run with long numbers: 25 of 1,200 rounds done by some peers, 26 by others, and refused messages."""
    run = Recorded(directory, rounds=1200)
    run.complete(25)
    run.write(0, "round", **run.line(0, 25) | {"payload_bytes_sent": 987_654_321_000})
    run.write(1, "refused", neighbor=0, code="malformed", reason="a field out of range")
    return run


def test_the_page_of_a_peer_is_as_wide_as_what_it_shows(tab, page, recorded, size):
    recorded.complete(4)
    with page(recorded.directory) as link:
        tab.open(link())
        tab.script("document.querySelector('#table .peer-link').click()")
        tab.wait(lambda: tab.find("#panel").is_displayed(), "the page of the peer is open")
        assert tab.script(CUT, "#panel, #panel *") == []
        left, _, right, _ = boxes(tab, "#panel")[0]
        assert all(left <= a and b <= right for a, _, b, _ in boxes(tab, "#panel th, #panel td, #panel dd"))
        seconds = tab.script("return document.querySelector('#panel [data-field=seconds]').textContent")
        assert seconds.count(" ") == 4, "a line ends between two phases, not before a unit"


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_nothing_overlaps_or_overflows(tab, page, tmp_path, size, theme):
    width, height = size
    run = long_run(tmp_path / "long")
    with page(run.directory) as link:
        tab.open(link())
        if tab.script("return document.documentElement.dataset.theme") != theme:
            tab.find("#theme").click()
        assert tab.script("return document.documentElement.scrollWidth") <= width
        assert tab.text("#numbers [data-field=rounds]") == "25–26" and "of 1,200" in tab.text("#numbers")
        assert tab.script(CUT, "#numbers *, #replay *, .card-head *, #top *, #warnings li") == []
        for parts in (
            "#numbers > .tile",
            "#numbers .tile:first-child > *",
            ".replay-row > *",
            "main > *",
            ".pair > .card",
        ):
            assert overlapping(boxes(tab, parts)) == [], parts
        assert all(left >= 0 and right <= width for left, _, right, _ in boxes(tab, ".replay-row > *"))
        ((_, top, _, bottom),) = boxes(tab, "#replay")
        assert bottom == pytest.approx(height, abs=1) and bottom - top <= 0.13 * height
    run.close()


def test_the_replay_bar_covers_neither_the_graph_nor_the_axis_of_the_curve(tab, page, recorded, size):
    width, _ = size
    recorded.complete(12)
    with page(recorded.directory) as link:
        tab.open(link())
        ((_, top, _, _),) = boxes(tab, "#replay")
        if width == 1400:  # without scrolling
            assert all(bottom <= top for _, _, _, bottom in boxes(tab, "#graph, #curves, #curves-note"))
        for picture in ("#graph", "#curves", "#clusters", "#timeline"):
            tab.script(
                "document.querySelector(arguments[0]).scrollIntoView({block: 'end', behavior: 'instant'})", picture
            )
            ((_, _, _, bottom),) = boxes(tab, picture)
            assert bottom <= top + 1, picture
        tab.script("scrollTo({top: 1e6, behavior: 'instant'})")
        assert boxes(tab, "main")[0][3] <= boxes(tab, "#replay")[0][1]


@pytest.mark.parametrize("peers", [6, 100, 320])
def test_the_page_ends_where_its_last_view_ends(tab, page, tmp_path, size, peers):
    run = Recorded(tmp_path / "run", peers=peers, rounds=3)
    run.complete(3)
    run.close()
    with page(run.directory) as link:
        tab.open(link())
        tab.script("scrollTo(0, 0)")
        height = tab.script("return document.documentElement.scrollHeight")
        ends = boxes(tab, "main")[0][3] + tab.script("return document.getElementById('replay').offsetHeight")
        assert height <= ends + 40
        drawn = boxes(tab, "#graph > *")[0]
        assert drawn[3] - drawn[1] >= 200 and drawn[3] <= boxes(tab, "#graph")[0][3] + 1


@pytest.mark.parametrize("rounds", [3, 9, 25, 45, 180])
def test_ticks_of_rounds_are_whole_rounds(tab, page, tmp_path, rounds):
    run = Recorded(tmp_path / "run", rounds=rounds)
    run.complete(rounds)
    run.close()
    with page(run.directory) as link:
        tab.open(link())
        ticks = [float(tick) for tick in tab.find("#curves").get_attribute("data-ticks").split()]
        assert len(ticks) > 1 and all(tick.is_integer() for tick in ticks)


def test_the_pointer_shows_the_values_of_its_round_inside_the_plot(tab, page, recorded):
    recorded.complete(12)
    recorded.end()
    with page(recorded.directory) as link:
        tab.open(link())
        move = (
            "const o = document.querySelector('.u-over'), r = o.getBoundingClientRect();"
            "for (const kind of ['mouseenter', 'mousemove']) o.dispatchEvent(new MouseEvent(kind,"
            " {bubbles: true, clientX: r.left + arguments[0] * r.width, clientY: r.top + 40}))"
        )
        for share, text in ((0.02, "Round 1: mean 0.375"), (0.98, "Round 12: mean")):
            tab.script(move, share)
            tab.wait(lambda text=text: tab.text(".tip").startswith(text), f"the tip says {text}")
            ((left, top, right, bottom),) = boxes(tab, ".tip")
            ((from_x, from_y, to_x, to_y),) = boxes(tab, ".u-over")
            assert from_x <= left and right <= to_x and from_y <= top and bottom <= to_y


def test_numbers_after_the_final_phase_are_named(tab, page, recorded):
    recorded.complete(12)
    for peer_id in recorded.graph.ids:
        recorded.write(peer_id, "end", rounds_completed=12, metric_value=0.97, cluster_index=0)
    recorded.close()
    with page(recorded.directory) as link:
        tab.open(link())
        assert tab.number("metric_mean") == pytest.approx(0.97)
        assert "after the final phase" in tab.text("#numbers")
        assert "Dot: after the final phase, mean 0.970, worst 0.970." in tab.text("#curves-note")
        tab.seek(10)
        assert "after the final phase" not in tab.text("#numbers")


def test_no_word_of_a_final_phase_where_it_changed_nothing(tab, page, recorded):
    recorded.complete(12)
    recorded.end()
    with page(recorded.directory) as link:
        tab.open(link())
        assert "final phase" not in tab.text("main")


def test_warnings_say_what_happened_and_when(tab, page, recorded):
    recorded.complete(1)
    recorded.write(1, "refused", neighbor=0, code="norm_bound", reason="x")
    with page(recorded.directory) as link:
        tab.open(link())
        assert tab.text("#warnings").startswith(
            "1 message refused by peer 1: a model beyond screening.norm_bound (norm_bound); the last after "
        )


def test_the_timeline_has_an_axis_of_seconds(tab, page, recorded):
    recorded.complete(2)
    with page(recorded.directory) as link:
        tab.open(link())
        labels = tab.texts("#timeline .times span")
        assert len(labels) == 5 and labels[0] == "0 s" and labels[-1].endswith(" s")
        assert overlapping(boxes(tab, "#timeline .times span")) == []


def test_an_empty_directory_says_what_it_waits_for_and_shows_the_run_when_it_starts(tab, page, tmp_path):
    directory = tmp_path / "later"
    directory.mkdir()
    with page(directory) as link:
        tab.driver.get(link())
        tab.wait(lambda: tab.text("[data-field=title]") == "No run yet", "the page says that there is no run")
        assert f"peer testbed --out {directory}" in tab.text("[data-field=subtitle]")
        assert tab.text("[data-field=mode]") == "no run yet"
        assert not tab.find("#replay").is_displayed() and not tab.find("#numbers").is_displayed()
        made = Recorded(tmp_path / "run")
        made.complete(2)
        made.close()
        shutil.copytree(made.directory, directory, dirs_exist_ok=True)
        tab.wait(lambda: tab.data("ready") == "yes", "the page shows the run")
        tab.wait(lambda: tab.number("rounds") == 2, "with its rounds")
        assert tab.find("#replay").is_displayed()
