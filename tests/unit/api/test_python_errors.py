"""Errors from Python name arguments; those of the command line name options. It is one sentence."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from typer.testing import CliRunner

import peer
from coordinator_free_bootstrap.errors import (
    ConfigProblem,
    Option,
    PeerError,
    StorageError,
    TaskError,
    UsageError,
    names_for,
)
from peer.api.arguments import named_in_python
from peer.cli.main import app


def test_a_message_names_an_option_as_its_reader_writes_it():
    problem = ConfigProblem(Option("limit"), "bytes per second", "'fast'", "Give 2MB.")
    assert str(problem) == "--limit: expected bytes per second, got 'fast'. Give 2MB."
    with names_for("python"):
        assert str(problem) == "limit=: expected bytes per second, got 'fast'. Give 2MB."
        with names_for("command line"):  # of a verb that a program calls: the outermost decides
            assert str(problem).startswith("limit=:")


def test_an_error_of_another_thread_names_arguments_in_python():
    def fail():
        raise UsageError(ConfigProblem(Option("data_root"), "a folder", "nothing"))

    caught = pytest.raises(UsageError, match=r"^data_root=: expected")
    with ThreadPoolExecutor() as threads, caught as error, named_in_python():
        threads.submit(fail).result()
    assert error.value.problem.key == Option("data_root")


def test_the_same_error_names_the_argument_in_python_and_the_option_on_the_command_line(tmp_path):
    graph = peer.Graph.make("ring", peers=3)
    with pytest.raises(UsageError, match=r"^data_root=: expected no value .*task 'digits' does not use it") as caught:
        peer.simulate(graph, data_root=tmp_path)
    assert "--" not in str(caught.value)
    graph.save(tmp_path / "graph.json")
    command = ["testbed", str(tmp_path / "graph.json"), "--set", f"data_root={tmp_path}"]
    command += ["--out", str(tmp_path / "bed")]
    with pytest.raises(UsageError, match=r"^--set data_root: expected no value .*task 'digits' does not use it"):
        CliRunner().invoke(app, command, catch_exceptions=False)


def test_an_error_of_a_graph_names_options_on_the_command_line_only(tmp_path, monkeypatch):
    def refuse(graph):
        raise TaskError(f"found no data; give {Option('data_root')} FOLDER")

    graph = peer.Graph.make("line", peers=2)
    graph.save(tmp_path / "graph.json")
    monkeypatch.setattr("peer.api.graph.check_names", refuse)
    for call in (graph.check, lambda: peer.Graph.make("line", peers=2)):
        with pytest.raises(TaskError, match="give data_root= FOLDER"):
            call()
    for verb in (["make", "--peers", "2"], ["check", str(tmp_path / "graph.json")]):
        with pytest.raises(TaskError, match="give --data-root FOLDER"):
            CliRunner().invoke(app, ["graph", *verb], catch_exceptions=False)
    with pytest.raises(TaskError, match="give data_root= FOLDER"):
        graph.check()


def test_a_folder_that_cannot_be_made_ends_a_simulation_before_it_trains(tmp_path, monkeypatch):
    monkeypatch.setattr("peer.lab.simulated.VirtualNetwork.run", lambda network: pytest.fail("it trained"))
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match=r"Expected a folder, got a file\. Remove it, or use another folder"):
        peer.simulate(peer.Graph.make("line", peers=2), out=tmp_path / "file" / "x", progress=False)


def test_an_error_keeps_its_class_its_code_and_its_notes():
    with names_for("python"):
        error = StorageError(f"cannot write x: give another {Option('state_dir')}")
    error.add_note("a trace of another process")
    with pytest.raises(StorageError) as caught, named_in_python():
        raise error
    assert caught.value is error and error.__notes__ == ["a trace of another process"]
    assert str(error).endswith("give another state_dir=")


def test_no_error_of_the_api_names_an_option(tmp_path):
    graph = peer.Graph.make("line", peers=2)
    run = peer.simulate(graph, out=tmp_path / "run", progress=False)
    calls = [
        lambda: peer.Graph.make("line", peers=2, run={"split": "by_column"}),
        lambda: peer.Graph.of(replace(graph, manifest=peer.Manifest(task="nothing"))).check(),
        lambda: peer.Graph.make("line", peers=2, run={"momentum": 0.5, "optimizer": "adam"}),
        lambda: peer.Graph.load(tmp_path / "nothing.json"),
        lambda: graph.save(tmp_path / "no" / "graph.json"),
        lambda: peer.simulate(graph, data_root="x"),
        lambda: peer.run(0, graph, certs="certs", insecure=True),
        lambda: peer.run(0, graph, metrics="::"),
        lambda: peer.run(0, graph, limit="fast", insecure=True),
        lambda: peer.run(0, graph, export="x", insecure=True),
        lambda: peer.run(0, graph, when="25:00-26:00", insecure=True),
        lambda: peer.run(0, graph, when="/no/such/program", insecure=True),
        lambda: peer.run(0, graph, when="'", insecure=True),
        lambda: peer.run(0, graph, shard=tmp_path / "a.csv", insecure=True),
        lambda: peer.run(0, graph, state_dir=tmp_path / "state"),
        lambda: asyncio.run(peer.run_async(0, graph, device="tpu", insecure=True)),
        lambda: run.export("excel:x"),
        lambda: run.plot("colour"),
        lambda: run.export_model(0, "model.h5"),
        lambda: peer.Run(tmp_path / "nothing"),
    ]
    for call in calls:
        with pytest.raises(PeerError) as caught:
            call()
        assert "--" not in str(caught.value)
