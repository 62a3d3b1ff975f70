"""The service `page`: started with its profile it prints a link, answers on this machine only, and shows the peers' rounds."""

import re

import pytest
from project import Project
from tools.page_client import asked, film, opened

from coordinator_free_bootstrap import make_graph, parse_manifest

pytestmark = pytest.mark.compose

PLACE = "127.0.0.1:7480"


def test_the_page_of_a_run_in_containers(host, tmp_path):
    graph = make_graph("ring", 3, manifest=parse_manifest({"task": "digits", "rounds": 2000}, "test"))
    with Project(host, tmp_path, graph) as project:
        project.compose("--profile", "page", "up", "-d")
        link = project.until(lambda: re.findall(r"page: (http://\S+)", project.log("page")), "the page prints a link")[
            0
        ]
        assert link.startswith(f"http://{PLACE}/?token=")
        assert asked(PLACE, "/")[0] == 403 and asked(PLACE, "/", "POST")[0] == 405
        cookie = opened(PLACE, link.partition("?")[2])
        run = project.until(lambda: (f := film(PLACE, cookie))["frames"] and f, "the page shows a completed round")
        assert [peer["id"] for peer in run["run"]["peers"]] == [0, 1, 2]
        found = project.container("page").attrs
        assert all(
            not mount["RW"] for mount in found["Mounts"] if "state" in mount.get("Name", "") or mount["Type"] == "bind"
        )
        assert found["HostConfig"]["PortBindings"] == {"7480/tcp": [{"HostIp": "127.0.0.1", "HostPort": "7480"}]}
