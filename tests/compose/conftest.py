"""The Docker engine and the image, once for all tests of this folder."""

import engine as docker_engine
import pytest

from peer.deploy.chaos import NAMES, container_script


@pytest.fixture(scope="session")
def host():
    """Address of an engine with the image."""
    try:
        with docker_engine.engine() as address:
            docker_engine.build(address)
            yield address
    except docker_engine.NoEngine as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def eventful_seed():
    """Return a function that finds a seed whose script has every fault of containers."""

    def find(seconds, peers):
        return next(s for s in range(1000) if {e.do for e in container_script(s, seconds, peers).event} == {*NAMES})

    return find
