"""One worker process as its host sees it, from spawn to reaped."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from engine.workers.channel import HostChannel

DRAIN_S = 1.0  # from the process's end until its last bytes are read; they are in the buffer then
TERMINATE_S = 0.3
REAP_S = 5.0
# Pictures and tensors of megabytes come and go with every item. Kept in the process and on huge
# pages they cost neither page faults nor as many misses of the TLB: 2 % of CenterFace, measured. At
# most 128 MiB stay unused at the heap's end. An older glibc ignores what it does not know.
MALLOC_TUNABLES = ":".join(
    (
        "glibc.malloc.hugetlb=1",
        "glibc.malloc.mmap_threshold=33554432",
        "glibc.malloc.trim_threshold=134217728",
    )
)
MAX_IMAGE_PIXELS = 1 << 26  # 67 million: above the largest picture a gateway lets through


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """How a model's processes are started, and what they may say.

    The command is ``python -m module``, with the arguments of every worker and ``arguments``.
    ``messages`` is the union of those that come up, each at most ``max_message_bytes``.
    """

    model: str
    module: str
    messages: Any
    max_message_bytes: int
    arguments: tuple[str, ...] = ()
    inherited_fds: tuple[int, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)


class Child:
    """A running worker process and its control socket; created by :meth:`spawn` on the loop.

    ``exited`` is resolved with a readable reason ("was killed by SIGKILL") once the process is
    reaped and everything it sent has been delivered to ``on_message``.
    """

    def __init__(self, process: subprocess.Popen[bytes], name: str, channel: HostChannel) -> None:
        self._loop = asyncio.get_running_loop()
        self._process = process
        self._name = name
        self._channel = channel
        self._kill_reason = ""
        self._drain_timer: asyncio.TimerHandle | None = None
        self._started_at = self._loop.time()
        self.exited: asyncio.Future[str] = self._loop.create_future()
        self._pidfd = os.pidfd_open(process.pid)
        self._loop.add_reader(self._pidfd, self._reap)
        channel.closed.add_done_callback(self._note_channel_closed)

    @classmethod
    async def spawn(
        cls,
        index: int,
        launch: Launch,
        on_message: Callable[[Any], None],
        on_writable: Callable[[], None],
    ) -> Child:
        """Start a process; a cancelled spawn leaves no process and no descriptor.

        Must run on a thread that outlives the worker: the kernel ties a worker's life to the
        *thread* that started it.
        """
        channel = HostChannel(launch.messages, launch.max_message_bytes, on_message, on_writable)
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                process = start_process(index, launch, theirs.fileno())
        except BaseException:
            ours.close()
            raise
        try:
            child = cls(process, f"worker {index} (pid {process.pid})", channel)
        except BaseException:
            ours.close()
            process.kill()
            process.wait()
            raise
        try:
            loop = asyncio.get_running_loop()
            await loop.create_unix_connection(lambda: channel, sock=ours)
        except BaseException:
            ours.close()
            channel.connection_lost(None)
            await child.stop()
            raise
        return child

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def name(self) -> str:
        return self._name

    @property
    def is_writable(self) -> bool:
        """Whether its socket takes messages; ``on_writable`` tells when it does again."""
        return self._channel.is_writable

    def send(self, message: msgspec.Struct) -> None:
        self._channel.send(message)

    def kill(self, reason: str) -> None:
        """SIGKILL, with the reason that ``exited`` will give."""
        self._kill_reason = self._kill_reason or reason
        self._process.kill()

    async def wait_exit(self, timeout_s: float) -> bool:
        """Whether the process is gone, after waiting at most so long."""
        await asyncio.wait({self.exited}, timeout=max(0.0, timeout_s))
        return self.exited.done()

    async def stop(self) -> None:
        """Terminate, then kill, and reap; returns within ``TERMINATE_S + REAP_S + DRAIN_S``.

        Only a process that hangs inside the kernel outlives that; it is still reaped later.
        """
        if not self.exited.done():
            self._process.terminate()
            if not await self.wait_exit(TERMINATE_S):
                self._process.kill()
                await self.wait_exit(REAP_S + DRAIN_S)

    def rss_bytes(self) -> int:
        """Resident memory, shared slab pages included; 0 when the process is gone."""
        return self._resident()[0]

    def cpu_s(self) -> float:
        """Processor time so far, user and system; 0 when the process is gone."""
        try:
            with open(f"/proc/{self.pid}/stat") as file:
                # After the name, which may hold anything, in brackets.
                fields = file.read().rpartition(")")[2].split()
        except OSError:
            return 0.0
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def own_bytes(self) -> int:
        """Resident memory that is nobody else's: without the slab and mapped libraries."""
        resident, shared = self._resident()
        return resident - shared

    def age_s(self) -> float:
        """Since the process was started."""
        return self._loop.time() - self._started_at

    def _resident(self) -> tuple[int, int]:
        """Bytes in memory, and how many of them are shared."""
        try:
            with open(f"/proc/{self.pid}/statm") as file:  # a few microseconds: not a disk
                _, resident, shared, *_ = map(int, file.read().split())
        except (OSError, ValueError):
            return 0, 0
        page_bytes = os.sysconf("SC_PAGE_SIZE")
        return resident * page_bytes, shared * page_bytes

    def _reap(self) -> None:
        self._loop.remove_reader(self._pidfd)
        os.close(self._pidfd)
        self._process.wait()
        if self._channel.closed.done():
            self._settle()
        else:
            self._drain_timer = self._loop.call_later(DRAIN_S, self._channel.close)

    def _note_channel_closed(self, closed: asyncio.Future[str]) -> None:
        if self._drain_timer is not None:
            self._drain_timer.cancel()
        if self._process.returncode is not None:
            self._settle()
        else:  # deaf to us: of no more use
            self.kill(closed.result() or self._kill_reason)

    def _settle(self) -> None:
        if not self.exited.done():
            self.exited.set_result(self._kill_reason or describe_exit(self._process.returncode))


def describe_exit(code: int) -> str:
    """``Popen.returncode`` in words."""
    if code >= 0:
        return f"exited with code {code}"
    names = {each.value: each.name for each in signal.Signals}
    return f"was killed by {names.get(-code, f'signal {-code}')}"


def start_process(index: int, launch: Launch, control_fd: int) -> subprocess.Popen[bytes]:
    """``Popen`` of a worker; its standard output goes where its errors go.

    A new session keeps it away from the terminal's signals: Ctrl-C must reach the host alone, so
    that what is in flight can be finished.
    """
    command = [sys.executable, "-P", "-m", launch.module]
    command += ["--model", launch.model, "--worker", str(index)]
    command += ["--parent", str(os.getpid()), "--control-fd", str(control_fd)]
    command += launch.arguments
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=2,
        env={**worker_environment(index), **launch.environment},
        pass_fds=(control_fd, *launch.inherited_fds),
        start_new_session=True,
    )


def worker_environment(index: int) -> dict[str, str]:
    """The host's environment, its import path, and what must be set before libraries load."""
    return {
        **os.environ,
        # What the host can import, its worker can: a user's own pipeline lies beside the script.
        "PYTHONPATH": os.pathsep.join(os.path.abspath(entry) for entry in sys.path),
        "CLAWSTREAM_WORKER": str(index),
        # Official wheels from 1.29 on send telemetry unless this is set before the import.
        "ORT_DISABLE_TELEMETRY": "1",
        # A picture's size is checked before it gets here; this is OpenCV's own last word.
        "OPENCV_IO_MAX_IMAGE_PIXELS": str(MAX_IMAGE_PIXELS),
        # Each stage has its own thread: pools below them would fight for the same cores.
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
        "GLIBC_TUNABLES": os.environ.get("GLIBC_TUNABLES", MALLOC_TUNABLES),
    }
