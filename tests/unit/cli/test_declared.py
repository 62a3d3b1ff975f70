"""An option is declared once: commands, Python calls and settings take its type, default, bounds and help from there."""

import inspect
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tools.verbs_of import leaves
from typer.main import get_command
from typer.testing import CliRunner

import coordinator_free_bootstrap
import peer
from coordinator_free_bootstrap.errors import PeerError, RemoteProtocolError, UsageError
from coordinator_free_bootstrap.generators import KIND_KEYS, DrawOptions, GraphOptions
from coordinator_free_bootstrap.options import fields_of
from peer.algorithms.registry import algorithm_named
from peer.bed.api.testbed import Testbed
from peer.bed.options import BedOptions, bed_options
from peer.bed.verbs.testbed import IN_SETTINGS
from peer.cli.main import app
from peer.cli.problem import KEYS
from peer.lab.options import SimulatedOptions
from peer.lab.simulated import SimulatedSettings
from peer.runtime.assembly import LocalSettings
from peer.runtime.local_options import IN_FILE, LocalOptions, complete_options, limits_form, listen_address, log_form
from peer.runtime.options_file import options_in

DECLARED = {"run": LocalOptions, "testbed": BedOptions}
ELSEWHERE = {"run": IN_FILE, "testbed": IN_SETTINGS}  # keys of --options FILE and of --set
HELP = Path(__file__).parent / "help"  # written by: python tests/unit/cli/test_declared.py
VERBS_WITH_HELP = ["peer", *(name for name, _ in leaves(get_command(app)))]


def recorded(verb):
    """Return the file with the help of a verb."""
    return HELP / f"{verb.removeprefix('peer ').replace(' ', '-')}.txt"


def help_of(verb):
    """Return what ``VERB --help`` prints, without blanks at the ends of lines."""
    environment = {"COLUMNS": "110", "TERM": "dumb"}
    said = CliRunner(env=environment).invoke(app, [*verb.split()[1:], "--help"], prog_name="peer").stdout
    return "".join(f"{line.rstrip()}\n" for line in said.strip("\n").splitlines())


@pytest.mark.parametrize("verb", VERBS_WITH_HELP)
def test_help_is_as_recorded(verb):
    assert help_of(verb) == recorded(verb).read_text(encoding="utf-8")


def test_each_recorded_help_is_of_a_verb():
    assert {path.name for path in HELP.iterdir()} == {recorded(verb).name for verb in VERBS_WITH_HELP}


def test_the_help_of_peer_lists_all_exit_codes():
    """Before, 51 was missing."""
    listed = re.search(r"Exit codes: .*", " ".join(help_of("peer").split()))[0]
    ranges = [range(int(low), int(high or low) + 1) for low, high in re.findall(r"(\d+)(?:-(\d+))?", listed)]
    kinds = [PeerError]
    for kind in kinds:
        kinds += kind.__subclasses__()
        assert kind is RemoteProtocolError or any(kind.exit_code in each for each in ranges), kind


@pytest.mark.parametrize(("verb", "declared"), DECLARED.items())
def test_each_declared_option_is_an_option_of_the_command_with_its_default(verb, declared):
    parameters = {each.name: each for each in get_command(app).get_command(None, verb).params}
    for name, field in fields_of(declared).items():
        if name in ELSEWHERE[verb]:
            assert name not in parameters
            continue
        option = parameters[name]
        assert option.opts == [f"--{name.replace('_', '-')}"] and option.help == field.description
        assert option.default == field.default or (field.default == () and option.default is None)


def test_keyword_arguments_are_the_declared_options():
    for call, declared in ((peer.run, LocalOptions), (peer.run_async, LocalOptions), (Testbed.__init__, BedOptions)):
        assert inspect.signature(call).parameters["options"].annotation == f"Unpack[{declared.__name__}]"


def test_defaults_are_those_declared_where_nothing_is_given(tmp_path):
    options = complete_options(3, {})
    assert options["state_dir"].parts[-2:] == ("state", "peer-3")
    for name, field in fields_of(LocalOptions).items():
        assert name == "state_dir" or options[name] == field.default
    assert LocalSettings.at(tmp_path).options == options | {"state_dir": tmp_path}


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"threads": 0}, "threads=: expected at least 1, got 0"),
        ({"stay": "always"}, "stay=: expected never, completed or error, got 'always'"),
        ({"device": 3}, "device=: expected a text, got 3"),
        ({"thread": 3}, r"thread=: expected an option of peer.run, got an unknown option \(did you mean threads"),
        ({"metrics": "::"}, "metrics=: expected a port, such as 9400, or host and port.*, got '::'"),
        ({"metrics": 0}, "metrics=: expected a port"),
        ({"metrics_port": 9400}, r"metrics_port=: expected metrics= \[HOST:\]PORT, got a removed option"),
        ({"log": "loud"}, "log=: expected one of debug, info, warning, error, and ,json for lines of JSON, got 'loud'"),
        ({"log": "debug,info"}, "log=: expected one of debug"),
        ({"limit": "2MB:"}, "limit=: expected UP, UP:DOWN or :DOWN .*, got '2MB:'"),
        ({"ca": "ca.pem", "insecure": True}, "ca=: expected no value .*plaintext.*ca.pem"),
    ],
)
def test_a_wrong_option_is_refused_in_python_by_its_declaration(given, words):
    """Before, peer.run took threads=0 and device=3."""
    with pytest.raises(UsageError, match=f"^{words}"):
        peer.run(0, peer.Graph.make("line", peers=2), **given)


def test_the_same_rule_refuses_an_option_of_the_command(tmp_path):
    graph = tmp_path / "graph.json"
    peer.Graph.make("line", peers=2).save(graph)
    command = ["run", "--id", "0", "--neighbors", str(graph), "--metrics", "::"]
    done = subprocess.run([sys.executable, "-m", "peer", *command], capture_output=True, text=True, check=False)
    assert done.returncode == 2 and "--metrics: expected a port" in done.stderr


def test_an_option_that_several_verbs_share_has_one_declaration():
    commands = get_command(app)
    shown = {}
    for path in (["run"], ["testbed"], ["experiment", "run"], ["report"], ["doctor"]):
        command = commands
        for word in path:
            command = command.get_command(None, word)
        for option in command.params:
            if option.name in ("data_root", "download", "amp", "export", "exports", "proxy"):
                shown.setdefault(option.opts[-1], set()).add(option.help)
    declared = fields_of(LocalOptions)
    assert {name: {declared[name.strip("-").replace("-", "_")].description} for name in shown} | {
        "--proxy": shown["--proxy"]  # of a testbed it is another one: fault proxies
    } == shown
    assert len(shown) >= 3


def test_options_of_two_parts():
    assert [log_form(text) for text in ("info", "json", "debug,json")] == [
        ("info", "text"),
        ("info", "json"),
        ("debug", "json"),
    ]
    assert [listen_address(each) for each in (9400, "9400", "[::]:9400")] == [
        ("127.0.0.1", 9400),
        ("127.0.0.1", 9400),
        ("::", 9400),
    ]
    assert [complete_options(0, {"listen": each})["listen"] for each in ("[::1]:0", "h:1")] == ["[::1]:0", "h:1"]
    assert [limits_form(text) for text in ("2MB", "2MB:5MB", ":5MB")] == [("2MB", None), ("2MB", "5MB"), (None, "5MB")]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("thread = 2", r"expected options of peer run as keys, got thread in .* \(did you mean threads"),
        ("threads: 2", ".*options.toml: expected a file of options .*, got one that cannot be read"),
    ],
)
def test_a_file_of_options_is_read_or_refused(tmp_path, text, words):
    path = tmp_path / "options.toml"
    path.write_text("threads = 2\ninsecure-anywhere = true\n")
    assert options_in(path) == {"threads": 2, "insecure_anywhere": True}
    path.write_text(text)
    with pytest.raises(UsageError, match=f"--options:? ?{words}"):
        options_in(path)


def test_a_peer_takes_options_from_a_file_and_the_command_line_wins(tmp_path):
    """``threads`` of the file is refused by its declaration; ``log`` of the file is not read, because one is given."""
    graph, path = tmp_path / "graph.json", tmp_path / "options.toml"
    peer.Graph.make("line", peers=2).save(graph)
    command = ["run", "--id", "0", "--neighbors", str(graph), "--options", str(path), "--log", "debug"]
    wrong = f"threads in {path}: expected at least 1, got 0"
    for text, words in (("threads = 0", wrong), ("log = 'loud'", "identity")):
        path.write_text(text)
        done = subprocess.run([sys.executable, "-m", "peer", *command], capture_output=True, text=True, check=False)
        assert words in done.stderr, done.stderr


def test_an_option_on_the_command_line_wins_also_with_the_value_of_its_default(tmp_path):
    """Before, `--stay never` lost to a file with another value, so that the peer waited."""
    graph, path = tmp_path / "graph.json", tmp_path / "options.toml"
    peer.Graph.make("line", peers=2).save(graph)
    path.write_text("stay = 'error'\nthreads = 0\n")
    command = ["run", "--id", "0", "--neighbors", str(graph), "--options", str(path), "--stay", "never"]
    done = subprocess.run([sys.executable, "-m", "peer", *command], capture_output=True, check=False, timeout=300)
    assert done.returncode == 2


def test_messages_name_options_that_exist():
    """Before, messages told users to give --cert, --key, --host and --input, which are gone."""
    known = {
        *IN_FILE,
        *IN_SETTINGS,
        *KEYS.model_fields,
        *KIND_KEYS,
        "run",
        "make_model",
        "metric",
        "rounds",
        "path",
        "progress",
        "to",
    }  # of Python calls
    for _, command in leaves(get_command(app)):
        known |= {
            name for each in command.params for name in (each.opts[-1].removeprefix("--").replace("-", "_"), each.name)
        }
    files = [path for root in (peer, coordinator_free_bootstrap) for path in Path(root.__file__).parent.rglob("*.py")]
    option = re.compile(r"""\bOption\(["'](\w+)["']\)""")
    named = {(name, path.name) for path in files for name in option.findall(path.read_text())}
    assert len(named) > 30
    assert {(name, file) for name, file in named if name not in known} == set()


def option_of(*path):
    """Return the options of a verb by name."""
    command = get_command(app)
    for word in path:
        command = command.get_command(None, word)
    return {each.name: each for each in command.params}


@pytest.mark.parametrize(
    ("verb", "declared", "used"),
    [
        (("run",), LocalOptions, complete_options(3, {}) | {"state_dir": None}),
        (("testbed",), BedOptions, bed_options({})),
        (("experiment", "run"), SimulatedOptions, vars(SimulatedSettings())),
    ],
)
def test_the_default_of_the_command_is_the_one_that_is_used(verb, declared, used):
    """`--help` shows the declared default, and a Python call without the option has the same one."""
    parameters = option_of(*verb)
    for name, field in fields_of(declared).items():
        assert used[name] == field.default, name
        if name in parameters:
            assert parameters[name].default in (field.default, None if field.default == () else field.default), name


def test_peer_graph_keys_shows_the_defaults_of_the_manifest():
    listed = CliRunner().invoke(app, ["graph", "keys", "fedspd"]).stdout.splitlines()
    manifest = peer.Manifest(algorithm="fedspd")
    options = algorithm_named("fedspd").parse_options(manifest)
    used = {
        **{f"run.{key}": value for key, value in flat(manifest.model_dump(mode="json")).items()},
        **{f"run.options.{key}": value for key, value in options.model_dump(mode="json").items()},
    }
    used["run.algorithm"] = peer.Manifest().algorithm
    shown = {key: json.loads(text.partition(": ")[0]) for key, _, text in (line.partition(" = ") for line in listed)}
    assert len(shown) > 50 and shown == {key: used[key] for key in shown}


def flat(values, prefix=""):
    """Return the values of nested objects by dotted key; an empty object is a value."""
    found = {}
    for key, value in values.items():
        found |= flat(value, f"{prefix}{key}.") if isinstance(value, dict) and value else {f"{prefix}{key}": value}
    return found


def test_peer_graph_make_has_the_declared_options_of_graph_make():
    of_call, of_command, declared = (
        inspect.signature(peer.Graph.make).parameters,
        option_of("graph", "make"),
        fields_of(GraphOptions),
    )
    for name in ("kind", "peers", "base_port", "address_template"):
        assert (
            of_command[name].default == declared[name].default and of_command[name].help == declared[name].description
        )
    assert [of_call[name].default for name in ("kind", "peers")] == [
        declared[name].default for name in ("kind", "peers")
    ]
    assert of_call["options"].annotation == "Unpack[DrawOptions]"
    assert (
        fields_of(DrawOptions).keys()
        == declared.keys() - {"kind", "peers"}
        == {*KIND_KEYS, "base_port", "address_template"}
    )
    assert [option_of("testbed")[name].help for name in ("kind", "peers")] == [
        of_command[name].help for name in ("kind", "peers")
    ]


if __name__ == "__main__":
    for each in VERBS_WITH_HELP:
        recorded(each).write_text(help_of(each), encoding="utf-8")
