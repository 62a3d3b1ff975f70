"""Goal: processes that a peer forks, such as the workers of a data loader, do not crash, though gRPC has threads and open calls.

Method: a program whose gRPC server and client exchange messages all the time forks children; with gRPC's own handlers of forks a
fourth of them dies.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.process

PROGRAM = """
import asyncio, gc, multiprocessing, os, threading
import peer.wire
import grpc.aio

async def echo(request, context):
    calls.append(1)
    return request

class Handler(grpc.GenericRpcHandler):
    def service(self, details):
        return grpc.unary_unary_rpc_method_handler(echo)

async def exchange():
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((Handler(),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    call = grpc.aio.insecure_channel(f"127.0.0.1:{port}").unary_unary("/a/b")
    async def again():
        while True:
            await call(bytes(200_000))
            ready.set()
    await asyncio.gather(*(again() for _ in range(4)))

def work():
    gc.collect()

calls, ready = [], threading.Event()
threading.Thread(target=lambda: asyncio.run(exchange()), daemon=True).start()
ready.wait()
before, codes = len(calls), []
for _ in range(40):
    child = multiprocessing.get_context("fork").Process(target=work)
    child.start()
    child.join()
    codes.append(child.exitcode)
assert len(calls) > before, "no call was open"
print(codes.count(0), "of", len(codes), flush=True)
os._exit(0)
"""


def test_forked_children_of_a_process_with_open_calls_do_not_crash() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False, timeout=250)
    assert done.stdout == "40 of 40\n", done.stderr[-2000:]
