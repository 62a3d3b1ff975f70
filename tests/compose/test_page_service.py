"""The service `page`: started with its profile it prints a link, answers on this machine only, and shows the peers' rounds.

The peers of this run have a task file, each with the data of its own site.
"""

import re

import pytest
from own_task import DATA, graph_with_own_task
from project import Project
from tools.page_client import asked, film, opened

from peer.ops.deploy.given_data import data_here

pytestmark = pytest.mark.compose

PLACE = "127.0.0.1:7480"


def test_the_page_of_a_run_in_containers_with_a_task_file_and_data(host, tmp_path, monkeypatch):
    """Before, every peer with a task file ended at once for want of a temporary folder, and no data could be given."""
    monkeypatch.chdir(tmp_path)
    graph = graph_with_own_task(tmp_path, 3, rounds=100_000)
    with Project(host, tmp_path / "project", graph, data=data_here(DATA, graph)) as project:
        project.compose("--profile", "page", "up", "-d")
        link = project.until(lambda: re.findall(r"page: (http://\S+)", project.log("page")), "the page prints a link")[
            0
        ]
        assert link.startswith(f"http://{PLACE}/?token=")
        assert asked(PLACE, "/")[0] == 403 and asked(PLACE, "/", "POST")[0] == 405
        cookie = opened(PLACE, link.partition("?")[2])
        run = project.until(lambda: (f := film(PLACE, cookie))["frames"] and f, "the page shows a completed round")
        assert [peer["id"] for peer in run["run"]["peers"]] == [0, 1, 2]
        for peer_id in graph.ids:
            look = "import os; print(os.getcwd(), os.listdir('data'), os.access('data', os.W_OK), os.access('/tmp', os.W_OK))"
            said = project.execute(f"peer-{peer_id}", look)
            assert said == (0, "/task ['readings.npz'] False True\n")
            project.until(lambda i=peer_id: project.health(f"peer-{i}") == "healthy", f"peer {peer_id} is healthy")
        found = project.container("page").attrs
        assert all(
            not mount["RW"] for mount in found["Mounts"] if "state" in mount.get("Name", "") or mount["Type"] == "bind"
        )
        assert found["HostConfig"]["PortBindings"] == {"7480/tcp": [{"HostIp": "127.0.0.1", "HostPort": "7480"}]}
