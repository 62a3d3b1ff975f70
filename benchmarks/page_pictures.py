"""Pictures of the page for the documentation: a run of eight peers in which one is killed and restarted.

    python benchmarks/page_pictures.py --run out/pictures --out docs/figures

Runs `peer testbed` if there is no run in `--run`, then opens its page in Chromium: the ended run in light and in dark colors, the
failure in a replay, and a replay with a line per peer.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path += [str(Path(__file__).parents[1] / "tests"), str(Path(__file__).parents[1] / "tests" / "browser")]

from chromium import Tab, browser, missing
from tools.running import running, until

PEERS, ROUNDS, KILLED, AT, BACK = 8, 100, 3, 12, 50
FAULTS = f"""
[[event]]
at_round = {AT}
do = "kill"
peers = [{KILLED}]

[[event]]
at_round = {BACK}
do = "restart"
peers = [{KILLED}]
"""
SIZE = 1440, 1080


def make_run(directory: Path) -> None:
    """Run the testbed."""
    with tempfile.NamedTemporaryFile("w", suffix=".toml") as script:
        script.write(FAULTS)
        script.flush()
        command = ["testbed", "--peers", PEERS, "--out", directory, "--chaos", script.name]
        settings = ["--set", f"run.rounds={ROUNDS}", "--set", "run.options.warmup_rounds=8"]
        subprocess.run([sys.executable, "-m", "peer", *map(str, command), *settings], check=True)


def take(tab: Tab, out: Path) -> None:
    """Save the pictures of an open page."""
    tab.driver.save_screenshot(str(out / "page.png"))
    tab.find("#theme").click()
    tab.script("document.querySelector('#table button[aria-label=\"Open peer 5\"]').click()")
    tab.wait(lambda: tab.find("#panel").is_displayed(), "the page of a peer")
    tab.driver.save_screenshot(str(out / "page-dark.png"))
    tab.find("#panel-close").click()
    tab.find("#theme").click()
    dead = f'#table tr[data-peer="{KILLED}"][data-status="dead"]'
    shown = next(
        r for r in range(AT, BACK) if show(tab, r) and tab.script("return !!document.querySelector(arguments[0])", dead)
    )
    show(tab, shown + 1)
    tab.driver.save_screenshot(str(out / "page-failure.png"))
    tab.find("#curves-choices .toggle").click()
    show(tab, 2 * ROUNDS // 3)
    tab.script("document.querySelector('[aria-labelledby=clusters-title]').scrollIntoView()")
    tab.wait(lambda: tab.script("return scrollY") > 0, "the page has scrolled")
    tab.driver.save_screenshot(str(out / "page-replay.png"))


def show(tab: Tab, round_index: int) -> bool:
    """Replay at a round."""
    tab.seek(round_index)
    return True


def main() -> None:
    """Take the pictures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=Path, default=Path("out/pictures"))
    parser.add_argument("--out", type=Path, default=Path("docs/figures"))
    options = parser.parse_args()
    if reason := missing():
        raise SystemExit(reason)
    if not (options.run / "graph.json").exists():
        make_run(options.run)
    with tempfile.TemporaryDirectory() as name:
        log = Path(name) / "log"
        with running(sys.executable, "-u", "-m", "peer", "watch", options.run, log=log):
            link = until(lambda: log.read_text().removeprefix("page: ").strip(), "a link", logs=[log])
            with browser(Path(name) / "profile", width=SIZE[0], height=SIZE[1]) as tab:
                tab.open(link)
                take(tab, options.out)


if __name__ == "__main__":
    main()
