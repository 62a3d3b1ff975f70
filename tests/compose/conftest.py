"""The engine and the image, once for all tests of this folder."""

import engine as docker_engine
import pytest

from peer.deploy.chaos import script


@pytest.fixture(scope="session")
def host():
    """Address of an engine that has the image."""
    try:
        with docker_engine.engine() as address:
            docker_engine.build(address)
            yield address
    except docker_engine.NoEngine as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def eventful_seed():
    """A seed whose script of 45 s has every kind of fault for six peers."""

    def find(seconds, peers):
        return next(s for s in range(1000) if {f.kind for f in script(s, seconds, peers)} == {"kill", "pause", "cut"})

    return find
