"""A client that gets into another process connects anew there."""

import asyncio
import multiprocessing
import os
import pickle
import subprocess
import sys

import grpc
import numpy as np
import pytest

from gradwire import AsyncClient, Client, RetryPolicy
from support.clients import ITEM, LARGE, SMALL, copied

# Scripts run apart from pytest, whose threads are not at rest when a test wants to fork.
FORKING = """
import os, sys
import numpy as np
from gradwire import Client, RetryPolicy, ops

copy = ops.DmlResample(interpolation_mode="linear")
small = np.ones((4, 4), np.float32)
# A dead connection stays dead however often it is tried; grpc 1.76 breaks a new one now and then.
policy = RetryPolicy(max_attempts=5, initial_backoff_s=0.05)
client = Client(sys.argv[1], retry=policy)
large = client.empty((512, 512))
large[...] = np.arange(1 << 18).reshape(512, 512)

def works():
    return all(
        np.array_equal(client.evaluate(copy, each, output_shape=each.shape), each)
        for each in (small, large)
    )

def in_a_child(holds):
    child = os.fork()
    if child == 0:
        os._exit(0 if holds() else 1)
    assert os.waitpid(child, 0)[1] == 0

def refuses():
    try:
        client.server_info()
    except RuntimeError:
        return True

assert works()
for ends in (works, lambda: works() and client.close() is None) * 2:
    in_a_child(ends)
    assert works()
client.close()
in_a_child(refuses)
print("done")
"""

# Without the task's reference this ends by SIGSEGV within some rounds.
DROPPING = """
import asyncio, gc, sys, threading
import numpy as np
from gradwire import AsyncClient, Item, ops

sys.setswitchinterval(1e-6)
gc.disable()
item = Item(ops.DmlResample(interpolation_mode="linear"), np.ones((4, 4), np.float32), (4, 4))
loop = asyncio.new_event_loop()
threading.Thread(target=loop.run_forever, daemon=True).start()

def beat():
    loop.call_later(2e-4, beat)

async def items():
    while True:
        yield item

async def drop_unread():
    client = AsyncClient(sys.argv[1])
    for _ in range(8):
        results = client.evaluate_many(items(), max_in_flight=2)
        await anext(results)
        cycle = [results]
        cycle.append(cycle)
    await client.close()
    await asyncio.sleep(0.05)

loop.call_soon_threadsafe(beat)
for _ in range(25):
    asyncio.run_coroutine_threadsafe(drop_unread(), loop).result()
    gc.collect()
print("done")
"""


@pytest.mark.parametrize(
    "script", [FORKING, pytest.param(DROPPING, marks=pytest.mark.slow)], ids=["fork", "drop"]
)
def test_children_connect_anew_and_any_thread_may_collect_results(address, script):
    run_script(script, address)


def run_script(script, address):
    command = [sys.executable, "-c", script, address]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)  # noqa: S603
    assert (done.stdout, done.returncode) == ("done\n", 0), done.stderr


def test_results_stay_in_the_process_that_asked(plain, monkeypatch):
    """No process is forked here: gRPC may crash where that happens amid a call."""
    results = plain.evaluate_many([ITEM] * 20)
    next(results)
    with monkeypatch.context() as patch:
        own = os.getpid()
        patch.setattr(os, "getpid", lambda: own + 1)
        with pytest.raises(RuntimeError, match="forked"):
            next(results)
    assert len(list(results)) == 19


def parent_and_result(client):
    with client:
        return os.getppid(), copied(client, LARGE)


def test_a_pickled_client_has_its_arguments_and_connections_of_its_own(address):
    options = {"chunk_bytes": 5000, "retry": RetryPolicy(max_attempts=3)}
    with Client(address, timeout_s=7.0, **options) as client:
        client.server_info()
        dumped = pickle.dumps(client)
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            parent, result = pool.apply(parent_and_result, (client,))
    assert parent == os.getpid()
    np.testing.assert_array_equal(result, LARGE)
    assert pickle.dumps(pickle.loads(dumped)) == dumped  # noqa: S301 - our own bytes

    async def dump():
        async with AsyncClient(address, chunk_bytes=5000) as client:
            await client.server_info()
            return pickle.dumps(client)

    async def load(dumped):
        # It belongs to the event loop it wakes up in.
        async with pickle.loads(dumped) as client:  # noqa: S301 - our own bytes
            np.testing.assert_array_equal(await copied(client, SMALL), SMALL)

    asyncio.run(load(asyncio.run(dump())))
    for kind in (Client, AsyncClient):
        with pytest.raises(TypeError, match="credentials"):
            pickle.dumps(kind("127.0.0.1:1", credentials=grpc.ssl_channel_credentials()))
