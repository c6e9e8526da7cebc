"""The server of soak.py as a process: its start, what it holds, and the faults that come from outside."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import resource
import signal
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from device_loss import DESTROYED

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Collection, Iterator, Sequence

UNICORN = ("-m", "unicorn_async")
LOSING = (str(Path(__file__).with_name("device_loss.py")),)
LOST = ("its engine has failed", "VK_ERROR_DEVICE_LOST")  # what the log has of a lost device, beside its traceback


class ServerProcess:
    """A running `unicorn demo`, whose log is read; one that can lose its device has to log as JSON."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._lines: list[str] = []
        self.url = ""
        self.errors: list[str] = []
        self.num_losses = 0  # of the device, that were asked for
        self.num_lost = 0  # that the server has noticed

    @classmethod
    @contextlib.asynccontextmanager
    async def started(
        cls, options: Sequence[str], program: Sequence[str] = UNICORN, *, cores: Collection[int] = ()
    ) -> AsyncIterator[Self]:
        """Start one, and end it at the end of the block; it has those cores alone, if any are named.

        With `LOSING` as its program it can lose its device.
        """
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, *program, "demo", "--port", "0", *options),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        if cores:
            os.sched_setaffinity(process.pid, cores)
        server = cls(process)
        ready: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        reading = asyncio.create_task(server._read(ready))
        try:
            server.url = await ready
            yield server
        finally:
            await server.stop()
            await reading

    async def stop(self) -> int:
        """End it, and return its status."""
        if self._process.returncode is None:
            self._process.terminate()
        return await self._process.wait()

    def tail(self) -> list[str]:
        """Return the last lines that it has printed."""
        return self._lines[-30:]

    def open_files(self) -> Counter[str]:
        """Return how many files, sockets and pipes of each kind it has open."""
        kinds: Counter[str] = Counter()
        for file in Path("/proc", str(self._process.pid), "fd").iterdir():
            with contextlib.suppress(FileNotFoundError):
                kinds[re.sub(r"\d+", "", str(file.readlink()))] += 1
        return kinds

    def held(self) -> dict[str, Any]:
        """Return what it has open, and its own memory."""
        root = Path("/proc", str(self._process.pid))
        status = dict(line.split(":", 1) for line in (root / "status").read_text().splitlines())
        return {
            "files": self.open_files(),
            "threads": int(status["Threads"]),
            "children": len(self._children()),
            "bytes": int(status["RssAnon"].split()[0]) << 10,
        }

    def kill_children(self) -> int:
        """Kill the processes that work for it, the tokenizer's among them; return how many there were."""
        children = self._children()
        for child in children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
        return len(children)

    def lose_device(self) -> None:
        """Have the driver say that the device is lost."""
        self.num_losses += 1
        self._process.send_signal(signal.SIGUSR2)

    @contextlib.contextmanager
    def full_disk(self) -> Iterator[None]:
        """Have no file of its own grow."""
        earlier = resource.prlimit(self._process.pid, resource.RLIMIT_FSIZE)
        resource.prlimit(self._process.pid, resource.RLIMIT_FSIZE, (0, earlier[1]))
        try:
            yield
        finally:
            resource.prlimit(self._process.pid, resource.RLIMIT_FSIZE, earlier)

    def _children(self) -> list[int]:
        tasks = Path("/proc", str(self._process.pid), "task").iterdir()
        return [int(child) for task in tasks for child in (task / "children").read_text().split()]

    async def _read(self, ready: asyncio.Future[str]) -> None:
        assert self._process.stdout is not None
        async for raw in self._process.stdout:
            line = raw.decode(errors="replace").rstrip()
            self._lines.append(line)
            del self._lines[:-200]
            if line.startswith("address") and not ready.done():
                ready.set_result(line.split()[1])
            if all(part in line for part in LOST):
                self.num_lost += 1
            elif "Traceback" in line or (line.startswith(DESTROYED) and line != f"{DESTROYED}none"):
                self.errors.append(line)
        if not ready.done():
            ready.set_exception(RuntimeError("\n".join(self._lines)))
