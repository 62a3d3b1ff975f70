"""The peer of `target.py` in a separate process, so that its memory can be measured: ``target_process.py DIRECTORY LIMITS``.

It prints its port, its digests and all key pairs as one JSON line. Each line on stdin is answered with a JSON line: the digest
of its state, its refusals, its stage and its buffers.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from target import ATTACKER, GOOD, Target, under_attack

from coordinator_free_bootstrap import Subject
from peer.core.stages import EXCHANGE
from peer.identity.certificates import Certificate
from peer.identity.files import KeyPair
from peer.wire.limits import WireLimits


def memory_bytes(pid: int) -> int:
    """Return the resident memory of a process."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


class TargetProcess:
    """A running target process; a context manager."""

    def __init__(self, directory: Path, limits: WireLimits) -> None:
        command = [sys.executable, str(Path(__file__)), str(directory), json.dumps(dataclasses.asdict(limits))]
        env = os.environ | {"OMP_NUM_THREADS": "1"}
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env)
        first = self._line()
        self.port: int = first["port"]
        self.hello: dict[str, Any] = first["hello"]
        self.model_bytes: int = first["model_bytes"]
        self.pairs: dict[Subject, KeyPair] = {}
        for name, (private, pem) in first["keys"].items():
            subject: Subject = int(name) if name.isdigit() else name
            self.pairs[subject] = KeyPair(private.encode(), Certificate.from_pem(pem.encode(), name), pem.encode())

    def ask(self) -> dict[str, Any]:
        """Return the digest, refusals, stage, streams, buffers and memory of the target."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return self._line() | {"memory_bytes": memory_bytes(self.process.pid)}

    def _line(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"the target ended with exit code {self.process.wait(10)}")
        found: dict[str, Any] = json.loads(line)
        return found

    def __enter__(self) -> TargetProcess:
        return self

    def __exit__(self, *_error: object) -> None:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.close()
        self.process.wait(30)
        self.process.stdout.close()


async def serve(directory: Path, limits: WireLimits) -> None:
    """Run the target until stdin ends."""
    async with under_attack(directory, limits=limits) as target:
        await target.connect(ATTACKER, GOOD)
        await target.reach(*EXCHANGE)
        pairs = {str(s): (p.private_key.decode(), p.chain.decode()) for s, p in target.pairs.items()}
        hello = dataclasses.asdict(target.host.compared)
        model_bytes = target.host.state.model_bytes
        print(json.dumps({"port": target.port, "hello": hello, "keys": pairs, "model_bytes": model_bytes}), flush=True)
        loop = asyncio.get_running_loop()
        while await loop.run_in_executor(None, sys.stdin.readline):
            print(json.dumps(answer(target)), flush=True)


def answer(target: Target) -> dict[str, Any]:
    """Return what `TargetProcess.ask` returns, without the memory."""
    state = target.host.state
    return {
        "digest": target.digest(incarnations=False),
        "refusals": {str(code): count for code, count in state.refusals.items()},
        "stage": str(state.stage),
        "streams": target.open_streams(),
        "buffers": state.arrivals.buffers(),
    }


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    asyncio.run(serve(Path(sys.argv[1]), WireLimits(**json.loads(sys.argv[2]))))
