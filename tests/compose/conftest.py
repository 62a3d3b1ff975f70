"""The Docker engine and the image, once for all tests of this folder."""

from collections import Counter

import engine as docker_engine
import pytest

from peer.ops.deploy.chaos import NAMES, container_script


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
    """Return a function that finds a seed whose script has every fault of containers twice: the engine may fail at one."""

    def often(seed, seconds, peers):
        events = Counter(event.do for event in container_script(seed, seconds, peers).event)
        return all(events[name] >= 2 for name in NAMES)

    def find(seconds, peers):
        return next(seed for seed in range(1000) if often(seed, seconds, peers))

    return find
