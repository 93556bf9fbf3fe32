"""Workers of a host that was killed: the kernel and the socket end them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

pytestmark = pytest.mark.integration

HOST = """
import asyncio, json, sys
from tests.fakes.pools import child_pids, dispatch_all, make_pool, work

async def main():
    pool, events = make_pool(options=json.loads(sys.argv[1]), workers=2)
    start = asyncio.create_task(pool.start())
    if sys.argv[2] == "serving":
        await start
        dispatch_all(pool, [work(1, act="hang")])
        dispatch_all(pool, [work(2, stage="interpret", act="hang")])
    else:
        await asyncio.sleep(0.2)
    print(json.dumps(child_pids()), flush=True)
    await asyncio.sleep(60)

asyncio.run(main())
"""


@pytest.mark.parametrize(("phase", "options"), [("serving", {}), ("starting", {"start": "hang"})])
def test_no_worker_outlives_a_host_that_is_killed(phase: str, options: dict[str, str]) -> None:
    command = [sys.executable, "-c", HOST, json.dumps(options), phase]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as host:
        assert host.stdout is not None
        pids = json.loads(host.stdout.readline())
        workers = [psutil.Process(pid) for pid in pids]
        assert len(workers) == 2
        host.kill()
        deadline = time.monotonic() + 2.0
        while any(map(is_running, workers)) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert not any(map(is_running, workers))


def is_running(process: psutil.Process) -> bool:
    """Whoever adopts an orphan may be slow to reap it; a zombie holds nothing any more."""
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def test_an_interrupt_from_the_terminal_leaves_it_to_the_host() -> None:
    """Ctrl-C goes to the foreground process group; workers are not in it, and ignore it too."""
    command = [sys.executable, "-c", HOST, "{}", "serving"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as host:
        assert host.stdout is not None
        pids = json.loads(host.stdout.readline())
        for pid in pids:
            assert os.getpgid(pid) != os.getpgid(host.pid)
            os.kill(pid, signal.SIGINT)
        time.sleep(0.2)
        assert all(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE for pid in pids)
        host.kill()


def test_a_worker_whose_host_is_gone_before_it_runs_exits(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "engine.workers.process", "--model", "m", "--worker", "0"]
    command += ["--parent", "1", "--control-fd", "0", "--slab-fd", "0"]  # not its parent
    worker = subprocess.run(command, timeout=10, stdin=subprocess.DEVNULL)
    assert worker.returncode == 0
