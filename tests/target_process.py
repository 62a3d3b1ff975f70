"""The peer of `target.py` as a process of its own, so that its memory can be watched: ``target_process.py DIRECTORY [RUN]``.

It writes everybody's keys into the directory, prints its port, and answers each line on stdin with what an attack must not
change, and with what it may.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from target import ATTACKER, GOOD, Target, under_attack

from coordinator_free_bootstrap import Subject
from peer.core.state import Stage
from peer.identity.certificates import Certificate
from peer.identity.files import KeyPair


def memory_bytes(pid: int) -> int:
    """Return the resident memory of a process."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


class TargetProcess:
    """A running target as its attacker sees it; use it as a context manager."""

    def __init__(self, directory: Path, run: dict[str, Any]) -> None:
        command = [sys.executable, str(Path(__file__)), str(directory), json.dumps(run)]
        env = os.environ | {"OMP_NUM_THREADS": "1"}
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env)
        told = self._line()
        self.port: int = told["port"]
        self.hello: dict[str, Any] = told["hello"]
        self.model_bytes: int = told["model_bytes"]
        self.pairs: dict[Subject, KeyPair] = {}
        for name, (private, pem) in told["keys"].items():
            subject: Subject = int(name) if name.isdigit() else name
            self.pairs[subject] = KeyPair(private.encode(), Certificate.from_pem(pem.encode(), name), pem.encode())

    def ask(self) -> dict[str, Any]:
        """Return digest, refusals, stage and memory."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return self._line() | {"memory_bytes": memory_bytes(self.process.pid)}

    def _line(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"the target has died with exit code {self.process.wait(10)}")
        found: dict[str, Any] = json.loads(line)
        return found

    def __enter__(self) -> TargetProcess:
        return self

    def __exit__(self, *_error: object) -> None:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.close()
        self.process.wait(30)
        self.process.stdout.close()


async def serve(directory: Path, run: dict[str, Any]) -> None:
    """Be the target until stdin ends."""
    async with under_attack(directory, run) as target:
        await target.greet(ATTACKER, GOOD)
        await target.reach(Stage.EXCHANGING)
        pairs = {str(s): (p.private_key.decode(), p.chain.decode()) for s, p in target.pairs.items()}
        hello = target.runtime.parts.digests | {"manifest_json": target.runtime.parts.manifest_json}
        model_bytes = target.runtime.engine.model_bytes
        print(json.dumps({"port": target.port, "hello": hello, "keys": pairs, "model_bytes": model_bytes}), flush=True)
        loop = asyncio.get_running_loop()
        while await loop.run_in_executor(None, sys.stdin.readline):
            print(json.dumps(answer(target)), flush=True)


def answer(target: Target) -> dict[str, Any]:
    """Return what the attacker's side wants to know."""
    engine = target.runtime.engine
    return {
        "digest": target.digest(lives=False),
        "refusals": {str(code): count for code, count in engine.refusals.items()},
        "stage": str(engine.stage),
        "streams": target.runtime.calls.open_streams(),
        "buffers": engine.inbox.buffers(),
    }


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    asyncio.run(serve(Path(sys.argv[1]), json.loads(sys.argv[2]) if len(sys.argv) > 2 else {}))
