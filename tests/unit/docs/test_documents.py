"""Links, command lines, manifest keys and programs in the documents match the repository."""

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tools.pages import SPAN, code_blocks, prose, spans, write_files
from tools.verbs_of import verbs_of
from typer.main import get_command
from typer.testing import CliRunner

import peer
from coordinator_free_bootstrap.manifest import Manifest, Options
from coordinator_free_bootstrap.settings import known_keys
from peer.cli.main import app
from peer.zoo.tasks.splits import SPLITS

ROOT = Path(__file__).parents[3]
PAGES = [path for name in ("README.md", "SECURITY.md", "CONTRIBUTING.md") if (path := ROOT / name).exists()]
PAGES += [*sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "papers").rglob("*.md"))]
PROGRAM = get_command(app)
every_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))

LINK = re.compile(r"\]\(([^)\s]+)\)|^\[[^\]]+\]: (\S+)$", re.MULTILINE)
KEY = re.compile(r"(?<![\w./-])run(?:\.[a-z_]+)+")


def anchors(page: Path) -> set[str]:
    """Return the anchors that GitHub gives to the headings of a page."""
    found: set[str] = set()
    for heading in re.findall(r"^#+ (.+)$", prose(page.read_text()), re.MULTILINE):
        name = re.sub(r"[^\w\- ]", "", re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()).replace(" ", "-")
        repeat = sum(1 for anchor in found if re.fullmatch(rf"{re.escape(name)}(-\d+)?", anchor))
        found.add(f"{name}-{repeat}" if repeat else name)
    return found


def links(page: Path) -> list[str]:
    found = (match[1] or match[2] for match in LINK.finditer(SPAN.sub("", prose(page.read_text()))))
    return [link for link in found if "://" not in link]


def commands(page: Path) -> list[str]:
    """Return every command line of `peer` that a page shows, in blocks and in running text."""
    text = page.read_text()
    lines = [line.replace("\\\n", " ") for block in code_blocks(text) for _, line in block.commands()]
    shown = [part.strip() for line in lines for part in line.split(" #")[0].split("&&")]
    return [line for line in shown + spans(text) if re.match(r"peer( -|  *[a-z])", line)]


def complaint(line: str) -> str | None:
    """Return what of a command line the program does not have, or None."""
    command: Any = PROGRAM
    words = shlex.split(line)[1:]
    while (verbs := verbs_of(command)) and words and not words[0].startswith("-"):
        if (found := verbs.get(words[0])) is None:
            return f"no verb {words[0]!r}"
        command, words = found, words[1:]
    options = {
        name: p for p in command.params for name in (*p.opts, *p.secondary_opts) if p.param_type_name == "option"
    }
    places = [p.nargs for p in command.params if p.param_type_name == "argument"]
    given = 0
    while words:
        word = words.pop(0)
        if not word.startswith("-"):
            given += 1
            continue
        name, equals, _ = word.partition("=")
        if name == "--help":
            continue
        if (option := options.get(name)) is None:
            return f"no option {name}"
        if not equals and not option.is_flag and not option.count:
            if not words:
                return f"no value for {name}"
            words.pop(0)
    if -1 not in places and given > sum(places):
        return f"{given} arguments, {sum(places)} allowed"
    return None


@every_page
def test_relative_links_lead_to_existing_files_and_headings(page: Path) -> None:
    for link in links(page):
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        assert target.exists(), f"{page.name}: {link}"
        assert not anchor or anchor in anchors(target), f"{page.name}: {link}; headings: {sorted(anchors(target))}"


@every_page
def test_commands_have_existing_verbs_and_options(page: Path) -> None:
    wrong = {line: found for line in commands(page) if (found := complaint(line))}
    assert not wrong, f"{page.name}: {wrong}"


@every_page
def test_manifest_keys_exist(page: Path) -> None:
    known = known_keys()
    free = tuple(f"run.{name}." for name, field in Manifest.model_fields.items() if field.annotation == Options)
    free += tuple(f"run.{name}" for name in dir(peer.Run) if not name.startswith("_"))  # of a Python object named run
    wrong = {key for key in KEY.findall(page.read_text()) if key not in known and not key.startswith(free)}
    assert not wrong, f"{page.name}: {sorted(wrong)}"


def test_the_documents_show_commands_and_links() -> None:
    assert sum(len(commands(page)) for page in PAGES) > 50
    assert sum(len(links(page)) for page in PAGES) > 20


def test_a_wrong_command_is_found() -> None:
    assert complaint("peer fly") == "no verb 'fly'"
    assert complaint("peer graph make --colour red") == "no option --colour"
    assert complaint("peer keygen --id") == "no value for --id"
    assert complaint("peer status one two") == "2 arguments, 1 allowed"


@pytest.fixture(scope="module")
def weather(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the programs of docs/your-own-task.md, data for its task, a run of it, and exported models."""
    folder = tmp_path_factory.mktemp("weather")
    write_files(ROOT / "docs" / "your-own-task.md", folder)
    executed(folder, "make_stations.py")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        graph = peer.Graph.make("ring", peers=3, run={"rounds": 6, "algorithm": "dfedavg"})
        run = peer.simulate(graph, "my_task.py:task", out=folder / "out", progress=False)
        for ending in ("pt", "safetensors", "onnx"):
            run.export_model(0, folder / f"model.{ending}")
    return folder


def executed(folder: Path, *command: str) -> str:
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True, check=False, cwd=folder)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_the_plain_pytorch_use_of_a_model_gives_the_predictions_of_peer_predict(
    weather: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The programs of docs/your-own-task.md are executed: a task that standardizes, and the use of its exported model."""
    shown = [
        line.split() for line in executed(weather, "use_model.py", "model.safetensors", "samples.npy").splitlines()
    ]
    monkeypatch.chdir(weather)
    arguments = ["predict", "out/peer-0/models/personalized.safetensors", "samples.npy", "--json"]
    rows = json.loads(CliRunner().invoke(app, arguments, catch_exceptions=False).stdout)["predictions"]
    assert [name for name, _ in shown] == [row["class"] for row in rows]
    assert [float(p) for _, p in shown] == pytest.approx([row["probability"] for row in rows], rel=1e-5)
    assert {name for name, _ in shown} == {"dry", "rain", "snow"}


@pytest.mark.slow
def test_the_lines_that_load_an_exported_model_are_executed(weather: Path) -> None:
    """Three lines of plain PyTorch, and the line of each row of the table; all give the same outputs."""
    table = re.findall(r"^\| `model\.\w+` \| .* \| `(.*)` \|$", (ROOT / "docs" / "your-own-task.md").read_text(), re.M)
    assert len(table) == 3
    pt, safetensors, onnx = table
    three_lines = (weather / "load_model.py").read_text()
    assert pt in three_lines
    program = f"""
import onnxruntime, safetensors.torch
{three_lines}
inputs = torch.linspace(-1, 1, 80).reshape(10, 8)
with torch.no_grad():
    expected = model(inputs)
    model = task.make_model().eval()
    {safetensors}
    assert torch.equal(model(inputs), expected)
    inputs = inputs.numpy()
    torch.testing.assert_close(torch.from_numpy({onnx}[0]), expected)
print("equal", expected.std() > 0)
"""
    assert executed(weather, "-c", program) == "equal tensor(True)\n"


def test_the_split_options_that_the_page_names_are_those_of_every_split():
    section = (ROOT / "docs" / "your-own-task.md").read_text().split(". Options of the splits\n")[1].split("\n## ")[0]
    shared = set.intersection(*(set(split.options.model_fields) for split in SPLITS.values()))
    named = set(re.findall(r"`(\w+)`", section))
    assert shared == named and len(shared) == 3


def test_the_walks_name_files_that_are_there() -> None:
    """A name without a folder is of the folder named before it in its line."""
    walks = (ROOT / "docs" / "architecture.md").read_text().split("\n## Two walks\n")[1].split("\n## ")[0]
    named = []
    for line in re.findall(r"^(?:\d+\. |\| \d+ \|).*", walks, re.MULTILINE):
        folder = Path()
        for name in re.findall(r"`([\w/]+\.py)`", line):
            folder = Path(name).parent if "/" in name else folder
            named.append(folder / Path(name).name)
    assert len(named) > 40
    assert [path for path in named if not (ROOT / path).is_file()] == []
