"""The verb `report`: results on stdout, progress on stderr, pictures in the folder of --out."""

import json

import pytest
import typer
from typer.testing import CliRunner

from coordinator_free_bootstrap.errors import UsageError
from peer.view.verbs.report import report


@pytest.fixture
def app():
    app = typer.Typer()
    app.command()(report)
    return app


def test_json_goes_to_stdout_alone(app, run_directory):
    result = CliRunner().invoke(app, [str(run_directory), "--json", "--target", "0.7"])
    values = json.loads(result.stdout)
    assert result.exit_code == 0 and values["reached"]["rounds"] == 3
    assert not (run_directory / "report").exists() and result.stderr == ""


def test_table_and_pictures(app, run_directory):
    result = CliRunner().invoke(app, [str(run_directory)], env={"COLUMNS": "140"})
    assert result.exit_code == 0 and "2 of 2 in use, ARI 1.000" in result.stdout
    assert len(list((run_directory / "report").glob("*.png"))) == 3 and result.stderr.count("wrote") == 3


def test_json_with_pictures_elsewhere(app, run_directory, tmp_path):
    result = CliRunner().invoke(app, [str(run_directory), "--json", "--out", str(tmp_path / "pictures")])
    assert json.loads(result.stdout)["state"] == "complete" and (tmp_path / "pictures" / "clusters.png").is_file()


def test_a_directory_without_a_run_is_a_usage_error(app, tmp_path):
    result = CliRunner().invoke(app, [str(tmp_path)])
    assert isinstance(result.exception, UsageError)
