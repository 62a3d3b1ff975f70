"""A default of the manifest that changes needs a new wire version: two releases compare only what a graph file sets.

python tests/unit/bootstrap/test_defaults.py writes `defaults.json` anew, where that is allowed.
"""

import json
from pathlib import Path

from coordinator_free_bootstrap.manifest import Manifest, canonical_json, digest
from coordinator_free_bootstrap.settings import _flat
from peer.core.messages import WIRE_VERSION

FILE = Path(__file__).with_name("defaults.json")


def now() -> dict[str, object]:
    return {"wire_version": WIRE_VERSION, "defaults": _flat(json.loads(canonical_json(Manifest())))}


def changed(before: dict) -> list[str]:
    """Return the keys whose default is another, or that are gone, in the same wire version."""
    if before["wire_version"] != WIRE_VERSION:
        return []
    defaults = now()["defaults"]
    return [key for key, value in before["defaults"].items() if defaults.get(key) != value]


def test_the_defaults_are_those_of_the_wire_version():
    recorded = json.loads(FILE.read_text())
    assert changed(recorded) == [], "raise WIRE_VERSION, or keep the default"
    assert recorded == now(), "python tests/unit/bootstrap/test_defaults.py"


def test_a_changed_default_is_found():
    recorded = json.loads(FILE.read_text())
    recorded["defaults"]["run.rounds"] = "61"
    assert changed(recorded) == ["run.rounds"]
    assert changed(recorded | {"wire_version": WIRE_VERSION - 1}) == []


def test_the_digest_has_only_what_is_not_a_default():
    assert digest(Manifest(privacy={}, timeouts={"suspicion_s": 5.0}, rounds=60)) == digest(Manifest())
    assert digest(Manifest(timeouts={"suspicion_s": 5.5})) != digest(Manifest())


if __name__ == "__main__":
    wrong = changed(json.loads(FILE.read_text())) if FILE.exists() else []
    assert not wrong, f"{wrong}: raise WIRE_VERSION, or keep the default"
    FILE.write_text(json.dumps(now(), indent=1) + "\n")
