"""Follow README and the guides as a newcomer does: a fresh clone of HEAD, an empty environment, the commands of the pages.

    make newcomer                                        # all pages; the seconds of each at the end, and in out/newcomer.json
    python3 tests/newcomer/follow.py docs/python.md      # README.md, which installs, and this page

A page is read from its top. Indented blocks are shell commands, `python` blocks programs or files (first line: ``# NAME.py``).
A function below takes each of them in turn by its first words, never its text, and says what must come of it. A block or
command that it neither follows nor leaves out with a reason is an error, as is a command that fails.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests"))

from reading import Page, Step, Stuck  # noqa: E402

KEPT = re.compile(
    r"(PIP_(?!LOG|CACHE)|SSL_|REQUESTS_CA|CURL_CA|TORCH$|PYTHON$|LANG$|LC_|TERM$)|.*_proxy$", re.IGNORECASE
)


def readme(page: Page, log: Path) -> dict[str, float]:
    """Follow README.md in the clone; return the seconds of download, install and run."""
    began = time.monotonic()
    lines = page.timed("make demo")
    output, ended = "".join(line for _, line in lines), time.monotonic()
    started = next(when for when, line in lines if line.startswith(".venv/bin/peer testbed"))
    download = seconds_of_downloads(log)
    parts = {"download": download, "install": started - began - download, "run": ended - started}
    page.leave("make test", "the step `tests` of .ci/run")
    promised = page.take("run  ").text
    page.completed(output, least=0.9)
    report = {line.split("  ")[0]: line.rstrip() for line in output.splitlines()}
    for line in promised.splitlines():
        name = line.split("  ")[0]
        same = (
            name in report if name in {"accuracy", "bytes"} else report.get(name) == line
        )  # those differ between machines
        page.expect(same, f"the line {line!r} in the report of make demo, got {report.get(name)!r}")
    page.expect(list((page.folder / "out/demo/report").glob("*.png")), "pictures in out/demo/report, as make demo says")
    page.environment = activated(page, page.span(". .venv/bin/activate"))
    shows_its_page(page, page.span("peer watch out/demo"))
    page.left_out.append(f"{page.name}, docker compose up: the step `containers` of .ci/run")
    page.run("import peer")
    page.expect((page.folder / "a.png").stat().st_size, "the picture a.png")
    two_machines(page)
    return parts


def seconds_of_downloads(log: Path) -> float:
    """Return how long pip resolved and downloaded, from the times in its log."""
    total, first = 0.0, None
    for line in log.read_text(encoding="utf-8", errors="replace").splitlines():
        stamp, _, text = line.partition(" ")
        try:
            when = datetime.fromisoformat(stamp)
        except ValueError:
            continue
        first = first or when
        if text.startswith("Installing collected packages"):
            total += (when - first).total_seconds()
        if text.startswith("Successfully installed"):
            first = None
    return total


def activated(page: Page, step: Step) -> dict[str, str]:
    """Return the environment after the command that activates .venv."""
    shown = page.run(Step(step.line, "", f"{step.text} && env"))
    return dict(line.split("=", 1) for line in shown.splitlines() if "=" in line)


def shows_its_page(page: Page, step: Step) -> None:
    """Start a command that serves a page, and open the link that it prints."""
    watch = page.start(step)
    page.until(lambda: re.search(r"http://\S+", watch.printed()), "a link")
    (link,) = re.findall(r"http://\S+", watch.printed())[:1]
    fetch = ["python", "-c", "import sys, urllib.request as r; print(r.urlopen(sys.argv[1]).read().decode())", link]
    done = subprocess.run(fetch, env=page.environment, capture_output=True, text=True, check=False)
    page.expect("<html" in done.stdout, f"a page at {link}, got {done.stdout[:200]}{done.stderr[-500:]}")
    watch.interrupt()
    watch.end(128 + signal.SIGINT)


def two_machines(page: Page, interrupted: bool = False) -> None:
    """Follow the commands of two machines in two folders; with ``interrupted`` stop the second peer and start it again."""
    first, second = page.folder / "first", page.folder / "second"
    (second / "certs").mkdir(parents=True)
    first.mkdir()
    for words in ("peer graph make", "peer keygen --id 0", "peer graph pin"):
        page.run(words, first)
    for name in ("graph.json", "certs/peer-1.key", "certs/peer-1.pem"):
        shutil.move(first / name, second / name) if name.endswith(".key") else shutil.copy(first / name, second / name)
    one = page.start("peer run --id 0", first)
    command = page.take("peer run --id 1")
    two = page.start(command, second)
    history = second / "state" / "peer-1" / "history.jsonl"

    def rounds() -> int:
        one.printed(), two.printed()
        return history.read_text().count('"kind":"round"') if history.exists() else 0

    page.until(lambda: rounds() >= 2, "two rounds")
    status = page.run(page.span("peer status graph.json") if interrupted else "peer status", first)
    page.expect(
        all(re.search(rf"^ *{i} .* 1/1 ", status, re.M) for i in (0, 1)), f"two peers with a neighbor, got\n{status}"
    )
    if interrupted:
        two.interrupt()
        two.end()
        before = rounds()
        two = page.start(command, second)
        two.end()
        page.expect(rounds() > before, f"rounds after the restart, got {rounds()} of {before}")
    two.end()
    one.end()
    for folder, i in ((first, 0), (second, 1)):
        page.expect((folder / f"state/peer-{i}/models/personalized.safetensors").exists(), f"the model of peer {i}")


def first_graph(page: Page) -> None:
    two_machines(page, interrupted=True)


def your_own_task(page: Page) -> None:
    new_project(page)
    page.run("class Weather(peer.Data)", given=SAMPLES, then="assert task.make_model()[2].out_features == 2")
    for name in ("# my_task.py", "# make_stations.py"):
        page.run(name)
    page.run(page.span("python make_stations.py"))
    page.expect("decoded bit for bit" in page.run("peer task check"), "the last line of peer task check")
    page.completed(page.run("peer testbed"), least=0.6)
    page.run("np.load", given="import numpy as np\nnp.save('station-3-x.npy', np.zeros(3))")
    rows = "".join(f"{40 + i},{i % 7}.5,h{i % 3},{'ill' if i % 2 else 'well'}\n" for i in range(90))
    (page.folder / "table.csv").write_text(f"age,dose,hospital,state\n{rows}")
    page.run("peer data split")
    page.expect(len(list((page.folder / "shards").glob("peer-*.safetensors"))) == 3, "three shard files")
    page.leave("cp1252", "what a command shows")
    page.expect("accuracy" in page.run("peer evaluate"), "an accuracy")
    page.run("peer predict")
    for words in ("peer export out model.safetensors", "peer export out model.pt"):
        page.run(words)
    page.run("# load_model.py", then="")
    page.run(Step(0, "", "python load_model.py"))
    page.run("# use_model.py")
    shown = [line.split() for line in page.run("python use_model.py").splitlines()]
    with (page.folder / "predictions.csv").open() as file:
        told = [(row["class"], float(row["probability"])) for row in csv.DictReader(file)]
    same = [name == other and abs(float(p) - q) < 1e-4 for (name, p), (other, q) in zip(shown, told, strict=True)]
    page.expect(
        len(same) == 50 and all(same), f"the predictions of peer predict from use_model.py, got {shown[:3]}, {told[:3]}"
    )


SAMPLES = """
import numpy as np
import peer
from torch import nn
draw = np.random.default_rng(0)
x = draw.normal(size=(400, 8)).astype(np.float32)
y = np.where(x[:, 0] > 0, "dry", "rain")
"""


def new_project(page: Page) -> None:
    """Make a project as a page says, and follow the README of its folder."""
    command = page.span("peer init")
    page.run(command)
    folder = page.folder / command.text.split()[2]
    inner = Page(folder / "README.md", folder, page.environment)
    inner.expect("decoded bit for bit" in inner.run("peer task check"), "the last line of peer task check")
    inner.expect(": complete" in inner.run("peer testbed"), "a completed run")
    inner.leave("pip install pytest", "tests/unit/ops/test_init.py runs it")
    inner.leave("docker compose up", "tests/unit/ops/test_init.py reads its file")
    inner.finish()
    page.left_out += inner.left_out


def your_own_loop(page: Page) -> None:
    shutil.copy(ROOT / "tests/newcomer/training.py", page.folder)
    for words in ("# train.py", "peer graph make", "for id in", "peer graph pin"):
        page.run(words)
    command = page.take("python train.py 3")
    sites = [page.start(command), *(page.start(command, None, ("train.py 3", f"train.py {i}")) for i in range(3))]
    for site in sites:
        site.end()
    page.expect(len(list(page.folder.glob("site-*.pt"))) == 4, "four models")
    page.run("# scans.py")
    page.expect("decoded bit for bit" in page.run("peer task check"), "the last line of peer task check")
    page.completed(page.run("peer testbed"), least=0.6)
    page.leave("task = peer.lightning.task", "extras; tests/unit/lightning and tests/unit/transformers")
    page.leave("for epoch in budget.resumable", "a fragment; tests/unit/learning/test_inside_a_round.py")


def python_page(page: Page) -> None:
    page.run("import peer", then='assert done.metrics["rounds"] == 12')
    page.expect((page.folder / "a.png").stat().st_size, "the picture a.png")
    page.run(page.span("pip install 'coordinator-free[tabular]'"))
    frame = "import pandas, torch\nframe = pandas.DataFrame(x).rename(columns=str).assign(weather=y)\n"
    dataset = "dataset = torch.utils.data.TensorDataset(torch.tensor(x), torch.tensor(x[:, 0] > 0))\n"
    page.run("graph = peer.Graph.make", given=f"{SAMPLES}rain_mm = 2 * x[:, 0]\n{frame}{dataset}")
    page.leave("peer.simulate(graph, MyTask()", "a fragment; tests/unit/algorithms/test_own_file.py")
    page.leave("[project.entry-points", "tests/process/test_example_package.py")
    page.leave("run = peer.run", "a fragment; tests/process/test_python_api.py")
    page.leave("run = peer.run", "a fragment; tests/process/test_revisions_in_python.py")


def from_flower(page: Page) -> None:
    brought(page)
    page.run(page.span("peer task check my_task.py"))
    page.run(page.span("peer graph make"))
    page.completed(page.run(page.span("peer testbed")), least=0.6)


def from_p2pfl(page: Page) -> None:
    page.run(page.span("peer graph make"))
    page.completed(page.run(page.span("peer testbed graph.json")), least=0.6)


def deploy(page: Page) -> None:
    page.leave("docker compose up", "the step `containers` of .ci/run")
    page.run("peer graph make --peers 16")
    page.run("peer deploy compose")
    page.expect("peer-15:" in (page.folder / "docker-compose.yml").read_text(), "16 services in docker-compose.yml")
    for words in ("peer graph make --peers 8", "peer deploy compose"):
        page.leave(words, "tests/unit/ops/test_compose.py compares what it writes")
    brought(page)
    (page.folder / "graph.json").unlink()
    for words in ("peer graph make", "peer keygen", "echo", "peer deploy systemd"):
        page.run(words)
    page.expect(len(list((page.folder / "devices").glob("*.tar*"))) == 30, "an archive for each device")


def brought(page: Page) -> None:
    """Put the reader's own task file and data, those of docs/your-own-task.md, into the folder of a page."""
    shown = Page(page.path.with_name("your-own-task.md"), page.folder, page.environment)
    files = [step for step in shown.steps if step.file in {"my_task.py", "make_stations.py"}]
    for step in files:
        shown.run(step)
    shown.run(Step(0, "", "python make_stations.py"))


GUIDES: dict[str, Callable[[Page], None]] = {
    "docs/first-graph.md": first_graph,
    "docs/your-own-task.md": your_own_task,
    "docs/your-own-loop.md": your_own_loop,
    "docs/python.md": python_page,
    "docs/from-flower.md": from_flower,
    "docs/from-p2pfl.md": from_p2pfl,
    "docs/deploy.md": deploy,
}
SECTIONS = {"docs/deploy.md": ("Containers on one machine", "Edge devices")}  # of the others, all


def clean(home: Path) -> dict[str, str]:
    """Return the environment of somebody new: an empty home, no package of this checkout, a cold cache of pip."""
    paths = [path for path in os.environ["PATH"].split(":") if not (Path(path).parent / "pyvenv.cfg").exists()]
    kept = {name: value for name, value in os.environ.items() if KEPT.match(name)}
    config = Path.home() / ".config/pip/pip.conf"
    found = {"PIP_CONFIG_FILE": str(config)} if config.exists() else {}
    return found | kept | {"PATH": ":".join(paths), "HOME": str(home), "COLUMNS": "130"}


def follow(page: Page, what: Callable[[Page], object]) -> float:
    """Follow a page to its end, and return the seconds."""
    began = time.monotonic()
    try:
        what(page)
        page.finish()
    finally:
        page.close()
    seconds = time.monotonic() - began
    for line in page.left_out:
        print(f"newcomer: left out {line}", flush=True)
    return seconds


def main() -> None:
    """Follow README.md, then the guides; print and write the seconds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pages", nargs="*", metavar="PAGE", help=f"guides. Default: {', '.join(GUIDES)}")
    names = parser.parse_args().pages or [*GUIDES]
    with tempfile.TemporaryDirectory(prefix="newcomer-") as folder:
        work = Path(folder)
        environment, clone = clean(work / "home"), work / "coordinator-free"
        (work / "home").mkdir()
        subprocess.run(["git", "clone", "--quiet", ROOT, clone], check=True)
        log = work / "pip.log"
        first = Page(clone / "README.md", clone, environment | {"PIP_LOG": str(log)})
        rows: dict[str, float] = {}
        try:
            whole = follow(first, lambda page: rows.update(readme(page, log)))
            rows |= {"time to first result": sum(rows.values()), "README.md": whole}
            with ThreadPoolExecutor(2) as readers:  # two cores
                half = first.environment | {"OMP_NUM_THREADS": "1"}
                pages = {
                    name: Page(clone / name, work / Path(name).stem, half, SECTIONS.get(name, ())) for name in names
                }
                seconds = readers.map(lambda name: follow(pages[name], GUIDES[name]), names)
                rows |= dict(zip(names, seconds, strict=True))
        except Stuck as error:
            sys.exit(f"newcomer: stuck at {error}")
    for name, value in rows.items():
        print(f"{name:<24} {value:6.1f} s")
    (ROOT / "out").mkdir(exist_ok=True)
    (ROOT / "out" / "newcomer.json").write_text(json.dumps(rows, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
