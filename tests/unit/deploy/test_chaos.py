"""The chaos of a compose project, when its engine does not do what it is asked to."""

from types import SimpleNamespace

import pytest
from docker.errors import APIError

from peer.deploy import chaos
from peer.deploy.chaos import Fault, Project


class Container:
    """A running container whose pauses are answered by the errors of a list, one after the other, then carried out."""

    status = "running"

    def __init__(self, *errors):
        self.errors, self.done = list(errors), []

    def pause(self):
        self.done.append("asked")
        if self.errors:
            raise self.errors.pop(0)
        self.done.append("paused")

    def unpause(self):
        self.done.append("unpaused")


def error(status, explanation):
    return APIError(
        "of the engine",
        response=SimpleNamespace(status_code=status, url="unix", reason="test"),
        explanation=explanation,
    )


@pytest.fixture
def inflict(monkeypatch):
    monkeypatch.setattr(chaos, "FREEZE_PAUSE_S", 0.0)

    def pause(container):
        project = Project(None, "test")
        monkeypatch.setattr(project, "peers", lambda: {3: container})
        return project.inflict(Fault(0.0, "pause", 3, 0.0))

    return pause


def test_a_container_that_cannot_be_frozen_just_then_is_asked_again(inflict):
    container = Container(*[error(500, "OCI runtime pause failed: unable to freeze: unknown")] * 3)
    assert inflict(container)
    assert container.done == ["asked"] * 4 + ["paused", "unpaused"]


@pytest.mark.parametrize("explanation", ["unable to freeze", "no space left on device"])
def test_a_fault_that_the_engine_fails_to_carry_out_is_told_and_does_not_count(inflict, caplog, explanation):
    container = Container(*[error(500, explanation)] * chaos.FREEZES_MAX)
    assert not inflict(container)
    assert "pause peer 3: the engine could not" in caplog.text and explanation in caplog.text
    assert "unpaused" not in container.done


def test_a_peer_that_has_just_ended_is_spared_in_silence(inflict, caplog):
    assert not inflict(Container(error(409, "Container is not running")))
    assert not caplog.text


def test_a_request_that_the_engine_refuses_ends_the_chaos(inflict):
    with pytest.raises(APIError):
        inflict(Container(error(403, "forbidden")))
