"""Faults on the containers of a compose project: the script of a seed, and errors of the Docker engine."""

from itertools import pairwise
from types import SimpleNamespace

import pytest
from docker.errors import APIError

from peer.bed.chaos.faults import FaultEvent
from peer.bed.chaos.script import Script
from peer.ops.deploy import chaos
from peer.ops.deploy.chaos import NAMES, Project, container_script, run_faults


class Container:
    """A running container that records calls; its pauses raise the errors of a list, one after the other."""

    status = "running"

    def __init__(self, *errors):
        self.errors, self.calls = list(errors), []
        self.labels = {"com.docker.compose.service": "peer-3"}
        self.attrs = {"NetworkSettings": {"Networks": {"federation": {}}}}

    def pause(self):
        self.calls.append("pause")
        if self.errors:
            raise self.errors.pop(0)

    def __getattr__(self, name):
        return lambda: self.calls.append(name)


def error(status, explanation):
    return APIError(
        "of the engine",
        response=SimpleNamespace(status_code=status, url="unix", reason="test"),
        explanation=explanation,
    )


@pytest.fixture
def project(monkeypatch):
    """Return a function that makes a project whose only peer, 3, is a given container."""
    monkeypatch.setattr(chaos, "PAUSE_RETRY_S", 0.0)

    def make(container):
        def call(name):
            return lambda connected, **_: connected.calls.append(name)

        network = SimpleNamespace(disconnect=call("disconnect"), connect=call("connect"))
        project = Project(SimpleNamespace(networks={"federation": network}), "test")
        monkeypatch.setattr(project, "peers", lambda: {3: container})
        return project

    return make


def event(name):
    return FaultEvent.model_validate({"do": name, "peers": (3,), "for_s": 1e-9})


@pytest.mark.parametrize(
    ("name", "calls"),
    [("kill", ["kill", "start"]), ("pause", ["pause", "unpause"]), ("isolate", ["disconnect", "connect"])],
)
def test_each_fault_of_containers_is_executed_and_undone(project, name, calls):
    container = Container()
    fired = run_faults(project(container), Script(event=(event(name),)))
    assert container.calls == calls
    assert fired == dict.fromkeys(NAMES, 0) | {name: 1}


def test_a_pause_is_repeated_while_the_engine_cannot_freeze_the_container(project):
    container = Container(*[error(500, "OCI runtime pause failed: unable to freeze: unknown")] * 3)
    assert project(container).execute(event("pause"))
    assert container.calls == ["pause"] * 4 + ["unpause"]


@pytest.mark.parametrize("explanation", ["unable to freeze", "no space left on device"])
def test_a_failure_of_the_engine_is_logged_and_does_not_count(project, caplog, explanation):
    container = Container(*[error(500, explanation)] * chaos.PAUSE_ATTEMPTS_MAX)
    assert not project(container).execute(event("pause"))
    assert "the engine failed to execute pause 3" in caplog.text and explanation in caplog.text
    assert "unpause" not in container.calls


def test_a_fault_on_a_peer_that_has_just_ended_is_skipped_without_a_log_line(project, caplog):
    assert not project(Container(error(409, "Container is not running"))).execute(event("pause"))
    assert not caplog.text


def test_a_request_that_the_engine_refuses_ends_the_script(project):
    with pytest.raises(APIError):
        project(Container(error(403, "forbidden"))).execute(event("pause"))


def test_a_container_script_depends_on_its_seed_only_and_has_one_fault_at_a_time():
    events = container_script(7, 300, [0, 1, 2]).event
    assert events == container_script(7, 300, [0, 1, 2]).event
    assert events != container_script(8, 300, [0, 1, 2]).event
    assert {event.do for event in events} == set(NAMES) == {"kill", "pause", "isolate"}
    assert {peer for event in events for peer in event.peers} == {0, 1, 2}
    for before, after in pairwise(events):
        assert before.at_s + before.for_s <= after.at_s
    assert events[-1].at_s + events[-1].for_s <= 300
